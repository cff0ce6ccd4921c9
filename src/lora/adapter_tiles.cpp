#include "lora/adapter_tiles.h"

#include <algorithm>
#include <bit>

#include "core/transfer.h"

namespace lockstep::lora {
namespace {

template <class T>
void pad_to_power_of_two(std::vector<T>& list, size_t unit) {
  list.resize(std::bit_ceil(list.size() / unit) * unit);
}

void add_sites(AdapterTiles& all, const AdapterVersion& adapter) {
  for (const std::vector<int>& indices : adapter.layout->site_pairs) {
    kernels::LoraSite& site = all.sites.emplace_back();
    for (const int index : indices) {
      const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
      site.pair[site.count++] = {.a = adapter.a(pair).data,
                                 .b = adapter.b(pair).data,
                                 .rank = static_cast<int32_t>(pair.rank),
                                 .in = static_cast<int32_t>(pair.in),
                                 .out = static_cast<int32_t>(pair.out),
                                 .out_begin = static_cast<int32_t>(pair.out_begin),
                                 .scale = pair.scale};
      all.max_rank = std::max(all.max_rank, pair.rank);
    }
  }
}

}  // namespace

kernels::LoraTiles AdapterTiles::on_device(const kernels::LoraTile* device_tiles,
                                           const kernels::LoraSite* device_sites) const {
  return {.tiles = device_tiles,
          .num_tiles = static_cast<int64_t>(tiles.size()),
          .sites = device_sites,
          .num_sites = num_sites,
          .max_rank = max_rank};
}

AdapterTiles tiles_of(std::span<const AdapterRows> rows) {
  AdapterTiles all;
  std::vector<const AdapterVersion*> adapters;
  for (const AdapterRows& run : rows) {
    if (!run.adapter || run.rows == 0) continue;
    auto known = std::ranges::find(adapters, run.adapter);
    if (known == adapters.end()) {
      adapters.push_back(run.adapter);
      known = std::prev(adapters.end());
      add_sites(all, *run.adapter);
    }
    const auto number = static_cast<int32_t>(known - adapters.begin());
    for (int64_t r = 0; r < run.rows; r += kernels::kLoraTileRows)
      all.tiles.push_back({.row_begin = static_cast<int32_t>(run.row_begin + r),
                           .rows = static_cast<int32_t>(std::min<int64_t>(kernels::kLoraTileRows, run.rows - r)),
                           .adapter = number});
  }
  if (all.empty()) return all;
  all.num_sites = static_cast<int64_t>(all.sites.size() / adapters.size());
  pad_to_power_of_two(all.tiles, 1);
  pad_to_power_of_two(all.sites, static_cast<size_t>(all.num_sites));
  all.max_rank = std::max<int64_t>(16, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(all.max_rank))));
  return all;
}

kernels::LoraTiles place_tiles(const AdapterTiles& tiles, Arena& arena, Stream& stream) {
  if (tiles.empty()) return {};
  return tiles.on_device(upload(std::span(tiles.tiles), arena, stream).data(),
                         upload(std::span(tiles.sites), arena, stream).data());
}

}  // namespace lockstep::lora
