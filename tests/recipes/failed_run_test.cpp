// A run that fails saves the last completed iteration, and two runs never write one place.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands/commands.h"
#include "core/file_lock.h"
#include "recipes/save_directory.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

class FailedRun : public Training {
 protected:
  // The question whether there was an interrupt is asked in the middle of every step.
  void fail_at_question(int number) {
    control_.interrupted = [this, number] {
      if (++asked_ == number) throw DataError({.what = "a step failed"});
      return false;
    };
  }
  template <class Kind, class Run>
  void expect_failure(const Run& run) {
    testing::expect_error<Kind>(run, {"a step failed"});
    control_.interrupted = [] { return false; };
  }
  // The arithmetic model, whose tokenizer has a token more than it has rows for.
  std::string model_with_an_added_token() {
    const fs::Path model = dir_ / "added";
    for (const char* file : {"config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"}) {
      dir_.write("added/" + std::string(file), "");
      fs::write_file_atomic(model / file, fs::read_file(fs::Path(kArith) / file));
    }
    Json tokenizer = read_json(kArith + "/tokenizer.json");
    Json added = tokenizer["added_tokens"][0];
    added["id"] = 288;
    added["content"] = "<extra>";
    tokenizer["added_tokens"].push_back(added);
    fs::write_file_atomic(model / "tokenizer.json", tokenizer.dump());
    return model.string();
  }

  int asked_ = 0;
};

TEST_F(FailedRun, SftSavesTheLastCompletedIteration) {
  run_sft(sft("whole"), control_);
  SftOptions part = sft("part");
  part.save.save_interval = 100;
  fail_at_question(8);
  expect_failure<DataError>([&] { run_sft(part, control_); });
  const auto reached = checkpoint::latest_iteration(part.save.save);
  ASSERT_TRUE(reached.has_value());
  EXPECT_GT(*reached, 0);
  EXPECT_LT(*reached, 6);
  EXPECT_NE(info_.str().find("before the failure"), std::string::npos);
  part.save.load = part.save.save;
  run_sft(part, control_);
  EXPECT_EQ(adapter_bytes("whole", 6), adapter_bytes("part", 6));
}

TEST_F(FailedRun, GrpoSavesTheLastCompletedIteration) {
  const auto options = [&](const std::string& save) {
    RlOptions o = rl(save);
    o.num_rollout = 3;
    o.save.save_interval = 100;
    return o;
  };
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_rl(options("whole"), control_);
  RlOptions part = options("part");
  fail_at_question(questions - 1);
  expect_failure<DataError>([&] { run_rl(part, control_); });
  EXPECT_EQ(checkpoint::latest_iteration(part.save.save), 2);
  part.save.load = part.save.save;
  run_rl(part, control_);
  EXPECT_EQ(adapter_bytes("whole", 3), adapter_bytes("part", 3));
}

// The store refuses the version that was just trained: the iteration itself is complete, and the checkpoint is that of
// a run that was not interrupted.
TEST_F(FailedRun, AVersionThatIsNotPublishedIsSavedNevertheless) {
  const auto options = [&](const std::string& save) {
    RlOptions o = rl(save);
    o.num_rollout = 4;
    o.publish_dir = (dir_ / (save + "_published")).string();
    return o;
  };
  RlOptions whole = options("whole"), part = options("part");
  whole.save.save_interval = 1;
  part.save.save_interval = 100;
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_rl(whole, control_);
  const fs::Path link = fs::Path(part.publish_dir) / "latest";
  int asked = 0;
  control_.interrupted = [&] {
    if (++asked != questions / 2) return false;
    std::filesystem::remove(link);
    std::filesystem::create_directories(link / "in_the_way");
    return false;
  };
  testing::expect_error<ResourceError>([&] { run_rl(part, control_); }, {"link to the newest version"});
  const int64_t reached = checkpoint::latest_iteration(part.save.save).value_or(0);
  ASSERT_TRUE(reached > 0 && reached < 4) << info_.str();
  EXPECT_NE(info_.str().find("before the failure"), std::string::npos) << info_.str();
  EXPECT_EQ(static_cast<int64_t>(results("part").size()), reached) << "with its line";
  const std::string name = checkpoint::iteration_directory_name(reached);
  int64_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "whole" / name)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const auto file = std::filesystem::relative(entry.path(), dir_ / "whole");
    EXPECT_EQ(fs::read_file(entry.path()), fs::read_file(dir_ / "part" / file)) << file;
  }
  EXPECT_GT(files, 3);

  std::filesystem::remove_all(link);
  part.save.load = part.save.save;
  run_rl(part, control_);
  EXPECT_EQ(results("part"), results("whole"));
  EXPECT_EQ(adapter_bytes("part", 4), adapter_bytes("whole", 4));
}

// Of a rollout with two steps the second fails: what the first left is no iteration.
TEST_F(FailedRun, WhatIsBetweenTwoIterationsIsNotSaved) {
  RlOptions options = rl("first");
  options.num_rollout = 1;
  run_rl(options, control_);
  options.num_rollout = 2;
  options.save = {.save = (dir_ / "second").string(), .load = options.save.save, .overrides = {"lr"}};
  options.optimizer.schedule.lr = 1e30;  // after one such step no gradient is finite
  options.training.max_skipped_steps = 0;
  EXPECT_THROW(run_rl(options, control_), DataError);
  EXPECT_NE(info_.str().find("iteration 1 is not saved"), std::string::npos) << info_.str();
  EXPECT_EQ(checkpoint::latest_iteration(options.save.save), std::nullopt);
}

