#include "parallel/tree_sum.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/memory.h"
#include "core/transfer.h"
#include "parallel/add_pieces.h"
#include "parallel/device_link.h"

namespace lockstep::parallel {

namespace {

constexpr int64_t kSliceBlocks = 64;                 // at most, of one rank at a time: 1 MiB
constexpr int64_t kDevicePiece = int64_t{32} << 20;  // floats that a GPU receives at a time: 128 MiB

struct Holding {
  int64_t floats = 0;
  bool partial = false;  // this rank has one
};

// Which ranks have a partial sum.
std::vector<bool> holders(const Holding& mine, Group& group) {
  std::vector<Holding> all(static_cast<size_t>(group.size()));
  group.all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&mine, 1)));
  std::vector<bool> present;
  for (const Holding& holding : all) {
    if (holding.floats != all[0].floats)
      throw ShapeError({.what = "the ranks add up arrays of different sizes",
                        .where = "tree_sum: rank " + std::to_string(present.size()),
                        .got = std::to_string(holding.floats) + " floats",
                        .wanted = std::to_string(all[0].floats) + ", as rank 0"});
    present.push_back(holding.partial);
  }
  if (std::ranges::find(present, true) == present.end())
    throw ShapeError({.what = "no rank has a partial sum", .where = "tree_sum"});
  return present;
}

// Of the ranks' slices of a piece of the array.
struct Slices {
  int64_t first, floats, slice;  // where the piece begins in the array, its size, and the size of a slice but the last
  int64_t begin(int64_t rank) const { return std::min(floats, rank * slice); }
  int64_t size(int64_t rank) const { return begin(rank + 1) - begin(rank); }
};

std::span<const std::byte> bytes_of(const float* from, int64_t floats) {
  return std::as_bytes(std::span(from, static_cast<size_t>(floats)));
}
std::span<std::byte> bytes_of(float* to, int64_t floats) {
  return std::as_writable_bytes(std::span(to, static_cast<size_t>(floats)));
}

// One piece of the array, between the GPUs: each rank gets all partial sums of its slice, adds them, and sends the sum
// to all.
void sum_between_devices(float* total, const float* partial, const Slices& slices, const std::vector<bool>& present,
                         const Buffer& received, Group& group, Stream& stream) {
  DeviceLink& link = *group.device_link();
  const auto ranks = present.size();
  const int me = group.rank();
  const int64_t mine = slices.size(me);
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<int64_t>(rank);
    if (partial != nullptr) to[rank] = bytes_of(partial + slices.first + slices.begin(r), slices.size(r));
    if (present[rank]) from[rank] = bytes_of(received.f32() + r * slices.slice, mine);
  }
  link.exchange(to, from, stream);
  float* const sum = total + slices.first + slices.begin(me);
  add_pieces(sum, mine,
             {.all = received.f32(),
              .stride = slices.slice,
              .own = partial == nullptr ? nullptr : partial + slices.first + slices.begin(me),
              .rank = me,
              .present = present},
             stream);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto r = static_cast<int64_t>(rank);
    to[rank] = bytes_of(static_cast<const float*>(sum), mine);
    from[rank] = bytes_of(total + slices.first + slices.begin(r), slices.size(r));
  }
  link.exchange(to, from, stream);
}

void sum_between_devices(float* total, const float* partial, int64_t floats, const std::vector<bool>& present,
                         Group& group, Stream& stream) {
  const int64_t ranks = group.size();
  const auto slice_of = [&](int64_t piece) {
    return (piece + ranks * cpu::kBlock - 1) / (ranks * cpu::kBlock) * cpu::kBlock;
  };
  const int64_t largest = std::min(floats, kDevicePiece);
  const Buffer received(static_cast<size_t>(ranks * slice_of(largest)) * sizeof(float), Buffer::Fill::none,
                        stream.device());
  for (int64_t first = 0; first < floats; first += kDevicePiece) {
    const int64_t piece = std::min(kDevicePiece, floats - first);
    sum_between_devices(total, partial, {.first = first, .floats = piece, .slice = slice_of(piece)}, present, received,
                        group, stream);
  }
  group.device_link()->wait(stream);
}

}  // namespace

void tree_sum(Tensor total, ConstTensor partial, Group& group, Stream& stream) {
  require_f32(total, {total.elements()}, "tree_sum", "total");
  const int64_t floats = total.elements();
  if (!partial.empty()) require_f32(partial, {floats}, "tree_sum", "partial");
  const std::vector<bool> present = holders({.floats = floats, .partial = !partial.empty()}, group);
  if (group.size() == 1) {
    if (total.data != partial.data) copy(total.data, partial.data, static_cast<size_t>(floats) * sizeof(float), stream);
    return;
  }
  if (group.device_link() != nullptr)
    return sum_between_devices(total.f32(), partial.empty() ? nullptr : partial.f32(), floats, present, group, stream);

  using cpu::kBlock;
  const int64_t ranks = group.size(), blocks = (floats + kBlock - 1) / kBlock;
  const int64_t most = std::min(kSliceBlocks, (blocks + ranks - 1) / ranks);  // blocks of a slice
  const auto slices_bytes = static_cast<size_t>(ranks * most * kBlock) * sizeof(float);
  const Buffer ours(slices_bytes), theirs(slices_bytes);  // zeroed: the last round sends more than there is
  const auto first_present = std::ranges::find(present, true) - present.begin();
  for (int64_t block = 0; block < blocks; block += ranks * most) {
    const int64_t slice = std::min(most, (blocks - block + ranks - 1) / ranks);
    const int64_t piece = slice * kBlock, first = block * kBlock;
    const auto bytes = static_cast<size_t>(std::min(ranks * piece, floats - first)) * sizeof(float);
    const auto piece_bytes = static_cast<size_t>(piece) * sizeof(float);
    const auto span_of = [&](const Buffer& buffer) {
      return std::span(static_cast<std::byte*>(buffer.data()), static_cast<size_t>(ranks) * piece_bytes);
    };
    if (!partial.empty()) download(ours.data(), partial.f32() + first, bytes, stream);
    group.all_to_all(span_of(theirs), span_of(ours));
    stream.parallel(slice, [&](int64_t index, int) { cpu::add_block(theirs.f32(), piece, index, present); });
    group.all_gather(span_of(ours),
                     span_of(theirs).subspan(static_cast<size_t>(first_present) * piece_bytes, piece_bytes));
    upload(total.f32() + first, ours.data(), bytes, stream);
  }
}

}  // namespace lockstep::parallel
