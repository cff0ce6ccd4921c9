#include "text/normal_form.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

using Char = AlignedText::Char;

constexpr uint32_t kSyllables = 0xAC00, kNumSyllables = 11172;
constexpr uint32_t kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7, kNumVowels = 21, kNumTrailing = 28;

// Takes decomposed characters and keeps runs of marks in the order of their classes.
class Decomposer {
 public:
  explicit Decomposer(size_t bytes) { chars_.reserve(bytes); }

  void add(uint32_t code, int32_t change) {
    const uint8_t mark_class = code < 0x300 ? 0 : unicode::combining_class(code);
    if (mark_class == 0) order_marks();
    chars_.push_back({code, change});
    if (mark_class == 0)
      num_ordered_ = chars_.size();
    else
      classes_.push_back(mark_class);
  }
  void add_all(std::span<const uint32_t> codes) {
    for (size_t i = 0; i < codes.size(); ++i) add(codes[i], i == 0 ? 0 : 1);
  }
  std::vector<Char> take() {
    order_marks();
    return std::move(chars_);
  }

 private:
  // A stable sort of the marks since the last character that is none.
  void order_marks() {
    if (classes_.size() > 1 && !std::ranges::is_sorted(classes_)) {
      std::vector<std::pair<uint8_t, Char>> marks;
      for (size_t i = 0; i < classes_.size(); ++i) marks.push_back({classes_[i], chars_[num_ordered_ + i]});
      std::ranges::stable_sort(marks, {}, [](const auto& mark) { return mark.first; });
      for (size_t i = 0; i < marks.size(); ++i) chars_[num_ordered_ + i] = marks[i].second;
    }
    num_ordered_ = chars_.size();
    classes_.clear();
  }

  std::vector<Char> chars_;
  size_t num_ordered_ = 0;
  std::vector<uint8_t> classes_;  // of the characters behind num_ordered_
};

std::vector<Char> decomposed(std::string_view text, bool compatible) {
  Decomposer out(text.size());
  for (size_t place = 0, size = 0; place < text.size(); place += size) {
    const uint32_t code = code_at(text.data(), place, size);
    if (code < 0xA0) {
      out.add(code, 0);
    } else if (const uint32_t index = code - kSyllables; index < kNumSyllables) {
      const uint32_t jamo[] = {kLeading + index / (kNumVowels * kNumTrailing),
                               kVowels + index / kNumTrailing % kNumVowels, kTrailing + index % kNumTrailing};
      out.add_all(std::span(jamo, jamo[2] == kTrailing ? 2 : 3));
    } else {
      std::optional<std::span<const uint32_t>> text_of;
      if (compatible) text_of = unicode::mapped(unicode::kCompatible, unicode::kCompatibleText, code);
      if (!text_of) text_of = unicode::mapped(unicode::kCanonical, unicode::kCanonicalText, code);
      if (text_of)
        out.add_all(*text_of);
      else
        out.add(code, 0);
    }
  }
  return out.take();
}

// In place. A mark joins the last starter unless one of its own or a higher class stands between them.
void compose(std::vector<Char>& chars) {
  size_t num_out = 0;
  std::optional<size_t> starter;
  std::optional<uint8_t> last_class;
  for (size_t i = 0; i < chars.size(); ++i) {
    const Char c = chars[i];
    const uint8_t mark_class = c.code < 0x300 ? 0 : unicode::combining_class(c.code);
    if (starter && (!last_class || *last_class < mark_class) && c.code >= 0x300) {
      if (const auto joined = unicode::compose(chars[*starter].code, c.code)) {
        chars[*starter] = {*joined, chars[*starter].change + c.change - 1};
        continue;
      }
    }
    if (mark_class == 0) {
      starter = num_out;
      last_class.reset();
    } else if (starter) {
      last_class = mark_class;
    }
    chars[num_out++] = c;
  }
  chars.resize(num_out);
}

}  // namespace

bool surely_normal(NormalForm form, std::string_view text) {
  const unicode::Bits* bits = unicode::bit_table();
  for (size_t place = 0, size = 0; place < text.size(); place += size) {
    const uint32_t code = code_at(text.data(), place, size);
    if (code < 0x80) continue;
    if (form != NormalForm::nfc || (code >= 0x300 && (bits[code] & unicode::kUnsafeForNfcBit) != 0)) return false;
  }
  return true;
}

std::vector<Char> normalized(NormalForm form, std::string_view text) {
  std::vector<Char> chars = decomposed(text, form == NormalForm::nfkc || form == NormalForm::nfkd);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) compose(chars);
  return chars;
}

}  // namespace lockstep::text
