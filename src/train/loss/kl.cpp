#include "train/loss/kl.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lockstep::train {

namespace {

constexpr double kMaxLowVar = 10;

bool is_low_var(KlType type) {
  return type == KlType::low_var || type == KlType::low_var_plus;
}

bool is_plus(KlType type) {
  return type == KlType::k3_plus || type == KlType::low_var_plus;
}

// The estimate before low_var is clamped and before "+" replaces the gradient.
Estimate estimate_plain(KlType type, double k1) {
  switch (type) {
    case KlType::k1: return {k1, 1};
    case KlType::abs: return {std::abs(k1), k1 > 0 ? 1.0 : k1 < 0 ? -1.0 : 0.0};
    case KlType::k2: return {0.5 * k1 * k1, k1};
    default: break;
  }
  const double inverse_ratio = std::exp(-k1);
  return {inverse_ratio - 1 + k1, 1 - inverse_ratio};
}

Estimate clamped(KlType type, const Estimate& estimate) {
  if (is_low_var(type) && estimate.value > kMaxLowVar) return {kMaxLowVar, 0};
  return estimate;
}

}  // namespace

Estimate estimate_kl(KlType type, double k1) {
  Estimate estimate = clamped(type, estimate_plain(type, k1));
  if (is_plus(type)) estimate.slope = k1;
  return estimate;
}

Estimate estimate_unbiased_kl(KlType type, double k1, double ratio, double ratio_slope) {
  const Estimate plain = is_plus(type) ? estimate_kl(type, k1) : estimate_plain(type, k1);
  const Estimate product{ratio * plain.value, ratio_slope * plain.value + ratio * plain.slope};
  return is_plus(type) ? product : clamped(type, product);
}

double kl_estimate(KlType type, double logprob, double ref_logprob) {
  return estimate_kl(type, logprob - ref_logprob).value;
}

namespace {

constexpr struct {
  const char* name;
  KlType type;
} kNames[] = {{"k1", KlType::k1},   {"kl", KlType::k1},       {"k2", KlType::k2},
              {"mse", KlType::k2},  {"k3", KlType::k3},       {"low_var_kl", KlType::low_var},
              {"abs", KlType::abs}, {"k3+", KlType::k3_plus}, {"low_var_kl+", KlType::low_var_plus}};

}  // namespace

const char* kl_type_name(KlType type) {
  for (const auto& known : kNames)
    if (type == known.type) return known.name;
  return "";
}

KlType parse_kl_type(const std::string& name) {
  for (const auto& known : kNames)
    if (name == known.name) return known.type;
  throw ConfigError({.what = "unknown KL estimator",
                     .where = "PolicyLoss::kl_type",
                     .got = name,
                     .wanted = "k1, k2, k3, low_var_kl, abs, k3+ or low_var_kl+"});
}

}  // namespace lockstep::train
