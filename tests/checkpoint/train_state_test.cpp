#include "checkpoint/train_state.h"

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

const float kValues[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
const std::string kModule = "base_model.model.model.layers.0.self_attn.q_proj";

SavedPolicy policy_at(int64_t iteration) {
  SavedPolicy policy;
  policy.config.rank = 2;
  policy.config.alpha = 4;
  policy.target_modules = {"q_proj"};
  policy.base_model_name = "org/base";
  policy.adapter = {{kModule + ".lora_A.weight", ConstTensor(kValues, DType::f32, {2, 3})},
                    {kModule + ".lora_B.weight", ConstTensor(kValues, DType::f32, {4, 2})}};
  policy.metadata = {.iteration = iteration,
                     .version = iteration + 1,
                     .rank = 2,
                     .alpha = 4,
                     .lora_type = "lora",
                     .target_modules = {"q_proj"},
                     .base_fingerprint = std::string(64, 'f')};
  return policy;
}

Checkpoint checkpoint_at(int64_t iteration) {
  Checkpoint checkpoint{.policies = {policy_at(iteration)}};
  checkpoint.state = {
      .iteration = iteration,
      .counters = {{"step", 17}, {"seed", 18446744073709551615u}, {"lr", 0.1}},
      .tensors = {{"m", ConstTensor(kValues, DType::f32, {12})}, {"v", ConstTensor(kValues, DType::f64, {3})}}};
  return checkpoint;
}

// Beside the actor a critic of another rank and version.
Checkpoint two_policies_at(int64_t iteration) {
  Checkpoint checkpoint = checkpoint_at(iteration);
  SavedPolicy critic = policy_at(iteration);
  critic.name = "critic";
  critic.config.rank = 1;
  critic.metadata.rank = 1;
  critic.metadata.version = 40;
  critic.adapter = {{kModule + ".lora_A.weight", ConstTensor(kValues + 6, DType::f32, {1, 3})},
                    {kModule + ".lora_B.weight", ConstTensor(kValues + 3, DType::f32, {4, 1})}};
  checkpoint.policies.push_back(critic);
  return checkpoint;
}

void flip_byte(const fs::Path& file, size_t from_end) {
  std::string bytes = fs::read_file(file);
  bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 1);
  fs::write_file_atomic(file, bytes);
}

TEST(TrainState, IterationNames) {
  EXPECT_EQ(iteration_directory_name(100), "iter_0000100");
  EXPECT_EQ(iteration_directory_name(12345678), "iter_12345678");
}

TEST(TrainState, RoundTrip) {
  const TempDirectory dir;
  const fs::Path save = dir / "new/save";
  EXPECT_FALSE(latest_iteration(save));
  save_checkpoint(save, checkpoint_at(3));
  EXPECT_EQ(latest_iteration(save), 3);
  const LoadedCheckpoint loaded(save, 3);
  EXPECT_EQ(loaded.state().iteration, 3);
  EXPECT_EQ(loaded.state().counters, checkpoint_at(3).state.counters);
  ASSERT_EQ(loaded.state().tensors.size(), 2u);
  EXPECT_EQ(loaded.state().tensors[0].name, "v");
  EXPECT_EQ(loaded.state().tensors[1].tensor.f32()[11], 12);
  EXPECT_EQ(loaded.policy(lora::kActor).directory.config().type, lora::LoraType::fused);
  EXPECT_EQ(loaded.policy(lora::kActor).directory.metadata()->version, 4);
  EXPECT_EQ(loaded.policy(lora::kActor).directory.header().size(), 2u);
}

TEST(TrainState, LayoutOnDisk) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(100));
  for (const char* file : {"lora_adapter/adapter_config.json", "lora_adapter/adapter_model.safetensors",
                           "vime_lora_metadata.json", "train_state.json", "train_state.safetensors"})
    EXPECT_TRUE(std::filesystem::is_regular_file(dir / "iter_0000100" / file)) << file;
  EXPECT_EQ(fs::read_file(dir / "latest_checkpointed_iteration.txt"), "100");
  EXPECT_EQ(dir.entries(), 2);
  EXPECT_EQ(read_json((dir / "iter_0000100/vime_lora_metadata.json").string()).size(), 9u);
}

