// What a directory says becomes a base or an adapter, or an error that names the file and the field.
#include <gtest/gtest.h>

#include "load/loading.h"

namespace lockstep::load {
namespace {

using testing::expect_error, testing::kArith, testing::kTiny, testing::loaded;

class LoadTest : public testing::Loading {
 protected:
  static lora::AdapterVersion read(const std::string& path, const Base& base) {
    const checkpoint::PeftDirectory directory{fs::Path(path)};
    return load_adapter(check_adapter(directory, base), directory.read_weights(), base);
  }
};

TEST_F(LoadTest, FaultsOfAnAdapterNameFileAndField) {
  Stream stream({.threads = 1});
  const Base base = loaded(kTiny, stream);
  const auto faulty = [&](const char* file, const char* key, const Json& value, const char* place) {
    SCOPED_TRACE(place);
    const std::string adapter = adapter_of(kTiny, lora::LoraType::canonical);
    change(fs::Path(adapter) / file, key, value);
    expect_error<FormatError>([&] { read(adapter, base); }, {place});
  };
  const char* config = "adapter_config.json";
  faulty(config, "target_modules", {"c_attn"}, "lora_adapter/adapter_config.json: target_modules");
  faulty(config, "target_modules", "(q_proj", "lora_adapter/adapter_config.json: target_modules");
  faulty(config, "lora_alpha", 0, "lora_adapter/adapter_config.json: lora_alpha");
  faulty(config, "layers_to_transform", {99}, "lora_adapter/adapter_config.json: layers_to_transform");
  faulty(config, "r", int64_t{1} << 17, "lora_adapter/adapter_config.json: r");
  faulty("vime_lora_metadata.json", "base_fingerprint", std::string(64, '0'),
         "vime_lora_metadata.json: base_fingerprint");
  faulty("vime_lora_metadata.json", "version", -1, "vime_lora_metadata.json: version");
  const std::string other = adapter_of(kArith, lora::LoraType::canonical);
  std::filesystem::remove(fs::Path(other) / "vime_lora_metadata.json");
  expect_error<ShapeError>([&] { read(other, base); },
                           {"lora_adapter/adapter_model.safetensors: base_model.model.model.layers.0."});
}

TEST_F(LoadTest, AModelThatLacksATensorIsNamed) {
  const std::string llama = LOCKSTEP_SOURCE_DIR "/tests/golden/smollm2";
  Json config = read_json(llama + "/config.json");
  config["num_hidden_layers"] = 3;
  const std::string model = model_with(llama, "config.json", config);
  Stream stream({.threads = 1});
  expect_error<FormatError>([&] { loaded(model, stream); }, {(model + ": model.layers.2.").c_str()});
}

TEST_F(LoadTest, AnAdapterOfHighRankLoads) {
  const std::string adapter = adapter_of(kTiny, lora::LoraType::canonical, 70);  // the model is 64 wide
  Stream stream({.threads = 1});
  const Base base = loaded(kTiny, stream);
  EXPECT_EQ(read(adapter, base).layout->pairs[0].rank, 70);
}

TEST_F(LoadTest, WhatMemoryHoldsIsWhatTheFilesHold) {
  Stream stream({.threads = 2});
  const Base base = loaded(kTiny, stream);
  EXPECT_EQ(fingerprint_of_memory(*base.model, stream), base.fingerprint);
  EXPECT_NE(loaded(kArith, stream).fingerprint, base.fingerprint);
}

// By default nothing outside of the model's directory is looked at.
TEST_F(LoadTest, CachesAreThoseThatAreNamed) {
  Stream stream({.threads = 1});
  EXPECT_TRUE(caches_below("").models.empty() && caches_below("").fingerprints.empty());
  const Caches caches = caches_below(path("home"));
  dir_.write("home/.cache/huggingface/hub/models--org--tiny/refs/main", "abc");
  const fs::Path snapshot = dir_.path() / "home/.cache/huggingface/hub/models--org--tiny/snapshots/abc";
  std::filesystem::create_directories(snapshot);
  for (const auto& entry : std::filesystem::directory_iterator(kTiny))
    if (entry.is_regular_file())
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), snapshot / entry.path().filename());
  EXPECT_EQ(model_directory("org/tiny", caches), snapshot);
  expect_error<ConfigError>([] { model_directory("org/tiny"); }, {"org/tiny", "Base::path"});

  const Base base = identify_base("org/tiny", stream, caches);
  EXPECT_EQ(base.fingerprint, loaded(kTiny, stream).fingerprint);
  const std::string kept = fs::read_file(caches.fingerprints);
  EXPECT_NE(kept.find(base.weights_fingerprint), std::string::npos) << kept;
}

TEST_F(LoadTest, RandomWeightsAreTheSameInEveryRun) {
  Stream stream({.threads = 1}), other({.threads = 2});
  Base one = read_base_config(kTiny), two = read_base_config(kTiny);
  fill_weights(one, stream);
  fill_weights(two, other);
  EXPECT_EQ(one.fingerprint, two.fingerprint);
  EXPECT_EQ(fingerprint_of_memory(*one.model, stream), fingerprint_of_memory(*two.model, other));
  EXPECT_NE(one.fingerprint, loaded(kTiny, stream).fingerprint);
  EXPECT_EQ(one.load_seconds, 0);
}

TEST_F(LoadTest, AnAdapterHasTheNumberAndTheNotesOfItsDirectory) {
  Stream stream({.threads = 1});
  const Base base = loaded(kTiny, stream);
  const std::string adapter = adapter_of(kTiny, lora::LoraType::fused);
  EXPECT_EQ(read(adapter, base).policy, (lora::PolicyId{adapter, 7}));
  EXPECT_TRUE(check_adapter(checkpoint::PeftDirectory{fs::Path(adapter)}, base).notes.empty());
  change(fs::Path(adapter) / "vime_lora_metadata.json", "base_fingerprint", base.weights_fingerprint);
  change(fs::Path(adapter) / "vime_lora_metadata.json", "base_weights_fingerprint", nullptr);
  const CheckedAdapter older = check_adapter(checkpoint::PeftDirectory{fs::Path(adapter)}, base);
  ASSERT_EQ(older.notes.size(), 1u);
  EXPECT_NE(older.notes[0].find("is of an older build"), std::string::npos) << older.notes[0];
}

}  // namespace
}  // namespace lockstep::load
