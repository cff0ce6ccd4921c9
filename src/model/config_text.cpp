#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "model/spec.h"

namespace lockstep::model {

namespace {

const char* rope_name(RopeType type) {
  switch (type) {
    case RopeType::standard: return "standard";
    case RopeType::linear: return "linear";
    case RopeType::llama3: return "llama3";
  }
  return "?";
}

// One line for each value; what a kind of RoPE does not read is left out.
class Text {
 public:
  template <class T>
  void operator()(const char* name, const T& value) {
    text_ += fmt::format("{} {}\n", name, value);
  }
  void operator()(const char* name, const std::vector<int64_t>& values) {
    (*this)(name, fmt::format("{}", fmt::join(values, ",")));
  }
  void operator()(const char* name, const RopeConfig& rope) {
    (*this)(name, rope_name(rope.type));
    (*this)("rope_theta", rope.theta);
    if (rope.type != RopeType::standard) (*this)("rope_factor", rope.factor);
    if (rope.type != RopeType::llama3) return;
    (*this)("rope_low_freq_factor", rope.low_freq_factor);
    (*this)("rope_high_freq_factor", rope.high_freq_factor);
    (*this)("rope_original_max_positions", rope.original_max_positions);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

std::string canonical_text(const ModelSpec& config) {
  Text text;
  for_each_field(config, text);
  return text.take();
}

}  // namespace lockstep::model
