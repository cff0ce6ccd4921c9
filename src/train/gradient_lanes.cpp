#include "train/gradient_lanes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/transfer.h"
#include "kernels/elementwise.h"

namespace lockstep::train {

namespace {

// A flat array as rows, so that the kernel can spread it over threads.
constexpr int64_t kRow = 4096;

void add_flat(float* y, const float* x, int64_t n, Stream& stream) {
  const int64_t rows = n / kRow, rest = n % kRow;
  if (rows > 0) kernels::add(Tensor(y, DType::f32, {rows, kRow}), ConstTensor(x, DType::f32, {rows, kRow}), stream);
  if (rest > 0)
    kernels::add(Tensor(y + rows * kRow, DType::f32, {1, rest}), ConstTensor(x + rows * kRow, DType::f32, {1, rest}),
                 stream);
}

}  // namespace

int64_t open_lanes(const lora::AdapterLayout& layout, Device device) {
  const int64_t lane_bytes = layout.num_trained * static_cast<int64_t>(sizeof(float));
  const int64_t aside = device == Device::cpu ? int64_t{64} << 20 : int64_t{1} << 30;
  return std::clamp<int64_t>(aside / lane_bytes, lora::saves_weights(layout) ? 1 : 2, kGradientLanes);
}

int64_t lane_buffers(int64_t open, int lanes) {
  int64_t most = 0;
  for (int closed = 0; closed <= lanes; ++closed)
    most = std::max(most, std::popcount(static_cast<unsigned>(closed)) + std::min<int64_t>(open, lanes - closed));
  return most;
}

GradientLanes::GradientLanes(int64_t num_floats, const LaneRange& range, Stream& stream)
    : num_floats_(num_floats),
      range_(range),
      stream_(stream),
      waiting_(static_cast<size_t>(std::bit_width(static_cast<unsigned>(range.size())))) {}

Buffer GradientLanes::take() {
  const size_t bytes = static_cast<size_t>(num_floats_) * sizeof(float);
  if (free_.empty()) return Buffer(bytes, Buffer::Fill::zero, stream_.device());
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  zero(buffer.data(), bytes, stream_);
  return buffer;
}

void GradientLanes::give(Buffer buffer) {
  free_.push_back(std::move(buffer));
}

void GradientLanes::begin(int64_t num_samples) {
  for (Lane& lane : open_) give(std::move(lane.gradient));
  open_.clear();
  const auto forget = [this](Node& node) {
    if (node) give(*std::move(node));
    node.reset();
  };
  std::ranges::for_each(waiting_, forget);
  forget(spare_);
  num_samples_ = num_samples;
  next_ = range_.begin;
}

float* GradientLanes::lane(int64_t sample) {
  const int index = lane_of(sample, num_samples_, range_.of);
  if (open_.empty() || open_.back().index != index) open_.push_back({index, take()});
  return open_.back().gradient.f32();
}

void GradientLanes::consumed(int64_t end) {
  while (next_ < range_.end && end >= (next_ + 1) * num_samples_ / range_.of) close(next_++);
}

void GradientLanes::close(int lane) {
  Node node;
  if (!open_.empty() && open_.front().index == lane) {
    node = std::move(open_.front().gradient);
    open_.erase(open_.begin());
  }
  auto index = static_cast<unsigned>(lane - range_.begin);
  size_t level = 0;
  for (; index % 2 == 1; index /= 2, ++level) {
    Node left = std::exchange(waiting_[level], std::nullopt);
    if (!left) continue;
    if (node) {
      add_flat(left->f32(), node->f32(), num_floats_, stream_);
      give(*std::move(node));
    }
    node = std::move(left);
  }
  waiting_[level] = std::move(node);
}

ConstTensor GradientLanes::partial() const {
  const Node& sum = waiting_.back();
  return sum ? ConstTensor(sum->data(), DType::f32, {num_floats_}) : ConstTensor();
}

Tensor GradientLanes::total() {
  Node& sum = waiting_.back();
  if (!sum && !spare_) spare_ = take();
  return Tensor((sum ? *sum : *spare_).data(), DType::f32, {num_floats_});
}

}  // namespace lockstep::train
