#include "train/gradient_lanes.h"

#include <algorithm>
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

int lane_of(int64_t sample, int64_t num_samples) {
  int lane = 0;
  while (sample >= (lane + 1) * num_samples / kGradientLanes) ++lane;
  return lane;
}

int64_t open_lanes(int64_t lane_bytes, Device device) {
  const int64_t aside = device == Device::cpu ? int64_t{64} << 20 : int64_t{1} << 30;
  return std::clamp<int64_t>(aside / lane_bytes, 2, kGradientLanes);
}

Buffer GradientLanes::take() {
  const size_t bytes = static_cast<size_t>(num_floats_) * sizeof(float);
  if (free_.empty()) return Buffer(bytes, Buffer::Fill::zero, stream_.device());
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  zero(buffer.data(), bytes, stream_);
  return buffer;
}

void GradientLanes::give(Buffer buffer) {
  if (buffer.data() != nullptr) free_.push_back(std::move(buffer));
}

void GradientLanes::begin(int64_t num_samples) {
  for (Lane& lane : open_) give(std::move(lane.gradient));
  open_.clear();
  give(std::exchange(total_, Buffer()));
  num_samples_ = num_samples;
}

float* GradientLanes::lane(int64_t sample) {
  const int index = lane_of(sample, num_samples_);
  if (open_.empty() || open_.back().index != index) open_.push_back({index, take()});
  return open_.back().gradient.f32();
}

void GradientLanes::consumed(int64_t num_samples) {
  while (!open_.empty() && num_samples >= (open_.front().index + 1) * num_samples_ / kGradientLanes) {
    if (total_.data() == nullptr) total_ = take();
    add_flat(total_.f32(), open_.front().gradient.f32(), num_floats_, stream_);
    give(std::move(open_.front().gradient));
    open_.erase(open_.begin());
  }
}

ConstTensor GradientLanes::total() const {
  return ConstTensor(total_.data(), DType::f32, {num_floats_});
}

}  // namespace lockstep::train
