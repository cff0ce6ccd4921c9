// Learning-rate schedules, with Megatron's names and values. s counts completed optimizer steps, so the first step uses
// lr(0); W = warmup_steps, D = decay_steps.
//   s < W        lr * s / W: from 0, whatever min_lr is
//   W <= s < D   min_lr + c (lr - min_lr), x = (s - W) / (D - W), c = 1 - x (linear) or (1 + cos(pi x)) / 2 (cosine)
//   D <= s       min_lr
// constant: lr from W on. WSD (warm-up, stable, decay), with N = wsd_decay_steps: c = 1 up to s = D - N, from there,
// with y = (s - (D - N)) / N, what wsd_style says: 1 - y (linear), (1 + cos(pi y)) / 2 (cosine), 2 * 0.5^y - 1
// (exponential), 1 - sqrt(y) (minus_sqrt). Source: Megatron-LM, core/optimizer_param_scheduler.py.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::train {

enum class DecayStyle { constant, linear, cosine, wsd };
DecayStyle parse_decay_style(const std::string& name);  // "constant", "linear", "cosine", "WSD"; ConfigError
const char* decay_style_name(DecayStyle style);

enum class WsdStyle { exponential, linear, cosine, minus_sqrt };
WsdStyle parse_wsd_style(const std::string& name);  // ConfigError

struct Schedule {
  double lr = 1e-6, min_lr = 0;
  DecayStyle style = DecayStyle::constant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // includes the warm-up; constant ignores it
  WsdStyle wsd_style = WsdStyle::exponential;
  int64_t wsd_decay_steps = 0;  // the last ones of decay_steps

  double at(int64_t step) const;
};

}  // namespace lockstep::train
