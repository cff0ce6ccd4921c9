// Training changes the adapter and nothing else: the base is the same in file and memory, before and after.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "checkpoint/base_fingerprint.h"
#include "core/hash.h"
#include "model/config.h"
#include "recipes/adapter.h"
#include "recipes/sft.h"
#include "support/temp_directory.h"
#include "train/trainer.h"

namespace lockstep::recipes {
namespace {

class FrozenBase : public ::testing::Test {
 protected:
  FrozenBase() {
    std::filesystem::copy(LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3", dir_ / "base");
    control_.out = &text_;
    control_.info = &text_;
  }

  // Reads the tensors again: a fingerprint that load_base reports may come from its cache.
  std::string file_fingerprint() const {
    checkpoint::HfDirectory directory(dir_ / "base");
    directory.open_weights();
    Stream stream({.threads = 2});
    const model::ModelSpec config = model::parse_config(directory.config(), "config.json");
    return checkpoint::base_fingerprint(checkpoint::weights_fingerprint(directory.tensors(), stream),
                                        model::canonical_text(config));
  }
  std::string file_hash() const {
    Sha256 hash;
    hash.update(fs::read_file(weights()));
    return hash.hex();
  }
  fs::Path weights() const { return dir_ / "base" / "model.safetensors"; }

  testing::TempDirectory dir_;
  std::ostringstream text_;
  Control control_;
};

TEST_F(FrozenBase, IsTheSameInFileAndMemoryBeforeAndAfterTraining) {
  const std::string fingerprint = file_fingerprint(), hash = file_hash();
  Stream stream({.threads = 2});
  const Base base = load_base({.hf_checkpoint = (dir_ / "base").string()}, stream, control_);
  EXPECT_EQ(base.fingerprint, fingerprint);
  EXPECT_EQ(load::fingerprint_of_memory(*base.model, stream), fingerprint);

  const lora::AdapterVersion adapter =
      load::fresh_adapter({.rank = 4, .alpha = 8, .target_modules = {"all-linear"}}, base, 1);
  train::Trainer trainer(base.model, adapter.layout, adapter.weights, {}, stream);
  const train::Datum datum = train::make_datum({1, 2, 3, 4, 5}, {0, 1, 1, 1, 1});
  for (int step = 0; step < 3; ++step) {
    trainer.begin_step({.num_samples = 1});
    trainer.forward_backward(std::span(&datum, 1), train::SftLoss{});
    trainer.optim_step(1e-2);
  }
  EXPECT_FALSE(std::equal(adapter.weights->f32(), adapter.weights->f32() + adapter.layout->num_floats,
                          trainer.adapter().weights->f32()))
      << "nothing was trained";
  EXPECT_EQ(load::fingerprint_of_memory(*base.model, stream), fingerprint);
  EXPECT_EQ(file_fingerprint(), fingerprint);
  EXPECT_EQ(file_hash(), hash);

  // Moments exist for the adapter's floats and for nothing else.
  const auto state = trainer.state();
  const auto adapter_bytes = static_cast<size_t>(adapter.layout->num_floats) * sizeof(float);
  EXPECT_EQ(state.first_moment.bytes(), adapter_bytes);
  EXPECT_EQ(state.second_moment.bytes(), adapter_bytes);
}

TEST_F(FrozenBase, ARunOfTheRecipeLeavesTheFileAlone) {
  const std::string fingerprint = file_fingerprint(), hash = file_hash();
  dir_.write("rows.jsonl", "{\"tokens\": [1, 2, 3, 4], \"loss_mask\": [0, 1, 1, 1]}\n");
  SftOptions options;
  options.base = {.hf_checkpoint = (dir_ / "base").string(), .stream = {.threads = 1}, .device = "cpu"};
  options.adapter.config = {.rank = 4, .alpha = 8, .target_modules = {"all-linear"}};
  options.optimizer.schedule.lr = 1e-2;
  options.training.global_batch_size = 1;
  options.prompt_data = (dir_ / "rows.jsonl").string();
  options.num_epoch = 2;
  options.save = {.save = (dir_ / "run").string()};
  run_sft(options, control_);
  EXPECT_EQ(file_fingerprint(), fingerprint);
  EXPECT_EQ(file_hash(), hash);
}

// Somebody who writes into the base while it is loaded costs the run an error, not the process.
TEST_F(FrozenBase, AFileThatIsCutWhileItIsLoadedIsAnError) {
  checkpoint::HfDirectory directory(dir_ / "base");
  directory.open_weights();
  const model::ModelSpec config = model::parse_config(directory.config(), "config.json");
  std::filesystem::resize_file(weights(), std::filesystem::file_size(weights()) / 2);
  Stream stream({.threads = 2});
  testing::expect_error<DataError>([&] { model::Weights::load(config, directory.tensors(), stream); },
                                   {"model.safetensors", "changed while it was read"});
}

// The hashes above can tell: one bit of one weight changes both.
TEST_F(FrozenBase, OneChangedBitShows) {
  const std::string fingerprint = file_fingerprint(), hash = file_hash();
  std::string bytes = fs::read_file(weights());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  fs::write_file_atomic(weights(), bytes);
  EXPECT_NE(file_fingerprint(), fingerprint);
  EXPECT_NE(file_hash(), hash);
}

}  // namespace
}  // namespace lockstep::recipes
