// What a layer holds of a linear module, and the calls that run it with the adapters of a pass's rows.
#pragma once

#include <span>
#include <vector>

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

  // Whether some row's adapter may have something at this site.
  bool at(int64_t site) const { return tiles.num_tiles > 0 || lora::has_part(rows, site); }
  // Of rows [begin, end) as rows of their own, without gradients.
  RowAdapters part(int64_t begin, int64_t end) const;
};

// Of some rows, rising, as rows of their own.
std::vector<lora::AdapterRows> adapters_of_rows(std::span<const lora::AdapterRows> all, std::span<const int32_t> rows);
// The same with dropout. `host_rows` and `rows` (in the stream's memory) are the same numbers.
RowAdapters gather_adapters(const RowAdapters& all, std::span<const int32_t> host_rows, std::span<const int32_t> rows,
                            Arena& arena, Stream& stream);

// A linear layer with its adapters; must outlive the calls made from it.
class AdaptedLinear {
 public:
  // `h`: kernels::LinearAdapters. Scratch memory of the calls comes from `arena`.
  AdaptedLinear(const Linear& layer, const RowAdapters& adapters, Tensor h, Arena& arena)
      : AdaptedLinear(layer.weight, layer.bias.view(), layer.site, adapters, h, arena) {}
  AdaptedLinear(const kernels::PackedWeight& weight, ConstTensor bias, int64_t site, const RowAdapters& adapters,
                Tensor h, Arena& arena)
      : weight_(weight), bias_(bias), site_(adapters.rows, site) {
    adapters_ = {.segments = site_.segments(),
                 .tiles = adapters.tiles,
                 .site = site,
                 .dropout = adapters.dropout,
                 .h = site_.segments().empty() ? Tensor() : h,
                 .arena = &arena};
  }
  AdaptedLinear(const AdaptedLinear&) = delete;

  kernels::LinearCall forward(Tensor y, const kernels::LinearInput& input, ConstTensor residual = {}) const {
    return {.y = y, .input = input, .weight = weight_, .bias = bias_, .residual = residual, .adapters = adapters_};
  }
  // x: what forward's matmul read; y, residual: what forward wrote and read, or nothing (kernels::LinearBackwardCall).
  kernels::LinearBackwardCall backward(Tensor dx, ConstTensor dy, ConstTensor x, ConstTensor y = {},
                                       ConstTensor residual = {}) const {
    return {.dx = dx,
            .dy = dy,
            .weight = weight_,
            .x = x,
            .adapters = adapters_,
            .y = y,
            .bias = bias_,
            .residual = residual};
  }

 private:
  const kernels::PackedWeight& weight_;
  ConstTensor bias_;
  const lora::SiteAdapters site_;
  kernels::LinearAdapters adapters_;
};

}  // namespace lockstep::model
