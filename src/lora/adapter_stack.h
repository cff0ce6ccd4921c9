// Rows of a few versions in the launches that serve one adapter (GPU): the versions as one adapter of all their ranks,
// in which h is 0 wherever a rank is not of the row's version (kernels::RankRows). What is added for such a rank is
// exactly 0, so a row's bits are those of its version alone. Beside kernels::LoraTiles, which takes any adapters and
// any number of them, it saves two launches a layer's matmul.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/stream.h"
#include "lora/adapter.h"

namespace lockstep::lora {

class AdapterStack {
 public:
  // Places for so many adapters: `count` rounded up to a power of two.
  static int64_t places_for(size_t count);
  // Whether that many plain adapters of this layout may be stacked: their ranks together are few enough for the launch
  // of a matmul to take them along (kernels::kMaxStackedRank).
  static bool fits(const AdapterLayout& layout, int64_t places);

  static int64_t bytes(const AdapterLayout& layout, int64_t places);

  AdapterStack(std::shared_ptr<const AdapterLayout> each, int64_t places, Stream& stream);

  const std::shared_ptr<const AdapterLayout>& each() const { return each_; }  // of the adapters that it takes
  int64_t places() const { return static_cast<int64_t>(held_.size()); }
  const AdapterVersion& version() const { return version_; }  // all of them, at an address that stays

  // The place of each of these adapters of the stack's layout, which are copied there, queued on the stream, unless
  // they are there already. nullopt: an adapter has values that are not finite, and would spoil other rows.
  std::optional<std::vector<int64_t>> place(std::span<const AdapterVersion* const> adapters, Stream& stream);

 private:
  void copy_to(int64_t place, const AdapterVersion& adapter, Stream& stream);

  const std::shared_ptr<const AdapterLayout> each_;
  AdapterVersion version_;
  std::vector<std::weak_ptr<const Buffer>> held_;  // what a place is a copy of
  std::weak_ptr<const Buffer> not_finite_;         // the last that was refused
};

}  // namespace lockstep::lora
