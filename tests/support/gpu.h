// What tests on a GPU share. Without one they skip and say so.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/transfer.h"
#include "lora/adapter.h"
#include "support/gpu_stream.h"

namespace lockstep::testing {

// Makes NaN of the memory that the driver hands out next, so that whoever reads what nobody wrote is found out.
inline void poison_free_memory(Stream& stream) {
  const std::vector<std::byte> ones(size_t{16} << 20, std::byte{0xff});
  const Buffer buffer(ones.size(), Buffer::Fill::none, stream.device());
  upload(buffer.data(), ones.data(), ones.size(), stream);
  stream.synchronize();
}

// A fixture over `Base`: ::testing::Test, or a fixture that does not need SetUp. What lies on the GPU is made by
// make().
template <class Base = ::testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    stream_ = std::make_unique<GpuStream>(StreamOptions{.threads = 2});
    poison_free_memory(*stream_);
    make();
  }
  virtual void make() {}
  Stream& gpu() { return *stream_; }
  Stream& cpu() { return cpu_; }

 private:
  Stream cpu_{{.threads = 2}};
  std::unique_ptr<GpuStream> stream_;
};

// Values of an f32 or bf16 view in the stream's memory.
inline std::vector<float> values_of(const ConstTensor& tensor, Stream& stream) {
  const bool whole = tensor.contiguous();
  const int64_t pieces = whole ? 1 : tensor.shape[0], each = tensor.elements() / std::max<int64_t>(1, pieces);
  std::vector<float> values;
  std::vector<std::byte> piece(static_cast<size_t>(each * dtype_bytes(tensor.dtype)));
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t offset = i * tensor.row_stride * dtype_bytes(tensor.dtype);
    download(piece.data(), static_cast<const std::byte*>(tensor.data) + offset, piece.size(), stream);
    for (int64_t j = 0; j < each; ++j)
      values.push_back(tensor.dtype == DType::f32 ? reinterpret_cast<const float*>(piece.data())[j]
                                                  : to_f32(reinterpret_cast<const BFloat16*>(piece.data())[j]));
  }
  return values;
}

// An adapter in host memory, as the stream's device has it.
inline lora::AdapterVersion placed(const lora::AdapterVersion& adapter, Stream& stream) {
  Buffer copy(static_cast<size_t>(adapter.layout->num_floats) * sizeof(float), Buffer::Fill::none);
  std::memcpy(copy.data(), adapter.weights->data(), copy.bytes());
  return {.policy = adapter.policy,
          .base = adapter.base,
          .layout = adapter.layout,
          .weights = std::make_shared<const Buffer>(lora::place_weights(std::move(copy), *adapter.layout, stream))};
}

// The same adapter with values that are bf16 numbers: what a GPU's kernels read of it.
inline lora::AdapterVersion rounded(const lora::AdapterVersion& adapter) {
  auto weights = std::make_shared<Buffer>(static_cast<size_t>(adapter.layout->num_floats) * sizeof(float));
  for (int64_t i = 0; i < adapter.layout->num_floats; ++i)
    weights->f32()[i] = to_f32(to_bf16(adapter.weights->f32()[i]));
  return {.policy = adapter.policy, .base = adapter.base, .layout = adapter.layout, .weights = std::move(weights)};
}

// Takes the GPU's memory but about `left` bytes, for as long as it lives.
class Ballast {
 public:
  explicit Ballast(int64_t left) {
    constexpr size_t kMin = size_t{16} << 20;
    const Buffer free_again(static_cast<size_t>(left), Buffer::Fill::none, Device::cuda);
    for (size_t bytes = size_t{8} << 30; bytes >= kMin; bytes /= 2) {
      try {
        for (;;) held_.emplace_back(bytes, Buffer::Fill::none, Device::cuda);
      } catch (const ResourceError&) {
      }
    }
  }

 private:
  std::vector<Buffer> held_;
};

}  // namespace lockstep::testing
