// A thousand steps: memory stays as it is, and two runs, one of them stopped twice, have the same bits.
#include <unistd.h>

#include <fstream>

#include "core/hash.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

constexpr int64_t kSteps = 1000;

class SlowThousand : public Training {
 protected:
  SftOptions options(const std::string& save) {
    SftOptions options = sft(save);
    options.num_steps = kSteps;
    options.optimizer.schedule.lr = 1e-4;
    options.save.save_interval = 100;
    options.save.total_limit = 2;
    return options;
  }

  static int64_t resident_bytes() {
    int64_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  }

  std::string end_of(const std::string& save) const {
    const fs::Path last = dir_ / save / checkpoint::iteration_directory_name(kSteps);
    Sha256 hash;
    hash.update(fs::read_file(last / "lora_adapter" / "adapter_model.safetensors"));
    hash.update(fs::read_file(last / "train_state.safetensors"));
    for (const Json& line : results(save)) hash.update(line.dump());
    return hash.hex();
  }

  // Steps that the run has logged.
  int64_t logged(const std::string& save) const {
    std::ifstream file(dir_ / save / "metrics.jsonl");
    int64_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
};

TEST_F(SlowThousand, MemoryIsFlatAndTheBitsAreThoseOfAnyOtherRun) {
  int64_t early = 0, most = 0;
  control_.interrupted = [&] {
    const int64_t now = resident_bytes();
    if (early == 0 && logged("first") >= 250) early = now;  // two saves have been made, whose memory is kept
    if (early > 0) most = std::max(most, now);
    return false;
  };
  run_sft(options("first"), control_);
  ASSERT_GT(early, 0);
  EXPECT_LT(static_cast<double>(most - early), 0.01 * static_cast<double>(early))
      << early << " bytes after 250 steps, at most " << most << " later";
  SftOptions stopped = options("stopped");
  for (const int64_t at : {int64_t{37}, int64_t{500}}) {
    control_.interrupted = [&] { return logged("stopped") >= at; };
    EXPECT_THROW(run_sft(stopped, control_), Cancelled);
    EXPECT_EQ(checkpoint::latest_iteration(stopped.save.save), at);
    stopped.save.load = stopped.save.save;
  }
  control_.interrupted = [] { return false; };
  run_sft(stopped, control_);
  run_sft(options("second"), control_);
  EXPECT_EQ(end_of("first"), end_of("second"));
  EXPECT_EQ(end_of("first"), end_of("stopped"));
}

}  // namespace
}  // namespace lockstep::recipes
