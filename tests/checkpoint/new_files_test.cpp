#include "checkpoint/new_files.h"

#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/file_hash.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

class NewFilesTest : public ::testing::Test {
 protected:
  const testing::TempDirectory dir_;
  FileHashes hashes_;
  const NewFiles files_{dir_.path(), &hashes_};
};

TEST_F(NewFilesTest, HashesAreThoseOfTheFiles) {
  std::vector<float> values(300'000);  // several pieces
  std::iota(values.begin(), values.end(), 0.0F);
  const ConstTensor all(values.data(), DType::f32, {1000, 300});
  const NamedTensors tensors = {{"all", all}, {"columns", all.cols(3, 290)}, {"small", all.rows(0, 1).cols(0, 2)}};
  files_.write("text.json", "{}\n");
  files_.write("empty", "");
  files_.write("deep/er/text", std::string(700'000, 'x'));
  files_.write_safetensors("deep/tensors", tensors, {{"format", "pt"}});
  EXPECT_EQ(hashes_.size(), 4u);
  for (const auto& [name, hash] : hashes_) EXPECT_EQ(hash, file_sha256(dir_ / name)) << name;
  EXPECT_EQ(fs::read_file(dir_ / "deep/tensors"), safetensors_bytes(tensors, {{"format", "pt"}}));
  EXPECT_EQ(fs::read_file(dir_ / "deep/er/text"), std::string(700'000, 'x'));
}

// Larger than what is written at once, and read tensor by tensor.
TEST_F(NewFilesTest, LargeFilesAndTensorsThatAreReadOneByOne) {
  std::vector<float> values(900'001), read;
  std::iota(values.begin(), values.end(), 0.0F);
  const NamedTensors tensors = {{"b", ConstTensor(values.data(), DType::f32, {900'001})},
                                {"a", ConstTensor(values.data() + 5, DType::f32, {3, 100'000})}};
  NamedTensors nowhere = tensors;
  for (NamedTensor& named : nowhere) named.tensor.data = nullptr;
  files_.write_safetensors("whole", tensors, {});
  files_.write_safetensors("one by one", nowhere, {}, [&](size_t i) {
    const ConstTensor& tensor = tensors[i].tensor;
    read.assign(tensor.f32(), tensor.f32() + tensor.elements());
    return ConstTensor(read.data(), DType::f32, {tensor.elements()});
  });
  EXPECT_EQ(fs::read_file(dir_ / "whole"), safetensors_bytes(tensors, {}));
  EXPECT_EQ(hashes_.at("one by one"), hashes_.at("whole"));
  for (const auto& [name, hash] : hashes_) EXPECT_EQ(hash, file_sha256(dir_ / name)) << name;
}

TEST_F(NewFilesTest, NothingIsReplaced) {
  files_.write("a", "first");
  EXPECT_THROW(files_.write("a", "second"), ResourceError);
  EXPECT_EQ(fs::read_file(dir_ / "a"), "first");
}

}  // namespace
}  // namespace lockstep::checkpoint
