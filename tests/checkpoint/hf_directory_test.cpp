#include "checkpoint/hf_directory.h"

#include "checkpoint/safetensors.h"
#include "core/error.h"
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

void expect_open_error(const TempDirectory& dir, std::initializer_list<const char*> parts) {
  HfDirectory directory(dir.path());
  expect_error<FormatError>([&] { directory.open_weights(); }, parts);
  EXPECT_TRUE(directory.tensors().empty());
}

TEST(HfDirectory, GoldenDirectories) {
  for (const char* name : {"qwen3", "mistral", "smollm2"}) {
    HfDirectory directory(golden(name));
    directory.open_weights();
    EXPECT_GT(directory.tensors().size(), 10u);
    EXPECT_TRUE(directory.config().contains("model_type"));
    for (size_t i = 1; i < directory.tensors().size(); ++i)
      EXPECT_LT(directory.tensors()[i - 1].name, directory.tensors()[i].name);
  }
  HfDirectory sharded(golden("mistral"));
  sharded.open_weights();
  EXPECT_EQ(sharded.weight_files().size(), 2u);
}

TEST(HfDirectory, ShardsAreJoinedSorted) {
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory directory(dir.path());
  directory.open_weights();
  ASSERT_EQ(directory.tensors().size(), 3u);
  EXPECT_EQ(directory.tensors()[1].name, "b");
  float last = 0;
  directory.tensors()[2].read(&last, 7 * sizeof(float), sizeof(float));
  EXPECT_EQ(last, 8);
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
  expect_open_error(dir, {"no weights", dir.path().c_str()});
  dir.write("pytorch_model.bin", "x");
  expect_open_error(dir, {"pickle", "save_pretrained"});
}

// What is open keeps its tensors, whatever happens to its name; what is cut off is an error where it is read.
TEST(HfDirectory, WeightsThatChangeAfterTheyWereOpened) {
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory directory(dir.path());
  directory.open_weights();
  std::filesystem::resize_file(dir / "two.safetensors", std::filesystem::file_size(dir / "two.safetensors") - 1);
  std::filesystem::remove(dir / "one.safetensors");
  const NamedTensors& tensors = directory.tensors();
  float values[2] = {};
  tensors[0].read(values, 0, sizeof(values));
  EXPECT_EQ(values[1], 2);
  tensors[1].read(values, 0, sizeof(float));
  expect_error<DataError>([&] { tensors[1].read(values, 0, sizeof(values)); },
                          {"two.safetensors", "changed while it was read"});
}

TEST(HfDirectory, FilesTooLargeToBeWhatTheyShouldBe) {
  const TempDirectory dir;
  dir.write("config.json", "{}");
  for (const char* name : {"generation_config.json", "config.json"}) {
    dir.write(name, "{}");
    std::filesystem::resize_file(dir / name, kMaxJsonFileBytes + 1);
    expect_error<FormatError>([&] { HfDirectory directory(dir.path()); }, {name, "too large"});
  }
}

TEST(HfDirectory, MissingShard) {
  const TempDirectory dir;
  write_sharded(dir);
  std::filesystem::remove(dir / "two.safetensors");
  expect_open_error(dir, {kIndex, "two.safetensors", "missing"});
}

TEST(HfDirectory, TensorInTheWrongShard) {
  const TempDirectory dir;
  write_sharded(dir);
  write_index(dir, {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}});
  expect_open_error(dir, {"one.safetensors", "c", "two.safetensors"});
}

TEST(HfDirectory, SurplusTensorInAShard) {
  const TempDirectory dir;
  write_sharded(dir);
  write_index(dir, {{"b", "two.safetensors"}, {"c", "one.safetensors"}});
  expect_open_error(dir, {"one.safetensors", "got:    a", kIndex});
}

TEST(HfDirectory, TensorThatNoShardHas) {
  const TempDirectory dir;
  write_sharded(dir);
  write_index(dir,
              {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}, {"d", "two.safetensors"}});
  expect_open_error(dir, {"two.safetensors", "lacks", "wanted: d"});
}

TEST(HfDirectory, MalformedIndex) {
  const TempDirectory dir;
  write_sharded(dir);
  for (const char* file : {"../one.safetensors", "/etc/passwd", "..", ""}) {
    write_index(dir, {{"a", file}});
    expect_open_error(dir, {kIndex, "a file name"});
  }
  write_index(dir, {{"a", 3}});
  expect_open_error(dir, {kIndex, "a string"});
  write_index(dir, Json::object());
  expect_open_error(dir, {kIndex, "names no tensors"});
  dir.write(kIndex, "{}");
  expect_open_error(dir, {kIndex, "weight_map"});
}

TEST(HfDirectory, DamagedShardNamesTheFile) {
  const TempDirectory dir;
  write_sharded(dir);
  const std::string bytes = fs::read_file(dir / "two.safetensors");
  dir.write("two.safetensors", std::string_view(bytes).substr(0, bytes.size() - 1));
  expect_open_error(dir, {"two.safetensors"});
}

TEST(ResolveHfCheckpoint, DirectoryCacheOrHelp) {
  const TempDirectory dir;
  const fs::Path cache = dir / "hub";
  EXPECT_EQ(resolve_hf_checkpoint(dir.path().string(), cache), dir.path());
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("org/name", cache); },
                            {"org/name", "hf download org/name", "models--org--name"});
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("/no/such/dir", cache); }, {"/no/such/dir"});
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("../up", cache); }, {"../up"});
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("", cache); }, {"Base::path"});
  dir.write("hub/models--org--name/refs/main", "abc123\n");
  expect_error<ConfigError>([&] { resolve_hf_checkpoint("org/name", cache); }, {"hf download"});
  dir.write("hub/models--org--name/snapshots/abc123/config.json", "{}");
  EXPECT_EQ(resolve_hf_checkpoint("org/name", cache), cache / "models--org--name/snapshots/abc123");
  dir.write("hub/models--gpt2/refs/main", "f");
  dir.write("hub/models--gpt2/snapshots/f/config.json", "{}");
  EXPECT_EQ(resolve_hf_checkpoint("gpt2", cache), cache / "models--gpt2/snapshots/f");
}

}  // namespace
}  // namespace lockstep::checkpoint
