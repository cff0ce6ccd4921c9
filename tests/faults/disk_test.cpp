// Whatever the disk does while a checkpoint is written: a typed error, and an older checkpoint that is whole; or the
// new one. Never a wrong one.
#include <cerrno>
#include <filesystem>

#include "checkpoint/new_files.h"
#include "core/error.h"
#include "faults/failing_disk.h"
#include "recipes/training_fixture.h"

namespace lockstep {
namespace {

using checkpoint::Checkpoint;

// Its values tell the iteration.
class DiskFaults : public recipes::Training {
 protected:
  void save(int64_t iteration) {
    const auto number = static_cast<float>(iteration);
    std::vector<float> a(8, number), b(8, -number), moments(16, 2 * number);
    Checkpoint checkpoint;
    const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.";
    checkpoint.policies.push_back(
        {.config = {.rank = 2, .alpha = 4, .target_modules = {"q_proj"}},
         .target_modules = {"q_proj"},
         .base_model_name = "tiny",
         .adapter = {{module + "lora_A.weight", ConstTensor(a.data(), DType::f32, {2, 4})},
                     {module + "lora_B.weight", ConstTensor(b.data(), DType::f32, {4, 2})}},
         .metadata = {.iteration = iteration, .version = iteration, .rank = 2, .alpha = 4, .lora_type = "lora"}});
    checkpoint.state.iteration = iteration;
    checkpoint.state.counters = {{"data_position", 10 * iteration}};
    checkpoint.state.tensors = {{"first_moment", ConstTensor(moments.data(), DType::f32, {16})}};
    checkpoint.state.parts["queue"] = {.json = {{"iteration", iteration}}};
    checkpoint::save_checkpoint(save_, checkpoint);
  }

  // The iteration that a run would go on from, which is whole and its own.
  int64_t found() const {
    for (const int64_t iteration : checkpoint::resume_candidates(save_).iterations) {
      try {
        const checkpoint::LoadedCheckpoint loaded(save_, iteration);
        EXPECT_EQ(loaded.state().counters["data_position"], 10 * iteration);
        EXPECT_EQ(loaded.state().parts.at("queue").json["iteration"], iteration);
        EXPECT_EQ(loaded.state().tensors.at(0).tensor.f32()[5], 2 * static_cast<float>(iteration));
        const auto& weights = loaded.policy(lora::kActor).weights.tensors();
        EXPECT_EQ(std::abs(weights.at(0).tensor.f32()[3]), static_cast<float>(iteration));
        return iteration;
      } catch (const FormatError&) {
        continue;
      }
    }
    return 0;
  }

  void anew() {
    std::filesystem::remove_all(save_);
    save(1);
  }

  const fs::Path save_ = dir_ / "save";
};

TEST_F(DiskFaults, AnyCallThatFailsLeavesAWholeCheckpoint) {
  int failures = 0;
  for (const std::string& call : testing::disk_calls())
    for (const bool forever : {false, true})
      for (int number = 0;; ++number) {
        anew();
        const testing::FailingDisk disk(call, number, number % 2 == 0 ? ENOSPC : EIO, forever);
        bool failed = false;
        try {
          save(2);
        } catch (const ResourceError& error) {
          failed = true;
          EXPECT_FALSE(error.fault().where.empty()) << call << number;
        }
        if (disk.calls() <= number) break;  // it makes no more of them
        failures += failed ? 1 : 0;
        const int64_t now = found();
        EXPECT_TRUE(now == 1 || now == 2) << call << number;
        if (!failed) {
          EXPECT_EQ(now, 2) << call << number;
        }
      }
  EXPECT_GT(failures, 50);
}

// Syncing is what a save waits for: seven files, their three directories, the save directory, the marker and its
// directory, each once.
TEST_F(DiskFaults, NothingIsSyncedTwice) {
  anew();
  const testing::FailingDisk counted("fsync", 1000, EIO);
  save(2);
  EXPECT_EQ(counted.calls(), 7 + 3 + 1 + 2);
}

TEST_F(DiskFaults, ASaveThatFailedCanBeMadeAgain) {
  anew();
  for (int number = 0; number < 12; ++number) {
    const testing::FailingDisk disk("fsync", number, ENOSPC);
    EXPECT_THROW(save(2), ResourceError) << number;
  }
  save(2);
  EXPECT_EQ(found(), 2);
  fs::sweep_temporaries(save_, [](const std::string&) { return true; });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(save_), std::filesystem::directory_iterator()), 3);
}

TEST_F(DiskFaults, ShortWritesAreGoneOnWith) {
  for (const int bytes : {1, 7, 100}) {
    const testing::ShortWrites disk(bytes);
    anew();
    save(2);
    EXPECT_EQ(found(), 2) << bytes;
  }
}

// Large files go past the system's cache; a disk that takes less than it was given, or that refuses such writes, gets
// the rest through the cache.
TEST_F(DiskFaults, LargeFilesOnDisksThatTakeLess) {
  const std::string text(3'000'000, 'x');
  const auto write = [&](const std::string& name) { checkpoint::NewFiles(dir_.path()).write(name, text); };
  for (const int bytes : {4096, 8192, 5000, 100'000}) {
    const testing::ShortWrites disk(bytes);
    write(std::to_string(bytes));
    EXPECT_EQ(fs::read_file(dir_ / std::to_string(bytes)), text);
  }
  for (const int number : {0, 1, 2}) {
    const testing::FailingDisk disk("write", number, EINVAL);
    if (number < 2)
      write("refused " + std::to_string(number));
    else
      EXPECT_THROW(write("last"), ResourceError);  // what is left is no multiple, and went through the cache
  }
  EXPECT_EQ(fs::read_file(dir_ / "refused 0"), text);
  EXPECT_EQ(fs::read_file(dir_ / "refused 1"), text);
}

// A run ends with the disk's error, and goes on bit for bit when there is room again.
TEST_F(DiskFaults, AFullDiskStopsARunCleanly) {
  recipes::run_sft(sft("whole"), control_);
  recipes::SftOptions options = sft("part");
  options.save.save_interval = 1;
  {
    const testing::FailingDisk disk("write", 25, ENOSPC, true);
    testing::expect_error<ResourceError>([&] { recipes::run_sft(options, control_); },
                                         {"cannot write", "No space left"});
  }
  const auto reached = checkpoint::latest_iteration(options.save.save);
  ASSERT_TRUE(reached);
  EXPECT_LT(*reached, 6);
  options.save.load = options.save.save;
  recipes::run_sft(options, control_);
  EXPECT_EQ(adapter_bytes("part", 6), adapter_bytes("whole", 6));
}

TEST_F(DiskFaults, AReadOnlyDiskIsFoundBeforeTheFirstStep) {
  const recipes::SftOptions options = sft("part");
  const testing::FailingDisk disk("open", 0, EROFS, true);
  testing::expect_error<ResourceError>([&] { recipes::run_sft(options, control_); }, {"Read-only file system"});
  EXPECT_EQ(info_.str().find("step 1/"), std::string::npos) << info_.str();
}

TEST_F(DiskFaults, ASlowDiskChangesNothing) {
  recipes::run_sft(sft("whole"), control_);
  recipes::SftOptions options = sft("part");
  options.save.save_interval = 1;
  options.num_epoch = 1;
  options.optimizer.decay_steps = 6;
  const testing::SlowDisk disk(10);
  recipes::run_sft(options, control_);
  EXPECT_EQ(checkpoint::saved_iterations(options.save.save), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(metrics("part")[2]["loss"], metrics("whole")[2]["loss"]);
}

}  // namespace
}  // namespace lockstep
