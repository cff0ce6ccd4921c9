#include "train/row_choice.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/random.h"

namespace lockstep::train {

namespace {

struct Place {
  size_t sample = 0, row = 0;
  double covariance = 0;
};

std::vector<Place> trained_rows(std::span<const Datum> datums) {
  std::vector<Place> places;
  for (size_t i = 0; i < datums.size(); ++i)
    for (size_t t = 0; t < datums[i].weights.size(); ++t)
      if (datums[i].weights[t] > 0) places.push_back({i, t});
  return places;
}

void set_covariances(std::span<Place> places, std::span<const Datum> datums, std::span<const RowOutputs> outputs) {
  double advantage = 0, logprob = 0;
  for (const Place& place : places) {
    advantage += datums[place.sample].advantages[place.row];
    logprob += outputs[place.sample].logprob[place.row];
  }
  advantage /= static_cast<double>(places.size());
  logprob /= static_cast<double>(places.size());
  for (Place& place : places)
    place.covariance =
        (datums[place.sample].advantages[place.row] - advantage) * (outputs[place.sample].logprob[place.row] - logprob);
}

float& weight_at(std::span<Datum> datums, const Place& place) {
  Datum& datum = datums[place.sample];
  if (datum.policy_weights.empty()) datum.policy_weights.assign(datum.weights.size(), 1.0f);
  return datum.policy_weights[place.row];
}

bool is_clipped(const PolicyLoss& loss, const Datum& datum, const Place& place, double logprob) {
  const double ratio = std::exp(logprob - datum.policy_logprobs[place.row]), advantage = datum.advantages[place.row];
  return -std::clamp(ratio, 1.0 - loss.clip_low, 1.0 + loss.clip_high) * advantage > -ratio * advantage;
}

void require_sensible(const RowChoice& choice) {
  const bool sensible = choice.share > 0 && choice.share <= 1 && choice.cov_low <= choice.cov_high &&
                        choice.top_entropy_quantile > 0 && choice.top_entropy_quantile <= 1;
  if (!sensible)
    throw ConfigError({.what = "an impossible choice of rows",
                       .where = "RowChoice",
                       .got = "share " + std::to_string(choice.share) + ", covariances " +
                              std::to_string(choice.cov_low) + " to " + std::to_string(choice.cov_high) +
                              ", entropy quantile " + std::to_string(choice.top_entropy_quantile),
                       .wanted = "a share and a quantile above 0 and up to 1, bounds in order"});
}

size_t count_of(const RowChoice& choice, size_t rows) {
  return std::max<size_t>(1, static_cast<size_t>(choice.share * static_cast<double>(rows)));
}

void drop_entropies_below(double quantile, std::span<const Place> places, std::span<Datum> datums,
                          std::span<const RowOutputs> outputs) {
  const auto entropy = [&](const Place& place) { return outputs[place.sample].entropy[place.row]; };
  std::vector<float> sorted;
  for (const Place& place : places) sorted.push_back(entropy(place));
  std::ranges::sort(sorted);
  const double rank = (1 - quantile) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double threshold = sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
  for (const Place& place : places)
    if (entropy(place) < threshold) weight_at(datums, place) = 0;
}

void drop_drawn(const RowChoice& choice, const PolicyLoss& loss, std::span<const Place> places, std::span<Datum> datums,
                std::span<const RowOutputs> outputs, uint64_t seed, uint32_t step) {
  std::vector<std::pair<uint32_t, Place>> candidates;
  for (const Place& place : places) {
    const bool open = place.covariance > choice.cov_low && place.covariance < choice.cov_high;
    if (!open || is_clipped(loss, datums[place.sample], place, outputs[place.sample].logprob[place.row])) continue;
    const Counter counter{step, static_cast<uint32_t>(place.sample), static_cast<uint32_t>(place.row), 0};
    candidates.emplace_back(philox(seed, counter)[0], place);
  }
  std::ranges::stable_sort(candidates, {}, [](const auto& candidate) { return candidate.first; });
  candidates.resize(std::min(candidates.size(), count_of(choice, places.size())));
  for (const auto& [draw, place] : candidates) weight_at(datums, place) = 0;
}

void penalize_largest(const RowChoice& choice, std::vector<Place> places, std::span<Datum> datums) {
  const size_t count = count_of(choice, places.size());
  std::ranges::stable_sort(places, std::ranges::greater(), &Place::covariance);
  places.resize(std::min(places.size(), count));
  for (Datum& datum : datums) datum.penalties.assign(datum.weights.size(), 0.0f);
  for (const Place& place : places) datums[place.sample].penalties[place.row] = static_cast<float>(choice.penalty);
}

}  // namespace

void choose_rows(const RowChoice& choice, const PolicyLoss& loss, std::span<Datum> datums,
                 std::span<const RowOutputs> outputs, uint64_t seed, uint32_t step) {
  require_sensible(choice);
  std::vector<Place> places = trained_rows(datums);
  if (places.empty()) return;
  if (choice.top_entropy_quantile < 1) drop_entropies_below(choice.top_entropy_quantile, places, datums, outputs);
  if (choice.kind == RowChoiceKind::none) return;
  set_covariances(places, datums, outputs);
  if (choice.kind == RowChoiceKind::kl_cov)
    penalize_largest(choice, std::move(places), datums);
  else
    drop_drawn(choice, loss, places, datums, outputs, seed, step);
}

double mean_entropy(std::span<const Datum> datums, std::span<const RowOutputs> outputs) {
  double sum = 0, rows = 0;
  for (size_t i = 0; i < datums.size(); ++i)
    for (size_t t = 0; t < datums[i].weights.size(); ++t)
      if (datums[i].weights[t] > 0) {
        sum += outputs[i].entropy[t];
        ++rows;
      }
  return rows > 0 ? sum / rows : 0;
}

}  // namespace lockstep::train
