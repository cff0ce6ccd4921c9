#include "text/pre_tokenizer.h"

#include "core/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace lockstep::text {

namespace {

constexpr int kMaxDepth = 8;
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Runs of digits and of everything else; each digit alone when `individual`.
void split_digits(std::string_view text, bool individual, const std::function<void(std::string_view)>& piece) {
  size_t begin = 0;
  bool numeric = false;  // of the characters from `begin`
  for (size_t place = 0; place < text.size();) {
    const Utf8Char next = read_utf8(text.substr(place));
    const bool next_numeric = unicode::is_numeric(next.code);
    if (place > begin && (next_numeric != numeric || (numeric && individual))) {
      piece(text.substr(begin, place - begin));
      begin = place;
    }
    numeric = next_numeric;
    place += next.size;
  }
  if (begin < text.size()) piece(text.substr(begin));
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& where) : regex_(kGpt2Pattern) {
  add(json, where + ": pre_tokenizer", 0);
  if (!byte_level_)
    throw FormatError({.what = "unsupported tokenizer component",
                       .where = where + ": pre_tokenizer",
                       .got = "no ByteLevel in it",
                       .wanted = "byte-level BPE"});
}

void PreTokenizer::add(const Json& json, const std::string& where, int depth) {
  const JsonObject step(json, where);
  const std::string type = step.string("type");
  if (byte_level_)
    throw FormatError({.what = "unsupported tokenizer component",
                       .where = where,
                       .got = type + " after ByteLevel",
                       .wanted = "ByteLevel as the last step"});
  if (type == "Sequence" && depth < kMaxDepth) {
    const Json& steps = step.value("pretokenizers");
    if (!steps.is_array())
      throw FormatError({.what = "a value has the wrong type", .where = where + ": pretokenizers", .wanted = "a list"});
    for (const Json& inner : steps) add(inner, where + ": " + type, depth + 1);
  } else if (type == "Digits") {
    digits_.push_back(step.boolean("individual_digits", false));
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    add_prefix_space_ = step.boolean("add_prefix_space", true);
    use_regex_ = step.boolean("use_regex", true);
  } else {
    throw FormatError({.what = "unsupported tokenizer component",
                       .where = where,
                       .got = type,
                       .wanted = "ByteLevel, Digits or a Sequence of them"});
  }
}

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  if (!text.empty()) split_from(0, text, piece);
}

void PreTokenizer::split_from(size_t step, std::string_view text,
                              const std::function<void(std::string_view)>& piece) const {
  if (step < digits_.size())
    return split_digits(text, digits_[step], [&](std::string_view part) { split_from(step + 1, part, piece); });
  std::string prefixed;
  if (add_prefix_space_ && !text.starts_with(' ')) {
    prefixed.append(1, ' ').append(text);
    text = prefixed;
  }
  if (use_regex_)
    regex_.split(text, piece);
  else
    piece(text);
}

}  // namespace lockstep::text