TEST(TrainState, EveryPolicyHasADirectory) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), two_policies_at(7));
  for (const char* file :
       {"lora_adapter/adapter_model.safetensors", "vime_lora_metadata.json", "policies/critic/adapter_config.json",
        "policies/critic/adapter_model.safetensors", "policies/critic/vime_lora_metadata.json"})
    EXPECT_TRUE(std::filesystem::is_regular_file(dir / "iter_0000007" / file)) << file;
  const LoadedCheckpoint loaded(dir.path(), 7);
  EXPECT_EQ(loaded.policy_names(), (std::vector<std::string>{"actor", "critic"}));
  EXPECT_EQ(loaded.policy("actor").directory.metadata()->version, 8);
  EXPECT_EQ(loaded.policy("critic").directory.metadata()->version, 40);
  EXPECT_EQ(loaded.policy("critic").directory.config().rank, 1);
  EXPECT_EQ(loaded.policy("actor").weights.tensors()[0].tensor.f32()[0], 1);
  EXPECT_EQ(loaded.policy("critic").weights.tensors()[0].tensor.f32()[0], 7);
  expect_error<FormatError>([&] { loaded.policy("teacher"); }, {"iter_0000007", "actor, critic", "teacher"});

  // The actor's files do not depend on who else is saved.
  const TempDirectory alone;
  save_checkpoint(alone.path(), checkpoint_at(7));
  for (const char* file : {"lora_adapter/adapter_config.json", "lora_adapter/adapter_model.safetensors",
                           "vime_lora_metadata.json", "train_state.safetensors"})
    EXPECT_EQ(fs::read_file(dir / "iter_0000007" / file), fs::read_file(alone / "iter_0000007" / file)) << file;
}

TEST(TrainState, APolicyThatIsDamagedOrMissingIsSeen) {
  for (const std::string file : {"policies/critic/adapter_model.safetensors", "policies/critic/adapter_config.json",
                                 "policies/critic/vime_lora_metadata.json"}) {
    const TempDirectory dir;
    save_checkpoint(dir.path(), two_policies_at(1));
    flip_byte(dir / "iter_0000001" / file, 2);
    expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {file.c_str(), "SHA-256"});
    std::filesystem::remove(dir / "iter_0000001" / file);
    expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {file.c_str(), "no such file"});
  }
}

TEST(TrainState, APolicysNameIsADirectorysName) {
  const TempDirectory dir;
  for (const char* name : {"", ".", "..", "a/b", "../x", "actor", "a b", ".hidden", "\u00e9"}) {
    Checkpoint checkpoint = two_policies_at(1);
    checkpoint.policies[1].name = name;
    expect_error<ConfigError>([&] { save_checkpoint(dir.path(), checkpoint); }, {name});
  }
  Checkpoint nobody = two_policies_at(1);
  nobody.policies.erase(nobody.policies.begin());
  expect_error<ConfigError>([&] { save_checkpoint(dir.path(), nobody); }, {"actor"});
  EXPECT_FALSE(latest_iteration(dir.path()));
  save_checkpoint(dir.path(), two_policies_at(1));
  const std::string state = "iter_0000001/train_state.json";
  const Json good = read_json((dir / state).string());
  for (const char* file : {"policies/../adapter_model.safetensors", "policies//adapter_model.safetensors",
                           "policies/actor/adapter_model.safetensors", "/etc/adapter_model.safetensors"}) {
    Json bad = good;
    bad["sha256"][file] = std::string(64, '0');
    dir.write(state, bad.dump());
    expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {"train_state.json: sha256", file});
  }
}

TEST(TrainState, AMovedAdapterKnowsItsBase) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(1));
  std::filesystem::rename(dir / "iter_0000001/lora_adapter", dir / "moved");
  const PeftDirectory moved(dir / "moved");
  ASSERT_TRUE(moved.metadata().has_value());
  EXPECT_EQ(moved.metadata()->base_fingerprint, policy_at(1).metadata.base_fingerprint);
  EXPECT_EQ(moved.config().type, lora::LoraType::fused);
}

