// The adapters of a batch's rows at one site of the model, as a linear call takes them. Batches hold rows of several
// adapters.
#pragma once

#include <span>
#include <vector>

#include "kernels/lora.h"
#include "lora/adapter.h"

namespace lockstep::lora {

// Consecutive rows of a batch and the adapter they use; nullptr is the base (the reference policy). Rows not listed are
// base rows.
struct AdapterRows {
  int64_t row_begin = 0, rows = 0;
  const AdapterVersion* adapter = nullptr;
  const kernels::GradientPlan* gradients = nullptr;  // backward: where those of these rows go, in the adapter's layout
  kernels::RankRows rank_rows = {};                  // `adapter` is an AdapterStack's
};

// Whether some row's adapter has anything at this site.
bool has_part(std::span<const AdapterRows> rows, int64_t site);
// Whether some row's adapter trains magnitudes there.
bool has_magnitudes(std::span<const AdapterRows> rows, int64_t site);

// Points into the adapters' weights; must outlive the calls that read its segments.
class SiteAdapters {
 public:
  SiteAdapters(std::span<const AdapterRows> rows, int64_t site);

  // Of the rows whose adapter has pairs or extras here, in order.
  std::span<const kernels::LoraSegment> segments() const { return segments_; }

 private:
  void add_pairs(kernels::LoraSegment& segment, const AdapterRows& part, int64_t site);
  void add_trained(kernels::LoraSegment& segment, std::span<const OwnTensors> own, const AdapterExtras::Site& extras);

  std::vector<kernels::LoraPair> pairs_;
  std::vector<kernels::TrainedOutputs> trained_;
  std::vector<kernels::LoraSegment> segments_;
};

using kernels::GradientRows;
// dA and dB of the site with most, or a magnitude or bias, in floats: for kernels::plan_gradients.
int64_t gradient_floats(const AdapterLayout& layout);

}  // namespace lockstep::lora
