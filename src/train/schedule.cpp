#include "train/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace lockstep::train {

DecayStyle parse_decay_style(const std::string& name) {
  if (name == "constant") return DecayStyle::constant;
  if (name == "linear") return DecayStyle::linear;
  if (name == "cosine") return DecayStyle::cosine;
  throw ConfigError({.what = "unknown learning-rate decay",
                     .where = "--lr-decay-style",
                     .got = name,
                     .wanted = "constant, linear or cosine"});
}

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (style == DecayStyle::constant) return lr;
  if (step >= decay_steps) return min_lr;
  const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const double left = style == DecayStyle::linear ? 1.0 - done : 0.5 * (std::cos(std::numbers::pi * done) + 1.0);
  return min_lr + left * (lr - min_lr);
}

}  // namespace lockstep::train
