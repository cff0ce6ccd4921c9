// Pickles of tensors that torch 2.13 wrote (tests/fuzz/corpus/tensor_message): a [2, 3] f32 with values 0, 0.5 ... 2.5,
// and b bf16 with 1.5, -2, 3.
#include "checkpoint/torch/tensor_message.h"

#include <cstring>

#include "core/fs.h"
#include "core/half.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;

std::string message(const std::string& name) {
  return fs::read_file(fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/fuzz/corpus/tensor_message" / name);
}

void expect_a(const NamedTensor& a) {
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(shape_text(a.tensor), shape_text(ConstTensor(nullptr, DType::f32, {2, 3})));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.tensor.data) % sizeof(float), 0u);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(static_cast<const float*>(a.tensor.data)[i], 0.5f * static_cast<float>(i));
}

void expect_b(const NamedTensor& b, int64_t count) {
  constexpr float kValues[] = {1.5f, -2.0f, 3.0f};
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(shape_text(b.tensor), shape_text(ConstTensor(nullptr, DType::bf16, {count})));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.tensor.data) % sizeof(BFloat16), 0u);
  for (int64_t i = 0; i < count; ++i) EXPECT_EQ(to_f32(static_cast<const BFloat16*>(b.tensor.data)[i]), kValues[i]);
}

// Whatever address the message begins at: the bytes are moved to where their type may lie.
TEST(TensorMessage, DictionaryAndListOfPairs) {
  for (const char* name : {"dict", "list"})
    for (size_t shift = 0; shift < 8; ++shift) {
      std::string bytes = std::string(shift, ' ') + message(name);
      const NamedTensors tensors = read_tensor_message(std::span<char>(bytes).subspan(shift), name);
      ASSERT_EQ(tensors.size(), 2u);
      expect_a(tensors[0]);
      expect_b(tensors[1], 3);
      const auto* begin = static_cast<const char*>(tensors[0].tensor.data);
      EXPECT_TRUE(begin >= bytes.data() && begin < bytes.data() + bytes.size()) << "no copy";
    }
}

TEST(TensorMessage, FlattenedBucket) {
  std::string bytes = message("bucket");
  const NamedTensors tensors = read_tensor_message(bytes, "bucket");
  ASSERT_EQ(tensors.size(), 2u);
  expect_b(tensors[0], 2);
  expect_a(tensors[1]);
}

TEST(TensorMessage, HandlesOfAnotherProcessAreToldApart) {
  std::string bytes = message("handles");
  EXPECT_THROW(read_tensor_message(bytes, "body"), TensorHandles);
}

TEST(TensorMessage, WhatIsNotTensorsIsRefused) {
  std::string transposed = message("transposed");
  expect_error<FormatError>([&] { read_tensor_message(transposed, "body"); }, {"body", "contiguous"});
  for (const std::string good : {"dict", "list", "bucket"}) {
    const std::string whole = message(good);
    for (size_t size = 0; size < whole.size(); ++size) {
      std::string cut = whole.substr(0, size);
      EXPECT_THROW(read_tensor_message(cut, "body"), FormatError) << good << " " << size;
    }
  }
  // os.system("true") as pickle writes it
  std::string call = std::string("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", 24);
  expect_error<FormatError>([&] { read_tensor_message(call, "body"); }, {"os.system"});
}

}  // namespace
}  // namespace lockstep::checkpoint