TEST_F(FailedRun, AFailureToSaveDoesNotHideTheFirstError) {
  SftOptions options = sft("run");
  options.save.save_interval = 100;
  control_.interrupted = [&] {
    if (++asked_ < 8) return false;
    std::filesystem::rename(dir_ / "run", dir_ / "gone");
    dir_.write("run", "a file in the place of the directory");
    throw DataError({.what = "a step failed"});
  };
  expect_failure<DataError>([&] { run_sft(options, control_); });
  EXPECT_NE(info_.str().find("could not be saved"), std::string::npos) << info_.str();
}

TEST_F(FailedRun, TokensThatTheModelLacksAreFoundWhileRowsAreRead) {
  const std::string model = model_with_an_added_token();
  std::string rows;
  for (int i = 0; i < 8; ++i)
    rows += Json{{"text", (i == 2 ? "<extra>" : "") + std::to_string(i) + "+1="},
                 {"prompt", (i == 2 ? "<extra>" : "") + std::to_string(i) + "+1="},
                 {"completion", std::to_string(i + 1)},
                 {"label", std::to_string(i + 1)}}
                .dump() +
            "\n";
  const std::string data = dir_.write("rows.jsonl", rows).string();
  SftOptions supervised = sft("sft");
  supervised.base.hf_checkpoint = model;
  supervised.prompt_data = data;
  const auto refused = [&](const auto& run) {
    testing::expect_error<DataError>(run, {"token outside the vocabulary of the model", "rows.jsonl line 3", "288"});
  };
  refused([&] { run_sft(supervised, control_); });
  supervised.rows.max_bad_rows = 1;
  run_sft(supervised, control_);
  EXPECT_NE(info_.str().find("1 bad row left out"), std::string::npos);
  RlOptions reinforcement = rl("rl");
  reinforcement.base.hf_checkpoint = model;
  reinforcement.prompt_data = data;
  reinforcement.num_rollout = 1;
  refused([&] { run_rl(reinforcement, control_); });
  reinforcement.max_bad_rows = 1;
  run_rl(reinforcement, control_);
  refused([&] {
    commands::run_score({.base = supervised.base, .input = data, .output = (dir_ / "scored.jsonl").string()}, control_);
  });
}

// Bytes of a path that are no UTF-8 ended a run at its first save.
TEST_F(FailedRun, APathThatIsNoUtf8IsSavedWithReplacement) {
  const fs::Path model = dir_ /
                         "mod\xff"
                         "el";
  std::filesystem::create_directory_symlink(std::filesystem::absolute(kTiny), model);
  SftOptions options = sft("run\xfe");
  options.base.hf_checkpoint = model.string();
  options.eval_sets = {{"held\xfd", options.prompt_data}};
  options.eval_interval = 2;
  options.num_epoch = 1;
  run_sft(options, control_);
  EXPECT_NE(info_.str().find("is no UTF-8"), std::string::npos);
  const fs::Path adapter = fs::Path(options.save.save) / "iter_0000003" / "lora_adapter";
  EXPECT_TRUE(
      read_json((adapter / "adapter_config.json").string())["base_model_name_or_path"].get<std::string>().ends_with(
          "mod\xEF\xBF\xBD"
          "el"));
  // The evaluation is found again by its name.
  const size_t lines = metrics("run\xfe").size();
  options.save.load = options.save.save;
  run_sft(options, control_);
  EXPECT_EQ(metrics("run\xfe").size(), lines);
}

TEST_F(FailedRun, ASecondRunIsRefusedWhileTheFirstSaves) {
  const SftOptions options = sft("run");
  {
    const SaveDirectory first(options.save.save, control_);
    const auto refused = [&](const auto& run) {
      testing::expect_error<ResourceError>(run, {"the SaveOptions::save directory is in use", "run/.lockstep.lock",
                                                 "locked by process", "another SaveOptions::save"});
    };
    refused([&] { run_sft(options, control_); });
    refused([&] { run_rl(rl("run"), control_); });
  }
  run_sft(options, control_);
  const SaveDirectory after(options.save.save, control_);
  const SaveDirectory none("", control_);
}

TEST_F(FailedRun, WhatKilledRunsWereAboutToSaveIsRemoved) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::string gone = ".tmp-" + std::to_string(child) + "-0";
  dir_.write("run/.iter_0000003" + gone + "/lora_adapter/adapter_model.safetensors", "half");
  dir_.write("run/.latest_checkpointed_iteration.txt" + gone, "3");
  dir_.write("run/.notes" + gone, "not ours");
  const SaveDirectory mine((dir_ / "run").string(), control_);
  EXPECT_FALSE(fs::exists(dir_ / "run" / (".iter_0000003" + gone)));
  EXPECT_FALSE(fs::exists(dir_ / "run" / (".latest_checkpointed_iteration.txt" + gone)));
  EXPECT_TRUE(fs::exists(dir_ / "run" / (".notes" + gone)));
}

}  // namespace
}  // namespace lockstep::recipes
