#include "checkpoint/hf_directory.h"

#include <chrono>

#include "core/error.h"
#include "core/hash.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

constexpr const char* kIndex = "model.safetensors.index.json";
const float kValues[8] = {1, 2, 3, 4, 5, 6, 7, 8};
const ConstTensor kTwo(kValues, DType::f32, {2});
const ConstTensor kMatrix(kValues, DType::f32, {2, 4});

fs::Path golden(const char* name) {
  return fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/golden" / name;
}

void write_index(const TempDirectory& dir, const Json& weight_map) {
  dir.write(kIndex, Json({{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}).dump());
}

// config.json and two shards: a, c in the first, b in the second.
void write_sharded(const TempDirectory& dir) {
  dir.write("config.json", R"({"model_type":"llama"})");
  dir.write("one.safetensors", safetensors_bytes({{"a", kTwo}, {"c", kMatrix}}, {}));
  dir.write("two.safetensors", safetensors_bytes({{"b", kTwo}}, {}));
  write_index(dir, {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}});
}

void expect_map_error(const TempDirectory& dir, std::initializer_list<const char*> parts) {
  HfDirectory directory(dir.path());
  expect_error<FormatError>([&] { directory.map_weights(); }, parts);
  EXPECT_TRUE(directory.tensors().empty());
}

TEST(HfDirectory, GoldenDirectories) {
  for (const char* name : {"qwen3", "mistral", "smollm2"}) {
    HfDirectory directory(golden(name));
    directory.map_weights();
    EXPECT_GT(directory.tensors().size(), 10u);
    EXPECT_TRUE(directory.config().contains("model_type"));
    for (size_t i = 1; i < directory.tensors().size(); ++i)
      EXPECT_LT(directory.tensors()[i - 1].name, directory.tensors()[i].name);
  }
  HfDirectory sharded(golden("mistral"));
  sharded.map_weights();
  EXPECT_EQ(sharded.weight_files().size(), 2u);
}

TEST(HfDirectory, ShardsAreJoinedSorted) {
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory directory(dir.path());
  directory.map_weights();
  ASSERT_EQ(directory.tensors().size(), 3u);
  EXPECT_EQ(directory.tensors()[1].name, "b");
  EXPECT_EQ(directory.tensors()[2].tensor.row(1)[3], 8);
  EXPECT_EQ(directory.weight_files(), (std::vector<fs::Path>{dir / "one.safetensors", dir / "two.safetensors"}));
}

TEST(HfDirectory, EosIdsAreAUnion) {
  const TempDirectory dir;
  dir.write("config.json", R"({"eos_token_id":7})");
  EXPECT_EQ(HfDirectory(dir.path()).eos_token_ids(), (std::vector<int32_t>{7}));
  dir.write("generation_config.json", R"({"eos_token_id":[9,7,9,2]})");
  EXPECT_EQ(HfDirectory(dir.path()).eos_token_ids(), (std::vector<int32_t>{9, 7, 2}));
  dir.write("config.json", R"({"eos_token_id":null})");
  EXPECT_EQ(HfDirectory(dir.path()).eos_token_ids(), (std::vector<int32_t>{9, 7, 2}));
  for (const char* bad : {"\"</s>\"", "-1", "1.5", "[1,\"x\"]", "4294967296", "true", "[[1]]"}) {
    dir.write("generation_config.json", std::string("{\"eos_token_id\":") + bad + "}");
    expect_error<FormatError>([&] { HfDirectory(dir.path()).eos_token_ids(); },
                              {"generation_config.json: eos_token_id"});
  }
}

TEST(HfDirectory, MissingAndMalformedConfig) {
  const TempDirectory dir;
  expect_error<FormatError>([&] { HfDirectory directory(dir.path()); }, {dir.path().c_str(), "no config.json"});
  expect_error<FormatError>([&] { HfDirectory directory(dir / "absent"); }, {"absent", "no such directory"});
  dir.write("config.json", "{");
  expect_error<FormatError>([&] { HfDirectory directory(dir.path()); }, {"config.json", "invalid JSON"});
  dir.write("config.json", "[]");
  expect_error<FormatError>([&] { HfDirectory directory(dir.path()); }, {"config.json", "an object"});
  dir.write("config.json", "{}");
  dir.write("generation_config.json", "7");
  expect_error<FormatError>([&] { HfDirectory directory(dir.path()); }, {"generation_config.json", "an object"});
}

