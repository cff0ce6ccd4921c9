#include "lora/site_adapters.h"

#include <algorithm>

namespace lockstep::lora {
namespace {

std::span<const int> pairs_at(const AdapterRows& rows, int64_t site) {
  if (rows.adapter == nullptr) return {};
  return rows.adapter->layout->pairs_at(site);
}

std::span<const OwnTensors> own_at(const AdapterRows& rows, int64_t site) {
  if (rows.adapter == nullptr) return {};
  return own_tensors_at(*rows.adapter->layout, site);
}

const AdapterExtras::Site* extras_at(const AdapterRows& rows, int64_t site) {
  return rows.adapter && rows.adapter->extras ? rows.adapter->extras->at(site) : nullptr;
}

}  // namespace

bool has_part(std::span<const AdapterRows> rows, int64_t site) {
  return std::ranges::any_of(rows, [&](const AdapterRows& part) {
    return !pairs_at(part, site).empty() || !own_at(part, site).empty() || extras_at(part, site) != nullptr;
  });
}

bool has_magnitudes(std::span<const AdapterRows> rows, int64_t site) {
  return std::ranges::any_of(rows, [&](const AdapterRows& part) {
    return std::ranges::any_of(own_at(part, site), [](const OwnTensors& own) { return own.magnitude != kAbsent; });
  });
}

SiteAdapters::SiteAdapters(std::span<const AdapterRows> rows, int64_t site) {
  size_t pairs = 0, own = 0;
  for (const AdapterRows& part : rows) {
    pairs += 2 * pairs_at(part, site).size();
    own += own_at(part, site).size();
  }
  pairs_.reserve(pairs);  // segments point into these
  trained_.reserve(own);
  for (const AdapterRows& part : rows) {
    const AdapterExtras::Site* const extras = extras_at(part, site);
    if (pairs_at(part, site).empty() && !extras) continue;
    kernels::LoraSegment& segment = segments_.emplace_back(
        kernels::LoraSegment{.row_begin = part.row_begin, .rows = part.rows, .gradients = part.gradients});
    add_pairs(segment, part, site);
    if (!extras) continue;
    segment.factor = extras->factor;
    segment.bias = extras->bias;
    segment.weight = extras->weight.get();
    if (part.gradients) add_trained(segment, own_at(part, site), *extras);
  }
}

void SiteAdapters::add_pairs(kernels::LoraSegment& segment, const AdapterRows& part, int64_t site) {
  const size_t begin = pairs_.size();
  const auto add = [&](int index, bool subtracted) {
    const AdapterVersion& adapter = *part.adapter;
    const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
    if (subtracted && pair.a0_offset == kAbsent) return;
    pairs_.push_back({.a = subtracted ? adapter.a0(pair) : adapter.a(pair),
                      .b = subtracted ? adapter.b0(pair) : adapter.b(pair),
                      .out_begin = pair.out_begin,
                      .scale = subtracted ? -pair.scale : pair.scale,
                      .a_offset = pair.a_offset,
                      .b_offset = pair.b_offset,
                      .number = static_cast<uint32_t>(index),
                      .rank_rows = part.rank_rows});
  };
  const std::span<const int> indices = pairs_at(part, site);
  for (const int index : indices) add(index, false);
  const size_t middle = pairs_.size();
  for (const int index : indices) add(index, true);
  segment.pairs = std::span(pairs_).subspan(begin, middle - begin);
  segment.subtracted = std::span(pairs_).subspan(middle);
}

void SiteAdapters::add_trained(kernels::LoraSegment& segment, std::span<const OwnTensors> own,
                               const AdapterExtras::Site& extras) {
  const size_t begin = trained_.size();
  for (const OwnTensors& tensors : own) {
    if (tensors.weight != kAbsent) segment.weight_gradient = tensors.weight;
    if (tensors.magnitude == kAbsent && tensors.bias == kAbsent) continue;
    trained_.push_back({.begin = tensors.module.out_begin,
                        .count = tensors.module.out,
                        .magnitude = tensors.magnitude,
                        .bias = tensors.bias});
  }
  segment.inverse_norm = extras.inverse_norm;
  segment.inverse_magnitude = extras.inverse_magnitude;
  segment.trained = std::span(trained_).subspan(begin);
}

int64_t gradient_floats(const AdapterLayout& layout) {
  int64_t most = 0;
  for (const std::vector<int>& indices : layout.site_pairs) {
    int64_t floats = 0;
    for (const int index : indices) {
      const Pair& pair = layout.pairs[static_cast<size_t>(index)];
      floats += pair.rank * (pair.in + pair.out);
    }
    most = std::max(most, floats);
  }
  for (const OwnTensors& own : layout.own) most = std::max(most, own.module.out);
  return most;
}

}  // namespace lockstep::lora