TEST(TrainState, SavingTwiceGivesTheSameBytes) {
  const TempDirectory a, b;
  save_checkpoint(a.path(), checkpoint_at(1));
  save_checkpoint(b.path(), checkpoint_at(1));
  for (const char* file : {"lora_adapter/adapter_config.json", "lora_adapter/adapter_model.safetensors",
                           "vime_lora_metadata.json", "train_state.json", "train_state.safetensors"})
    EXPECT_EQ(fs::read_file(a / "iter_0000001" / file), fs::read_file(b / "iter_0000001" / file)) << file;
}

TEST(TrainState, OlderCheckpointsStay) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(1));
  const LoadedCheckpoint first(dir.path(), 1);
  save_checkpoint(dir.path(), checkpoint_at(2));
  save_checkpoint(dir.path(), checkpoint_at(1));  // replaces the directory under an open reader
  EXPECT_EQ(latest_iteration(dir.path()), 1);
  EXPECT_EQ(first.policy(lora::kActor).weights.tensors()[0].tensor.f32()[0], 1);
  EXPECT_NO_THROW(LoadedCheckpoint(dir.path(), 2));
}

TEST(TrainState, AFailedSaveLeavesTheOldOne) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(1));
  Checkpoint bad = checkpoint_at(2);
  bad.state.tensors.push_back(bad.state.tensors[0]);
  EXPECT_THROW(save_checkpoint(dir.path(), bad), FormatError);
  EXPECT_EQ(latest_iteration(dir.path()), 1);
  EXPECT_EQ(dir.entries(), 2);
  expect_error<ResourceError>([] { save_checkpoint("/dev/null/save", checkpoint_at(1)); }, {"/dev/null"});
}

TEST(TrainState, Marker) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(5));
  constexpr const char* kMarker = "latest_checkpointed_iteration.txt";
  dir.write(kMarker, "5\n");
  EXPECT_EQ(latest_iteration(dir.path()), 5);
  for (const char* bad : {"", "x", "5x", "-5", "5 6", "release", "99999999999999999999"}) {
    dir.write(kMarker, bad);
    expect_error<FormatError>([&] { latest_iteration(dir.path()); }, {kMarker});
  }
  dir.write(kMarker, "6");
  expect_error<FormatError>([&] { latest_iteration(dir.path()); }, {kMarker, "iter_0000006"});
}

TEST(TrainState, EveryFileIsNeeded) {
  for (const char* file : {"lora_adapter/adapter_config.json", "lora_adapter/adapter_model.safetensors",
                           "vime_lora_metadata.json", "train_state.json", "train_state.safetensors"}) {
    const TempDirectory dir;
    save_checkpoint(dir.path(), checkpoint_at(1));
    std::filesystem::remove(dir / "iter_0000001" / file);
    const std::string name = fs::Path(file).filename().string();
    expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {"iter_0000001", name.c_str()});
  }
  const TempDirectory dir;
  expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {"iter_0000001"});
}

TEST(TrainState, FlippedBytesAreSeen) {
  for (const char* file :
       {"lora_adapter/adapter_model.safetensors", "train_state.safetensors", "lora_adapter/adapter_config.json",
        "lora_adapter/vime_lora_metadata.json", "vime_lora_metadata.json"})
    for (size_t from_end : {1u, 20u}) {
      const TempDirectory dir;
      save_checkpoint(dir.path(), checkpoint_at(1));
      flip_byte(dir / "iter_0000001" / file, from_end);
      expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {file, "SHA-256"});
    }
}

