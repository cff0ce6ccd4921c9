// Weights on their way to a GPU, from memory and from files.
#include <gtest/gtest.h>

#include <cstring>

#include "core/fs.h"
#include "core/random.h"
#include "kernels/pack.h"
#include "support/gpu.h"
#include "support/temp_directory.h"

namespace lockstep::kernels {
namespace {

class PackCuda : public testing::OnGpu<> {
 protected:
  static std::string random_bytes(size_t count) {
    std::string bytes(count, '\0');
    for (size_t i = 0; i < count; i += 2) {  // finite values: the upper byte never has all bits of the exponent
      const uint32_t bits = philox(5, {static_cast<uint32_t>(i), 0, 0, 0})[0];
      bytes[i] = static_cast<char>(bits), bytes[i + 1] = static_cast<char>(bits >> 8 & 0xbf);
    }
    return bytes;
  }

  // The parts stacked on the GPU, and back.
  std::string there_and_back(const std::vector<NamedTensor>& parts) {
    std::vector<const NamedTensor*> pointers;
    for (const NamedTensor& part : parts) pointers.push_back(&part);
    const PackedWeight weight = pack_weight(pointers, WeightFormat::bf16, gpu());
    std::string bytes(static_cast<size_t>(weight.rows * weight.depth * dtype_bytes(weight.dtype)), '\0');
    unpack_rows(Tensor(bytes.data(), weight.dtype, {weight.rows, weight.depth}), weight, 0, weight.rows, gpu());
    return bytes;
  }

  testing::TempDirectory dir_;
};

// Parts that begin anywhere in the file and anywhere in a piece; more rows than a piece of 32 MiB takes.
TEST_F(PackCuda, FilesGiveTheirBytes) {
  struct Shape {
    int64_t depth;
    std::vector<int64_t> rows;
  };
  for (const Shape& shape : {Shape{8, {1}}, {37, {5, 1, 300}}, {1000, {4096, 17, 9000, 4097}}, {4104, {4000, 130}}}) {
    int64_t rows = 0;
    for (const int64_t part : shape.rows) rows += part;
    const size_t row_bytes = static_cast<size_t>(shape.depth) * 2, before = 6;
    const std::string bytes = random_bytes(before + static_cast<size_t>(rows) * row_bytes);
    const fs::File file(dir_.write("weights", bytes));
    std::vector<NamedTensor> in_file, in_memory;
    size_t next = before;
    for (const int64_t part : shape.rows) {
      in_file.push_back({"part", ConstTensor(nullptr, DType::bf16, {part, shape.depth}), &file, next});
      in_memory.push_back({"part", ConstTensor(bytes.data() + next, DType::bf16, {part, shape.depth})});
      next += static_cast<size_t>(part) * row_bytes;
    }
    const std::string wanted = bytes.substr(before);
    EXPECT_TRUE(there_and_back(in_file) == wanted) << shape.depth;
    EXPECT_TRUE(there_and_back(in_memory) == wanted) << shape.depth;
  }
}

TEST_F(PackCuda, OtherTypesAndRowsThatLieApart) {
  const std::string bytes = random_bytes(40 * 64 * 4);
  const fs::File file(dir_.write("weights", bytes));
  const ConstTensor values(bytes.data(), DType::f32, {40, 64}), shape(nullptr, DType::f32, {40, 64});
  for (const NamedTensor& f32 : {NamedTensor{"f32", values}, NamedTensor{"f32", shape, &file, 0}}) {
    const std::string back = there_and_back({f32});
    for (size_t i = 0; i < 40 * 64; ++i) {
      float value, got;
      std::memcpy(&value, bytes.data() + 4 * i, 4), std::memcpy(&got, back.data() + 4 * i, 4);
      ASSERT_EQ(got, to_f32(to_bf16(value))) << i;
    }
  }
  NamedTensor apart{"apart", ConstTensor(bytes.data(), DType::bf16, {40, 64})};
  apart.tensor.row_stride = 128;
  const std::string rows = there_and_back({apart});
  for (size_t r = 0; r < 40; ++r) EXPECT_EQ(rows.substr(r * 128, 128), bytes.substr(r * 256, 128)) << r;
}

TEST_F(PackCuda, AShortenedFileIsAnError) {
  const std::string bytes = random_bytes(64 * 64 * 2);
  const fs::Path path = dir_.write("weights", bytes);
  const fs::File file(path);
  std::filesystem::resize_file(path, 64);
  const NamedTensor part{"part", ConstTensor(nullptr, DType::bf16, {64, 64}), &file};
  testing::expect_error<DataError>([&] { there_and_back({part}); }, {"weights", "changed"});
}

}  // namespace
}  // namespace lockstep::kernels
