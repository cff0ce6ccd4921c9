#include "lora/site_adapters.h"

#include <algorithm>

namespace lockstep::lora {
namespace {

std::span<const int> pairs_at(const AdapterRows& rows, int64_t site) {
  if (rows.adapter == nullptr) return {};
  return rows.adapter->layout->pairs_at(site);
}

const AdapterExtras::Site* extras_at(const AdapterRows& rows, int64_t site) {
  return rows.adapter && rows.adapter->extras ? rows.adapter->extras->at(site) : nullptr;
}

}  // namespace

bool has_pairs(std::span<const AdapterRows> rows, int64_t site) {
  return std::ranges::any_of(rows, [&](const AdapterRows& part) { return !pairs_at(part, site).empty(); });
}

SiteAdapters::SiteAdapters(std::span<const AdapterRows> rows, int64_t site) {
  size_t count = 0;
  for (const AdapterRows& part : rows) count += pairs_at(part, site).size();
  pairs_.reserve(count);  // segments point into it
  for (const AdapterRows& part : rows) {
    const std::span<const int> indices = pairs_at(part, site);
    const AdapterExtras::Site* const extras = extras_at(part, site);
    if (indices.empty() && !extras) continue;
    const size_t begin = pairs_.size();
    for (const int index : indices) {
      const Pair& pair = part.adapter->layout->pairs[static_cast<size_t>(index)];
      pairs_.push_back({.a = part.adapter->a(pair),
                        .b = part.adapter->b(pair),
                        .out_begin = pair.out_begin,
                        .scale = pair.scale,
                        .a_offset = pair.a_offset,
                        .b_offset = pair.b_offset,
                        .number = static_cast<uint32_t>(index)});
    }
    segments_.push_back({.row_begin = part.row_begin,
                         .rows = part.rows,
                         .pairs = std::span(pairs_).subspan(begin, indices.size()),
                         .gradients = part.gradients});
    if (!extras) continue;
    segments_.back().magnitude = extras->magnitude;
    segments_.back().bias = extras->bias;
    segments_.back().weight = extras->weight.get();
  }
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
  return most;
}

}  // namespace lockstep::lora
