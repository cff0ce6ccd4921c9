// The normal forms of Unicode (UAX 15), by the tables of text/unicode.h.
#pragma once

#include <string_view>
#include <vector>

#include "text/aligned_text.h"

namespace lockstep::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// True only if `text` (valid UTF-8) is in that form; a cheap look that may say no wrongly.
bool surely_normal(NormalForm form, std::string_view text);

// `text` in that form, for AlignedText::assign.
std::vector<AlignedText::Char> normalized(NormalForm form, std::string_view text);

}  // namespace lockstep::text
