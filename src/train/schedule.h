// Learning-rate schedules, with Megatron's names and values. s counts completed optimizer steps, so the first step uses
// lr(0); W = warmup_steps, D = decay_steps.
//   s < W        lr * s / W: from 0, whatever min_lr is
//   W <= s < D   min_lr + c (lr - min_lr), x = (s - W) / (D - W), c = 1 - x (linear) or (1 + cos(pi x)) / 2 (cosine)
//   D <= s       min_lr
// constant: lr from W on. Source: Megatron-LM, core/optimizer_param_scheduler.py.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::train {

enum class DecayStyle { constant, linear, cosine };
DecayStyle parse_decay_style(const std::string& name);  // ConfigError

struct Schedule {
  double lr = 1e-6, min_lr = 0;
  DecayStyle style = DecayStyle::constant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // includes the warm-up; constant ignores it

  double at(int64_t step) const;
};

}  // namespace lockstep::train