TEST(HfDirectory, NoWeightsAndPickleOnly) {
  const TempDirectory dir;
  dir.write("config.json", "{}");
  expect_map_error(dir, {"no weights", dir.path().c_str()});
  dir.write("pytorch_model.bin", "x");
  expect_map_error(dir, {"pickle", "save_pretrained"});
}

TEST(HfDirectory, MissingShard) {
  const TempDirectory dir;
  write_sharded(dir);
  std::filesystem::remove(dir / "two.safetensors");
  expect_map_error(dir, {kIndex, "two.safetensors", "missing"});
}

TEST(HfDirectory, TensorInTheWrongShard) {
  const TempDirectory dir;
  write_sharded(dir);
  write_index(dir, {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}});
  expect_map_error(dir, {"one.safetensors", "c", "two.safetensors"});
}

TEST(HfDirectory, SurplusTensorInAShard) {
  const TempDirectory dir;
  write_sharded(dir);
  write_index(dir, {{"b", "two.safetensors"}, {"c", "one.safetensors"}});
  expect_map_error(dir, {"one.safetensors", "got:    a", kIndex});
}

TEST(HfDirectory, TensorThatNoShardHas) {
  const TempDirectory dir;
  write_sharded(dir);
  write_index(dir,
              {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}, {"d", "two.safetensors"}});
  expect_map_error(dir, {"two.safetensors", "lacks", "wanted: d"});
}

TEST(HfDirectory, MalformedIndex) {
  const TempDirectory dir;
  write_sharded(dir);
  for (const char* file : {"../one.safetensors", "/etc/passwd", "..", ""}) {
    write_index(dir, {{"a", file}});
    expect_map_error(dir, {kIndex, "a file name"});
  }
  write_index(dir, {{"a", 3}});
  expect_map_error(dir, {kIndex, "a string"});
  write_index(dir, Json::object());
  expect_map_error(dir, {kIndex, "names no tensors"});
  dir.write(kIndex, "{}");
  expect_map_error(dir, {kIndex, "weight_map"});
}

TEST(HfDirectory, DamagedShardNamesTheFile) {
  const TempDirectory dir;
  write_sharded(dir);
  const std::string bytes = fs::read_file(dir / "two.safetensors");
  dir.write("two.safetensors", std::string_view(bytes).substr(0, bytes.size() - 1));
  expect_map_error(dir, {"two.safetensors"});
}

TEST(ResolveHfCheckpoint, DirectoryCacheOrHelp) {
  const TempDirectory dir;
  const fs::Path cache = dir / "hub";
  EXPECT_EQ(resolve_hf_checkpoint(dir.path().string(), cache), dir.path());
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("org/name", cache); },
                            {"org/name", "hf download org/name", "models--org--name"});
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("/no/such/dir", cache); }, {"/no/such/dir"});
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("../up", cache); }, {"../up"});
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("", cache); }, {"--hf-checkpoint"});
  dir.write("hub/models--org--name/refs/main", "abc123\n");
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("org/name", cache); }, {"hf download"});
  dir.write("hub/models--org--name/snapshots/abc123/config.json", "{}");
  EXPECT_EQ(resolve_hf_checkpoint("org/name", cache), cache / "models--org--name/snapshots/abc123");
  dir.write("hub/models--gpt2/refs/main", "f");
  dir.write("hub/models--gpt2/snapshots/f/config.json", "{}");
  EXPECT_EQ(resolve_hf_checkpoint("gpt2", cache), cache / "models--gpt2/snapshots/f");
}

