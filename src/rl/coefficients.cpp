#include "rl/coefficients.h"

#include <algorithm>

namespace lockstep::rl {

double adapted_kl(const KlControl& control, double coef, double kl, double samples) {
  constexpr double kMaxError = 0.2;
  if (control.target == 0) return coef;
  const double error = std::clamp(kl / control.target - 1, -kMaxError, kMaxError);
  return coef * (1 + error * samples / control.horizon);
}

double adapted_entropy(const EntropyControl& control, double coef, double entropy) {
  return std::clamp(entropy < control.target ? coef + control.step : coef - control.step, control.low, control.high);
}

}  // namespace lockstep::rl
