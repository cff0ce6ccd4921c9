// YAML as JSON, by libyaml.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"

namespace lockstep::cli {

// One document. Plain scalars become null (~, null, empty), booleans (true, yes, on and their opposites), decimal
// integers and numbers; everything else is a string. FormatError naming `where` and the line: no YAML, several
// documents, a duplicate key, a key that is no scalar, a tag, a merge key (<<), .inf and .nan, more than kMaxYamlDepth
// levels or kMaxYamlNodes values (an alias counts what it stands for).
inline constexpr int kMaxYamlDepth = 64, kMaxYamlNodes = 100'000;
OrderedJson parse_yaml(std::string_view text, const std::string& where);
// Of a file of at most kMaxJsonFileBytes. DataError: it cannot be read.
OrderedJson read_yaml(const std::string& path);

}  // namespace lockstep::cli
