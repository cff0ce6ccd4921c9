// Texts filled up to a width: str.ljust and its like, and the fields of formats.
#include "text/jinja/methods.h"

namespace lockstep::text::jinja {

std::string padded(Runtime& runtime, const std::string& text, Int width, char align, const std::string& fill) {
  const Int size = static_cast<Int>(count_characters(text));
  if (width <= size) return text;
  if (width - size > Int{1} << 34) runtime.exhausted("many bytes");
  const int64_t missing = static_cast<int64_t>(width - size);
  runtime.charge(text.size() + static_cast<size_t>(missing) * fill.size());
  const int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2;
  std::string out;
  out.reserve(text.size() + static_cast<size_t>(missing) * fill.size());
  const auto put_fill = [&](int64_t count) {
    if (fill.size() == 1) return void(out.append(static_cast<size_t>(count), fill[0]));
    runtime.pass_slowly(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out += fill;
  };
  put_fill(left);
  out += text;
  put_fill(missing - left);
  return out;
}

}  // namespace lockstep::text::jinja
