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

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

std::span<const std::byte> bytes_of(const float* from, int64_t floats) {
  return std::as_bytes(std::span(from, static_cast<size_t>(floats)));
}
std::span<std::byte> bytes_of(float* to, int64_t floats) {
  return std::as_writable_bytes(std::span(to, static_cast<size_t>(floats)));
}

// The sum of an array between the GPUs, a piece of it at a time. Each rank gets all partial sums of its slice of the
// piece, adds them, and sends the sum to all, together with the partial sums of the next piece.
class DeviceSum {
 public:
  DeviceSum(float* total, const float* partial, int64_t floats, const std::vector<bool>& present, Group& group,
            Stream& stream)
      : total_(total),
        partial_(partial),
        floats_(floats),
        pieces_(std::max<int64_t>(1, ceil_div(floats, kDevicePiece))),
        slice_(ceil_div(ceil_div(floats, pieces_ * group.size()), cpu::kBlock) * cpu::kBlock),
        present_(present),
        group_(group),
        stream_(stream),
        received_(static_cast<size_t>(group.size() * slice_) * sizeof(float), Buffer::Fill::none, stream.device()) {}

  void run() {
    DeviceLink& link = *group_.device_link();
    for (int64_t piece = 0; piece <= pieces_; ++piece) {
      std::vector<Transfer> transfers;
      for (int rank = 0; rank < group_.size(); ++rank) {
        if (rank == group_.rank()) continue;
        if (piece > 0) transfers.push_back(sums(piece - 1, rank));
        if (piece < pieces_) transfers.push_back(partials(piece, rank));
      }
      link.exchange(transfers, stream_);
      if (piece < pieces_) add(piece);
    }
    link.wait(stream_);
  }

 private:
  // Where a rank's slice of a piece begins and ends in the array.
  int64_t begin(int64_t piece, int64_t rank) const {
    return std::min(floats_, (piece * group_.size() + rank) * slice_);
  }
  int64_t size(int64_t piece, int64_t rank) const { return begin(piece, rank + 1) - begin(piece, rank); }

  Transfer partials(int64_t piece, int rank) const {
    Transfer transfer{.rank = rank};
    if (partial_ != nullptr) transfer.to = bytes_of(partial_ + begin(piece, rank), size(piece, rank));
    if (present_[static_cast<size_t>(rank)])
      transfer.from = bytes_of(received_.f32() + rank * slice_, size(piece, group_.rank()));
    return transfer;
  }
  Transfer sums(int64_t piece, int rank) const {
    const int me = group_.rank();
    return {.rank = rank,
            .to = bytes_of(static_cast<const float*>(total_ + begin(piece, me)), size(piece, me)),
            .from = bytes_of(total_ + begin(piece, rank), size(piece, rank))};
  }
  void add(int64_t piece) const {
    const int me = group_.rank();
    add_pieces(total_ + begin(piece, me), size(piece, me),
               {.all = received_.f32(),
                .stride = slice_,
                .own = partial_ == nullptr ? nullptr : partial_ + begin(piece, me),
                .rank = me,
                .present = present_},
               stream_);
  }

  float* const total_;
  const float* const partial_;
  const int64_t floats_, pieces_, slice_;  // of a rank in a piece
  const std::vector<bool>& present_;
  Group& group_;
  Stream& stream_;
  const Buffer received_;  // [ranks][slice]
};

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
  if (DeviceLink* const link = group.device_link()) {
    if (group.size() > 2 || present != std::vector<bool>{true, true})
      return DeviceSum(total.f32(), partial.empty() ? nullptr : partial.f32(), floats, present, group, stream).run();
    link->add_two(total, partial, stream);
    return link->wait(stream);
  }

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
