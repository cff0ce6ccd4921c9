#include "core/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "core/utf8.h"

namespace lockstep {

namespace {

struct CodeRange {
  uint32_t first, last;
};
constexpr CodeRange kWrittenOut[] = {
    {0x00, 0x1F},        // C0
    {0x7F, 0x9F},        // DEL, C1
    {0x61C, 0x61C},      // Arabic letter mark
    {0x180E, 0x180E},    // Mongolian vowel separator
    {0x200B, 0x200B},    // zero width space; the joiners behind it are parts of words and emoji
    {0x200E, 0x200F},    // left-to-right and right-to-left marks
    {0x2028, 0x202E},    // separators of lines and paragraphs; embeddings and overrides
    {0x2060, 0x206F},    // invisible operators; isolates
    {0xFEFF, 0xFEFF},    // zero width no-break space
    {0xFFF9, 0xFFFB},    // interlinear annotation
    {0xE0000, 0xE007F},  // tags
};

bool is_written_out(uint32_t code) {
  return std::ranges::any_of(kWrittenOut,
                             [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

// In JSON's words where it has a short one.
void append_written_out(std::string& out, uint32_t code) {
  if (code == '\n')
    out += "\\n";
  else if (code == '\r')
    out += "\\r";
  else if (code == '\t')
    out += "\\t";
  else if (code < 0x80)
    out += fmt::format("\\x{:02x}", code);
  else if (code <= 0xFFFF)
    out += fmt::format("\\u{:04x}", code);
  else
    out += fmt::format("\\U{:08x}", code);
}

// In a string of JSON, which has no controls of one byte but DEL.
void append_in_json(std::string& out, uint32_t code) {
  if (code <= 0xFFFF) {
    out += fmt::format("\\u{:04x}", code);
    return;
  }
  const uint32_t rest = code - 0x10000;
  out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
}

// `kept` are controls that pass.
std::string escaped(std::string_view text, std::string_view kept,
                    void (*append)(std::string&, uint32_t) = append_written_out) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = read_utf8(text);
    const std::string_view bytes = text.substr(0, next.size);
    text.remove_prefix(next.size);
    if (!next.valid)
      for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    else if (is_written_out(next.code) && (next.size > 1 || kept.find(bytes[0]) == std::string_view::npos))
      append(out, next.code);
    else
      out += bytes;
  }
  return out;
}

// Bytes at the end of `text` that more bytes could make a character of.
size_t cut_bytes(std::string_view text) {
  constexpr size_t kLongest = 4;
  for (size_t size = 1; size <= std::min(kLongest, text.size()); ++size) {
    const std::string_view tail = text.substr(text.size() - size);
    if (!begins_character(tail[0])) continue;
    const Utf8Char last = read_utf8(tail);
    return last.cut && last.size == size ? size : 0;
  }
  return 0;
}

constexpr std::string_view kLineControls = "\n\t", kStreamControls = "\n\t\r";

}  // namespace

std::string printable(std::string_view text, Lines lines) {
  return escaped(text, lines == Lines::kept ? kLineControls : "");
}

std::string printable_json(std::string_view json) {
  return escaped(json, "", append_in_json);
}

std::streamsize PrintableStream::Buffer::xsputn(const char* bytes, std::streamsize count) {
  std::string text = std::move(cut_);
  text.append(bytes, static_cast<size_t>(count));
  cut_ = text.substr(text.size() - cut_bytes(text));
  text.resize(text.size() - cut_.size());
  to_ << escaped(text, kStreamControls);
  return to_ ? count : 0;
}

PrintableStream::Buffer::int_type PrintableStream::Buffer::overflow(int_type byte) {
  if (traits_type::eq_int_type(byte, traits_type::eof())) return traits_type::not_eof(byte);
  const char c = traits_type::to_char_type(byte);
  return xsputn(&c, 1) == 1 ? byte : traits_type::eof();
}

int PrintableStream::Buffer::sync() {
  to_ << escaped(cut_, "");
  cut_.clear();
  return to_.flush() ? 0 : -1;
}

}  // namespace lockstep
