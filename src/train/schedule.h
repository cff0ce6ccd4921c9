// Learning-rate schedules (Megatron's names). Step counts completed optimizer steps, so the first step uses lr(0).
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::train {

enum class DecayStyle { constant, linear, cosine };
DecayStyle parse_decay_style(const std::string& name);  // ConfigError

struct Schedule {
  double lr = 1e-6, min_lr = 0;
  DecayStyle style = DecayStyle::constant;
  int64_t warmup_steps = 0;   // lr(s) = lr * (s + 1) / (warmup_steps + 1) while s < warmup_steps
  int64_t decay_steps = 0;    // total steps including warm-up; lr stays at min_lr after them (constant: ignored)

  double at(int64_t step) const;
};

}  // namespace lockstep::train