TEST(BaseFingerprint, IsTheHashOfTheDescribedBytes) {
  std::string bytes(
      "a\0f32\0"
      "2\0",
      8);
  bytes.append(reinterpret_cast<const char*>(kValues), 8);
  bytes.append(
      "c\0f32\0"
      "2,4\0",
      10);
  bytes.append(reinterpret_cast<const char*>(kValues), 32);
  Sha256 hash;
  hash.update(bytes);
  EXPECT_EQ(base_fingerprint({{"a", kTwo}, {"c", kMatrix}}), hash.hex());
}

TEST(BaseFingerprint, EveryPartCountsShardingDoesNot) {
  const std::string base = base_fingerprint({{"a", kTwo}, {"b", kTwo}, {"c", kMatrix}});
  EXPECT_NE(base, base_fingerprint({{"a", kTwo}, {"b", kTwo}, {"d", kMatrix}}));
  EXPECT_NE(base, base_fingerprint({{"a", kTwo}, {"b", kTwo}, {"c", ConstTensor(kValues, DType::f32, {4, 2})}}));
  EXPECT_NE(base, base_fingerprint({{"a", kTwo}, {"b", kTwo}, {"c", ConstTensor(kValues, DType::i32, {2, 4})}}));
  EXPECT_NE(base, base_fingerprint({{"a", kTwo}, {"b", ConstTensor(kValues + 1, DType::f32, {2})}, {"c", kMatrix}}));
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory sharded(dir.path());
  sharded.map_weights();
  EXPECT_EQ(base_fingerprint(sharded.tensors()), base);
}

TEST(CachedBaseFingerprint, RecomputesWhenStaleOrDamaged) {
  const TempDirectory dir, home;
  write_sharded(dir);
  const fs::Path cache = home / "sub/fingerprints.json";
  const auto fingerprint = [&] {
    HfDirectory directory(dir.path());
    directory.map_weights();
    return cached_base_fingerprint(directory, cache);
  };
  const std::string first = fingerprint();
  EXPECT_EQ(first, base_fingerprint({{"a", kTwo}, {"b", kTwo}, {"c", kMatrix}}));

  // A planted entry shows that the cache is used; a changed file that it is not believed for ever.
  Json planted = read_json(cache.string());
  planted.begin().value()["fingerprint"] = std::string(64, '0');
  fs::write_file_atomic(cache, planted.dump());
  EXPECT_EQ(fingerprint(), std::string(64, '0'));
  std::filesystem::last_write_time(dir / "two.safetensors",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(fingerprint(), first);
  dir.write("two.safetensors", safetensors_bytes({{"b", ConstTensor(kValues, DType::f32, {1, 2})}}, {}));
  EXPECT_NE(fingerprint(), first);
  write_sharded(dir);

  const std::string good = fs::read_file(cache);
  for (const std::string& damaged : {std::string("{"), std::string(), std::string("[1]"),
                                     good.substr(0, good.size() / 2), Json({{dir.path().string(), 7}}).dump()}) {
    fs::write_file_atomic(cache, damaged);
    EXPECT_EQ(fingerprint(), first) << damaged;
  }
}

TEST(CachedBaseFingerprint, AnUnwritableCacheIsNoError) {
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory directory(dir.path());
  directory.map_weights();
  EXPECT_EQ(cached_base_fingerprint(directory, "/dev/null/cache.json"), base_fingerprint(directory.tensors()));
}

TEST(CachedBaseFingerprint, ManyModelsShareOneFile) {
  const TempDirectory a, b, home;
  write_sharded(a);
  b.write("config.json", "{}");
  b.write("model.safetensors", safetensors_bytes({{"x", kTwo}}, {}));
  for (const TempDirectory* dir : {&a, &b, &a}) {
    HfDirectory directory(dir->path());
    directory.map_weights();
    EXPECT_EQ(cached_base_fingerprint(directory, home / "f.json"), base_fingerprint(directory.tensors()));
  }
  EXPECT_EQ(read_json((home / "f.json").string()).size(), 2u);
}

}  // namespace
}  // namespace lockstep::checkpoint
