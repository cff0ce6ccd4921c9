#include "lora/adapter_stack.h"

#include <algorithm>
#include <bit>
#include <utility>

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

std::shared_ptr<AdapterLayout> stacked_layout(const AdapterLayout& each, int64_t places) {
  constexpr int64_t kAlign = 16;
  auto layout = std::make_shared<AdapterLayout>(each);
  layout->num_floats = layout->num_trained = 0;
  layout->value_head.reset();
  const auto tensor = [&](int64_t elements) {
    return std::exchange(layout->num_floats, layout->num_floats + (elements + kAlign - 1) / kAlign * kAlign);
  };
  for (Pair& pair : layout->pairs) {
    pair.rank = stacked_rank(pair.rank, places);
    pair.a_offset = tensor(pair.rank * pair.in);
    pair.b_offset = tensor(pair.rank * pair.out);
  }
  return layout;
}

// Whether the copy is of this buffer, and not of an earlier one at its address.
bool is_same(const std::weak_ptr<const Buffer>& copied, const std::shared_ptr<const Buffer>& buffer) {
  return !copied.owner_before(buffer) && !buffer.owner_before(copied);
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

int64_t AdapterStack::bytes(const AdapterLayout& layout, int64_t places) {
  return stacked_layout(layout, places)->num_floats * dtype_bytes(DType::bf16);
}

AdapterStack::AdapterStack(std::shared_ptr<const AdapterLayout> each, int64_t places, Stream& stream)
    : each_(std::move(each)), held_(static_cast<size_t>(places)) {
  version_.weights =
      std::make_shared<const Buffer>(static_cast<size_t>(bytes(*each_, places)), Buffer::Fill::zero, stream.device());
  auto layout = stacked_layout(*each_, places);
  layout->num_floats = 0;  // there are no master weights ahead of the working copy
  version_.layout = std::move(layout);
}

std::optional<std::vector<int64_t>> AdapterStack::place(std::span<const AdapterVersion* const> adapters,
                                                        Stream& stream) {
  std::vector<int64_t> places(adapters.size(), -1);
  std::vector<bool> taken(held_.size());
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (is_same(not_finite_, adapters[i]->weights)) return std::nullopt;
    // Two adapters may have one buffer: each needs a place of its own, for its rows.
    for (size_t place = 0; place < held_.size() && places[i] < 0; ++place)
      if (!taken[place] && is_same(held_[place], adapters[i]->weights)) {
        places[i] = static_cast<int64_t>(place);
        taken[place] = true;
      }
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (places[i] >= 0) continue;
    if (!kernels::all_finite(working_weights(*adapters[i]->weights, *each_), stream)) {
      not_finite_ = adapters[i]->weights;
      return std::nullopt;
    }
    places[i] = std::ranges::find(taken, false) - taken.begin();
    taken[static_cast<size_t>(places[i])] = true;
    copy_to(places[i], *adapters[i], stream);
  }
  return places;
}

void AdapterStack::copy_to(int64_t place, const AdapterVersion& adapter, Stream& stream) {
  std::weak_ptr<const Buffer>& held = held_[static_cast<size_t>(place)];
  held.reset();
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
