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

TEST_F(NewFilesTest, NothingIsReplaced) {
  files_.write("a", "first");
  EXPECT_THROW(files_.write("a", "second"), ResourceError);
  EXPECT_EQ(fs::read_file(dir_ / "a"), "first");
}

}  // namespace
}  // namespace lockstep::checkpoint
