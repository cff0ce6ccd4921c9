#include "train/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace lockstep::train {

namespace {

double wsd_left(WsdStyle style, double done) {
  switch (style) {
    case WsdStyle::linear: return 1.0 - done;
    case WsdStyle::cosine: return 0.5 * (std::cos(std::numbers::pi * done) + 1.0);
    case WsdStyle::minus_sqrt: return 1.0 - std::sqrt(done);
    case WsdStyle::exponential: break;
  }
  return 2.0 * std::pow(0.5, done) - 1.0;
}

constexpr const char* kStyles[] = {"constant", "linear", "cosine", "WSD"};
constexpr const char* kWsdStyles[] = {"exponential", "linear", "cosine", "minus_sqrt"};

}  // namespace

DecayStyle parse_decay_style(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kStyles[i]) return static_cast<DecayStyle>(i);
  throw ConfigError({.what = "unknown learning-rate decay",
                     .where = "Schedule::style",
                     .got = name,
                     .wanted = "constant, linear, cosine or WSD"});
}

const char* decay_style_name(DecayStyle style) {
  return kStyles[static_cast<int>(style)];
}

WsdStyle parse_wsd_style(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kWsdStyles[i]) return static_cast<WsdStyle>(i);
  throw ConfigError({.what = "unknown decay of WSD",
                     .where = "Schedule::wsd_style",
                     .got = name,
                     .wanted = "exponential, linear, cosine or minus_sqrt"});
}

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (style == DecayStyle::constant) return lr;
  if (step >= decay_steps) return min_lr;
  if (style == DecayStyle::wsd) {
    const int64_t decaying = step - (decay_steps - wsd_decay_steps);
    if (decaying <= 0) return lr;
    const double done = static_cast<double>(decaying) / static_cast<double>(wsd_decay_steps);
    return min_lr + wsd_left(wsd_style, done) * (lr - min_lr);
  }
  const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const double left = style == DecayStyle::linear ? 1.0 - done : 0.5 * (std::cos(std::numbers::pi * done) + 1.0);
  return min_lr + left * (lr - min_lr);
}

}  // namespace lockstep::train