// Every value that decides how a run goes on is under a hash.
TEST(TrainState, ChangedValuesAreSeen) {
  const auto refused = [](const char* file, const std::string& key, const Json& value) {
    SCOPED_TRACE(key);
    const TempDirectory dir;
    save_checkpoint(dir.path(), checkpoint_at(1));
    const std::string name = std::string("iter_0000001/") + file;
    Json json = read_json((dir / name).string());
    ASSERT_NE(json.at(Json::json_pointer(key)), value);
    json.at(Json::json_pointer(key)) = value;
    dir.write(name, json.dump());
    expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); },
                              {"not the one that was saved", file, "SHA-256"});
  };
  refused("lora_adapter/adapter_config.json", "/lora_alpha", 61);
  refused("lora_adapter/adapter_config.json", "/lora_dropout", 0.5);
  refused("lora_adapter/vime_lora_metadata.json", "/lora_type", "canonical_lora");
  refused("vime_lora_metadata.json", "/version", 9);
  refused("train_state.json", "/counters/step", 16);
  refused("train_state.json", "/counters/lr", 0.2);
}

TEST(TrainState, ACheckpointWithoutTheLaterHashesLoadsAndSaysSo) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(1));
  EXPECT_TRUE(LoadedCheckpoint(dir.path(), 1).unchecked().empty());
  const std::string file = "iter_0000001/train_state.json";
  Json older = read_json((dir / file).string());
  older.erase("state_sha256");
  for (const char* later :
       {"lora_adapter/adapter_config.json", "lora_adapter/vime_lora_metadata.json", "vime_lora_metadata.json"})
    older["sha256"].erase(later);
  dir.write(file, older.dump());
  const LoadedCheckpoint loaded(dir.path(), 1);
  EXPECT_EQ(loaded.state().counters, checkpoint_at(1).state.counters);
  EXPECT_EQ(loaded.unchecked(),
            (std::vector<std::string>{"lora_adapter/adapter_config.json", "lora_adapter/vime_lora_metadata.json",
                                      "vime_lora_metadata.json", "train_state.json"}));
  // Builds before that wrote the metadata beside the adapter only.
  std::filesystem::remove(dir / "iter_0000001/lora_adapter/vime_lora_metadata.json");
  EXPECT_EQ(LoadedCheckpoint(dir.path(), 1).policy(lora::kActor).directory.metadata()->version, 2);
  older["sha256"].erase("train_state.safetensors");
  dir.write(file, older.dump());
  expect_error<FormatError>([&] { LoadedCheckpoint again(dir.path(), 1); }, {"train_state.safetensors"});
}

TEST(TrainState, DamagedStateNamesTheField) {
  const TempDirectory dir;
  save_checkpoint(dir.path(), checkpoint_at(1));
  const std::string file = "iter_0000001/train_state.json";
  Json good = read_json((dir / file).string());
  good.erase("state_sha256");  // or nothing else would be looked at
  for (const char* key : {"iteration", "counters", "sha256"}) {
    Json bad = good;
    bad.erase(key);
    dir.write(file, bad.dump());
    expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {"train_state.json", key});
  }
  Json negative = good;
  negative["counters"] = {{"optimizer_steps", -5}};
  dir.write(file, negative.dump());
  expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); },
                            {"train_state.json: counters.optimizer_steps", "-5"});
  Json other = good;
  other["iteration"] = 2;
  dir.write(file, other.dump());
  expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); },
                            {"train_state.json: iteration", "another iteration"});
  dir.write(file, good.dump().substr(0, 40));
  expect_error<FormatError>([&] { LoadedCheckpoint loaded(dir.path(), 1); }, {"train_state.json", "invalid JSON"});
}

// A file that cannot be looked at is there: a run that took it for missing would begin anew over its checkpoints.
TEST(TrainState, OnlyAMissingMarkerIsNoCheckpoint) {
  const TempDirectory dir;
  EXPECT_EQ(latest_iteration(dir.path()), std::nullopt);
  EXPECT_EQ(latest_iteration(dir / "absent"), std::nullopt);
  for (const char* marker : {"latest_checkpointed_iteration.txt", "best_checkpointed_iteration.txt"})
    std::filesystem::create_symlink(dir / marker, dir / marker);
  expect_error<DataError>([&] { latest_iteration(dir.path()); }, {"latest_checkpointed", "symbolic links"});
  expect_error<DataError>([&] { best_iteration(dir.path()); }, {"best_checkpointed", "symbolic links"});
}

}  // namespace
}  // namespace lockstep::checkpoint
