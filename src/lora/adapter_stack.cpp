#include "lora/adapter_stack.h"

#include <algorithm>
#include <bit>

#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/lora.h"

namespace lockstep::lora {
namespace {

// Sums over ranks are made in groups of 16: the groups of two adapters must not mix.
int64_t stacked_rank(int64_t rank, int64_t places) {
  constexpr int64_t kGroup = 16;
  return (rank + kGroup - 1) / kGroup * kGroup * places;
}

std::shared_ptr<const AdapterLayout> stacked_layout(const AdapterLayout& each, int64_t places) {
  constexpr int64_t kAlignFloats = 16;
  auto layout = std::make_shared<AdapterLayout>(each);
  layout->num_floats = 0;
  const auto tensor = [&](int64_t floats) {
    return std::exchange(layout->num_floats,
                         layout->num_floats + (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats);
  };
  for (Pair& pair : layout->pairs) {
    pair.rank = stacked_rank(pair.rank, places);
    pair.a_offset = tensor(pair.rank * pair.in);
    pair.b_offset = tensor(pair.rank * pair.out);
  }
  layout->num_trained = 0;
  return layout;
}

void copy_rows(const ConstTensor& to, int64_t row, const ConstTensor& from, Stream& stream) {
  const auto row_bytes = static_cast<size_t>(to.row_stride * dtype_bytes(to.dtype));
  copy(static_cast<char*>(const_cast<void*>(to.data)) + static_cast<size_t>(row) * row_bytes, from.data,
       static_cast<size_t>(from.shape[0]) * row_bytes, stream);
}

}  // namespace

int64_t AdapterStack::places_for(size_t count) {
  return static_cast<int64_t>(std::bit_ceil(count));
}

bool AdapterStack::fits(const AdapterLayout& layout, int64_t places) {
  return is_plain(layout) && std::ranges::all_of(layout.pairs, [&](const Pair& pair) {
           return stacked_rank(pair.rank, places) <= kernels::kMaxStackedRank;
         });
}

AdapterStack::AdapterStack(std::shared_ptr<const AdapterLayout> each, int64_t places, Stream& stream)
    : each_(std::move(each)), held_(static_cast<size_t>(places)) {
  version_.layout = stacked_layout(*each_, places);
  version_.weights = std::make_shared<const Buffer>(weight_bytes(*version_.layout, stream.device()), Buffer::Fill::zero,
                                                    stream.device());
}

std::optional<std::vector<int64_t>> AdapterStack::place(std::span<const AdapterVersion* const> adapters,
                                                        Stream& stream) {
  std::vector<int64_t> places(adapters.size(), -1);
  std::vector<bool> taken(held_.size());
  for (size_t i = 0; i < adapters.size(); ++i) {
    const auto found = std::ranges::find(held_, adapters[i]->weights);
    if (found == held_.end()) continue;
    places[i] = found - held_.begin();
    taken[static_cast<size_t>(places[i])] = true;
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (places[i] >= 0) continue;
    if (!kernels::all_finite(working_weights(*adapters[i]->weights, *each_), stream)) return std::nullopt;
    places[i] = std::ranges::find(taken, false) - taken.begin();
    taken[static_cast<size_t>(places[i])] = true;
    copy_to(places[i], *adapters[i], stream);
  }
  return places;
}

void AdapterStack::copy_to(int64_t place, const AdapterVersion& adapter, Stream& stream) {
  std::shared_ptr<const Buffer>& held = held_[static_cast<size_t>(place)];
  held = nullptr;
  for (size_t i = 0; i < each_->pairs.size(); ++i) {
    const Pair& from = each_->pairs[i];
    const Pair& to = version_.layout->pairs[i];
    const int64_t rank = place * (to.rank / places());
    copy_rows(version_.a(to), rank, adapter.a(from), stream);
    copy_rows(version_.b(to), rank, adapter.b(from), stream);
  }
  held = adapter.weights;
}

}  // namespace lockstep::lora
