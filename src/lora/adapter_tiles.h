// Few rows of many adapters, in one launch (GPU).
#pragma once

#include <span>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/lora.h"
#include "lora/site_adapters.h"

namespace lockstep::lora {

// What kernels::LoraTiles points at, in host memory. Sites are those of lora::Module.
struct AdapterTiles {
  std::vector<kernels::LoraTile> tiles;
  std::vector<kernels::LoraSite> sites;  // [adapters, num_sites]
  int64_t num_sites = 0, max_rank = 0;

  bool empty() const { return tiles.empty(); }
  // With these copies in the GPU's memory.
  kernels::LoraTiles on_device(const kernels::LoraTile* tiles, const kernels::LoraSite* sites) const;
};

// Tiles of all rows that have an adapter; the adapters are of one model and lie on the GPU. Tiles and adapters are
// padded to powers of two, and the rank, so that few sizes occur.
AdapterTiles tiles_of(std::span<const AdapterRows> rows);
kernels::LoraTiles place_tiles(const AdapterTiles& tiles, Arena& arena, Stream& stream);

}  // namespace lockstep::lora
