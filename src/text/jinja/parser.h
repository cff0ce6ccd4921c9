// Tokens to a tree: jinja2's grammar with the loopcontrols extension and transformers' {% generation %}.
//
// FormatError with the line: a syntax error; a tag, filter or test that jinja2 has and this program has not, by name.
// As in jinja2, an unknown filter or test inside an if is an error only when it is reached.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/ast.h"

namespace lockstep::text::jinja {

Tree parse(std::string_view source, const std::string& where);

}  // namespace lockstep::text::jinja
