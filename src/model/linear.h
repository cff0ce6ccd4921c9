// What a layer holds of a linear module, and the calls that run it with the adapters of a pass's rows.
#pragma once

#include "core/memory.h"
#include "kernels/linear.h"
#include "lora/site_adapters.h"

namespace lockstep::model {

// A norm weight or a bias: f32 for the kernels, and the storage type it came in.
struct Vector {
  Buffer values;  // f32, on the stream's device
  int64_t size = 0;
  DType dtype = DType::f32;
  ConstTensor view() const { return size == 0 ? ConstTensor() : ConstTensor(values.data(), DType::f32, {size}); }
};

// A weight, stacked of the modules that read one input; its bias, or none; and its site (lora::Module).
struct Linear {
  kernels::PackedWeight weight;
  Vector bias = {};
  int64_t site = 0;
};

// What the linear layers of a pass share: whose adapters which rows use.
struct RowAdapters {
  std::vector<lora::AdapterRows> rows;  // neighbours with one adapter are one entry
  kernels::LoraTiles tiles;             // on a GPU: short runs of rows with an adapter, which are not in `rows`
  kernels::LoraDropout dropout;

  // Whether some row's adapter may have a pair at this site.
  bool at(int64_t site) const { return tiles.num_tiles > 0 || lora::has_pairs(rows, site); }
};

// A linear layer with its adapters; must outlive the calls made from it.
class AdaptedLinear {
 public:
  // `h`: kernels::LinearAdapters. Scratch memory of the calls comes from `arena`.
  AdaptedLinear(const Linear& layer, const RowAdapters& adapters, Tensor h, Arena& arena)
      : layer_(layer), site_(adapters.rows, layer.site) {
    adapters_ = {.segments = site_.segments(),
                 .tiles = adapters.tiles,
                 .site = layer.site,
                 .dropout = adapters.dropout,
                 .h = site_.segments().empty() ? Tensor() : h,
                 .arena = &arena};
  }
  AdaptedLinear(const AdaptedLinear&) = delete;

  kernels::LinearCall forward(Tensor y, const kernels::LinearInput& input, ConstTensor residual = {}) const {
    return {.y = y,
            .input = input,
            .weight = layer_.weight,
            .bias = layer_.bias.view(),
            .residual = residual,
            .adapters = adapters_};
  }
  // x: what forward's matmul read.
  kernels::LinearBackwardCall backward(Tensor dx, ConstTensor dy, ConstTensor x) const {
    return {.dx = dx, .dy = dy, .weight = layer_.weight, .x = x, .adapters = adapters_};
  }

 private:
  const Linear& layer_;
  const lora::SiteAdapters site_;
  kernels::LinearAdapters adapters_;
};

}  // namespace lockstep::model
