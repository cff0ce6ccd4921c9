// lockstep verify finds every damage, and nothing where there is none.
#include <gtest/gtest.h>

#include "commands/files/commands.h"
#include "recipes/golden_case.h"
#include "recipes/training_fixture.h"

namespace lockstep::commands {
namespace {

using recipes::kArith, recipes::kTiny;
using testing::expect_error;

class Verify : public recipes::Training {
 protected:
  std::string verify(const std::string& path, const std::string& base = "") {
    out_.str("");
    run_verify({.path = path, .base = {.hf_checkpoint = base, .stream = {.threads = 2}}}, control_);
    return out_.str();
  }
  // What it prints of a directory with these problems.
  std::string problems(const std::string& path, std::initializer_list<const char*> parts,
                       const std::string& base = "") {
    expect_error<FormatError>([&] { verify(path, base); }, {"found", path.c_str()});
    const std::string text = out_.str();
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in\n" << text;
    return text;
  }
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }
  std::string trained() {
    recipes::SftOptions options = sft("run");
    options.num_epoch = 1;
    recipes::run_sft(options, control_);
    return path("run");
  }
  static void flip(const fs::Path& file, size_t place) {
    std::string bytes = fs::read_file(file);
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    fs::write_file_atomic(file, bytes);
  }
  static int64_t count(const std::string& text, const std::string& word) {
    int64_t found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  }
};

TEST_F(Verify, WhatARunSavesIsWhole) {
  const std::string run = trained();
  EXPECT_NE(verify(run, kTiny).find("newest checkpoint 3"), std::string::npos);
  const std::string text = verify(run + "/iter_0000003", kTiny);
  EXPECT_NE(text.find("SHA-256 of 6 files"), std::string::npos) << text;
  EXPECT_NE(text.find("and its fingerprint"), std::string::npos) << text;
  EXPECT_NE(text.find("whole"), std::string::npos);
  EXPECT_NO_THROW(verify(run + "/iter_0000003/lora_adapter"));
}

TEST_F(Verify, ALostMarker) {
  const std::string run = trained(), hashes = "SHA-256 of 6 files";
  const int64_t checkpoints = count(verify(run), hashes);
  std::filesystem::remove(run + "/latest_checkpointed_iteration.txt");
  EXPECT_EQ(count(problems(run, {"latest_checkpointed_iteration.txt"}), hashes), checkpoints)
      << "its checkpoints are looked at all the same";
  EXPECT_GT(checkpoints, 0);
}

TEST_F(Verify, ABitOfAnyFile) {
  const std::string iteration = trained() + "/iter_0000003";
  for (const char* file :
       {"lora_adapter/adapter_config.json", "lora_adapter/adapter_model.safetensors",
        "lora_adapter/vime_lora_metadata.json", "train_state.safetensors", "vime_lora_metadata.json"}) {
    const std::string bytes = fs::read_file(fs::Path(iteration) / file);
    flip(fs::Path(iteration) / file, bytes.size() - 3);
    problems(iteration, {file, "SHA-256"});
    fs::write_file_atomic(fs::Path(iteration) / file, bytes);
  }
  EXPECT_NO_THROW(verify(iteration));
  std::string state = fs::read_file(iteration + "/train_state.json");
  state.replace(state.find("\"version\": 3"), 12, "\"version\": 4");
  fs::write_file_atomic(iteration + "/train_state.json", state);
  problems(iteration, {"train_state.json: SHA-256"});
}

TEST_F(Verify, AllProblemsAreListed) {
  const std::string iteration = trained() + "/iter_0000003";
  flip(iteration + "/train_state.safetensors", 4000);
  std::filesystem::remove(iteration + "/vime_lora_metadata.json");
  dir_.write("run/iter_0000003/notes.txt", "mine");
  const std::string text =
      problems(iteration, {"train_state.safetensors: SHA-256", "vime_lora_metadata.json: the file is missing"});
  EXPECT_EQ(count(text, "problem "), 2) << text;
  EXPECT_NE(text.find("notes.txt: no file of the checkpoint"), std::string::npos) << text;
}

TEST_F(Verify, Adapters) {
  std::filesystem::copy(kTiny + "/adapter", path("adapter"));
  EXPECT_NE(verify(path("adapter"), kTiny).find("no fingerprint"), std::string::npos);
  const std::string weights = path("adapter") + "/adapter_model.safetensors";
  const std::string config = path("adapter") + "/adapter_config.json";
  const std::string bytes = fs::read_file(weights), json = fs::read_file(config);
  std::string other = json;
  other.replace(other.find("\"r\": 4"), 6, "\"r\": 5");
  fs::write_file_atomic(config, other);
  EXPECT_EQ(count(problems(path("adapter"), {"says rank 5"}), "problem "), 28);
  fs::write_file_atomic(config, json);
  problems(path("adapter"), {"of the base"}, kArith);
  // Modules that are left out have factors, and targets have none.
  Json changed = Json::parse(json);
  changed["exclude_modules"] = {"q_proj"};
  fs::write_file_atomic(config, changed.dump());
  problems(path("adapter"), {"does not target", "q_proj"});
  changed = Json::parse(json);
  changed["target_modules"].push_back("lm_head");
  fs::write_file_atomic(config, changed.dump());
  problems(path("adapter"), {"lm_head"}, kTiny);
  fs::write_file_atomic(config, json);
  std::string bad = bytes;
  const uint32_t nan = 0x7fc00000;
  std::memcpy(bad.data() + bad.size() - 8, &nan, 4);
  fs::write_file_atomic(weights, bad);
  problems(path("adapter"), {"1 of ", "are not finite"});
  bad = bytes;
  for (size_t at = bad.find("q_proj.lora_A"); at != std::string::npos; at = bad.find("q_proj.lora_A", at))
    bad.replace(at, 13, "q_proj.lora_C");
  fs::write_file_atomic(weights, bad);
  const std::string text = problems(path("adapter"), {"has no"});
  EXPECT_EQ(count(text, "problem "), 4) << text;
  fs::write_file_atomic(weights, bytes.substr(0, bytes.size() - 1));
  problems(path("adapter"), {"do not fill the file"});
}

TEST_F(Verify, Models) {
  for (const std::string& family : golden::families())
    EXPECT_NO_THROW(verify(golden::directory(family).string())) << family;
  const fs::Path base = golden::directory("mistral");
  run_merge({.base = {.hf_checkpoint = base.string(), .stream = {.threads = 1}},
             .adapter_path = (base / "adapter").string(),
             .output = path("merged"),
             .max_shard_bytes = 40'000},
            control_);
  EXPECT_NO_THROW(verify(path("merged"), base.string()));
  EXPECT_NE(verify(path("merged")).find("names and shapes against config.json"), std::string::npos);
  problems(path("merged"), {"which the base"}, kTiny);
  Json config = read_json(path("merged") + "/config.json");
  config["intermediate_size"] = config["intermediate_size"].get<int64_t>() + 16;
  fs::write_file_atomic(path("merged") + "/config.json", config.dump());
  EXPECT_EQ(count(problems(path("merged"), {"gate_proj.weight is"}), "problem "), 6);
  Json index = read_json(path("merged") + "/model.safetensors.index.json");
  const std::string shard = index["weight_map"].begin().value();
  index["weight_map"]["model.extra.weight"] = shard;
  fs::write_file_atomic(path("merged") + "/model.safetensors.index.json", index.dump());
  problems(path("merged"), {"model.extra.weight is missing"});
  expect_error<ConfigError>([&] { verify(path("nothing")); }, {"nothing to verify"});
}

}  // namespace
}  // namespace lockstep::commands
