#include "checkpoint/peft_directory.h"

#include <fmt/format.h>

#include "checkpoint/file_hash.h"
#include "checkpoint/peft_keys.h"
#include "core/error.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

const float kValues[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
const std::string kModule = "base_model.model.model.layers.0.self_attn.q_proj";

NamedTensors one_pair() {
  return {{kModule + ".lora_A.weight", ConstTensor(kValues, DType::f32, {2, 3})},
          {kModule + ".lora_B.weight", ConstTensor(kValues, DType::f32, {4, 2})}};
}

fs::Path golden(const char* name) {
  return fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/golden" / name;
}

lora::LoraConfig simple_config(int64_t rank, double alpha) {
  lora::LoraConfig config;
  config.rank = rank;
  config.alpha = alpha;
  return config;
}

Json minimal() {
  return {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj"}}};
}

// An adapter directory with one pair and this configuration.
class Adapter {
 public:
  explicit Adapter(const std::string& config, const NamedTensors& tensors = one_pair()) {
    dir_.write("adapter_config.json", config);
    dir_.write("adapter_model.safetensors", safetensors_bytes(tensors, {{"format", "pt"}}));
  }
  explicit Adapter(const Json& config) : Adapter(config.dump()) {}
  explicit Adapter(const char* config) : Adapter(std::string(config)) {}
  const TempDirectory& dir() const { return dir_; }
  lora::LoraConfig config() const { return PeftDirectory(dir_.path()).config(); }

 private:
  TempDirectory dir_;
};

lora::LoraConfig config_with(const std::string& key, const Json& value) {
  Json json = minimal();
  json[key] = value;
  return Adapter(json).config();
}

void expect_refused(const std::string& key, const Json& value) {
  expect_error<FormatError>([&] { config_with(key, value); }, {"adapter_config.json", key.c_str()});
}

TEST(PeftDirectory, GoldenAdapter) {
  const PeftDirectory adapter(golden("qwen3/adapter"));
  EXPECT_EQ(adapter.config().rank, 4);
  EXPECT_EQ(adapter.config().alpha, 8);
  EXPECT_EQ(adapter.config().type, lora::LoraType::canonical);
  EXPECT_EQ(adapter.config().target_modules.size(), 7u);
  EXPECT_FALSE(adapter.config().target_regex);
  EXPECT_EQ(adapter.header().size(), 2u * 7 * 2);
  EXPECT_FALSE(adapter.metadata());
}

// As in the cache of Hugging Face's hub.
TEST(PeftDirectory, FilesMayBeLinks) {
  const Adapter adapter(minimal());
  const TempDirectory links;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    std::filesystem::create_symlink(adapter.dir() / name, links / name);
  const PeftDirectory linked(links.path());
  EXPECT_EQ(linked.config().rank, 2);
  EXPECT_EQ(linked.read_weights().tensors().size(), 2u);
}

TEST(PeftDirectory, SmallFilesThatAreLarge) {
  const Adapter adapter(minimal());
  for (const char* name : {kAdapterMetadataFile, "adapter_config.json"}) {
    adapter.dir().write(name, minimal().dump());
    std::filesystem::resize_file(adapter.dir() / name, kMaxJsonFileBytes + 1);
    expect_error<FormatError>([&] { adapter.config(); }, {name, "too large"});
  }
}

// Nobody may take a file that cannot be looked at for one that is not there.
TEST(PeftDirectory, FilesThatCannotBeLookedAt) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const Adapter adapter(minimal());
    std::filesystem::remove(adapter.dir() / name);
    std::filesystem::create_symlink(name, adapter.dir() / name);
    expect_error<DataError>([&] { adapter.config(); }, {name, "symbolic links"});
  }
}

TEST(PeftDirectory, NamesOfModulesCountOnceAndThereMayNotBeAnyNumber) {
  EXPECT_EQ(config_with("target_modules", {"q_proj", "k_proj", "q_proj"}).target_modules,
            (std::vector<std::string>{"q_proj", "k_proj"}));
  Json names = Json::array();
  for (int i = 0; i <= 100'000; ++i) names.push_back(std::to_string(i) + ".lm_head");
  expect_refused("exclude_modules", names);
  expect_refused("target_modules", names);
}

TEST(PeftDirectory, GoldenPatternsKeepTheirOrder) {
  const lora::LoraConfig config = PeftDirectory(golden("qwen3/adapter_pattern")).config();
  EXPECT_TRUE(config.use_rslora);
  const std::vector<std::pair<std::string, int64_t>> ranks = {{"down_proj", 2},
                                                              {"layers.1.mlp.down_proj", 7},
                                                              {"layers.1.self_attn.q_proj", 8},
                                                              {R"(model\.layers\.0\.mlp\.(gate|up)_proj)", 3}};
  EXPECT_EQ(config.rank_pattern, ranks);
  EXPECT_EQ(config.alpha_pattern.size(), 3u);
  EXPECT_EQ(config.alpha_pattern[1], (std::pair<std::string, double>{"layers.1.self_attn.q_proj", 12}));
}

TEST(PeftDirectory, GoldenRegexAndLayers) {
  EXPECT_EQ(PeftDirectory(golden("qwen3/adapter_regex")).config().target_regex,
            R"(model\.layers\.0\.self_attn\.(q|k)_proj|.*\.mlp\.down_proj)");
  EXPECT_EQ(PeftDirectory(golden("qwen3/adapter_layers")).config().layers_to_transform, (std::vector<int64_t>{1}));
}

TEST(PeftDirectory, GoldenTensorsBesideFactors) {
  EXPECT_TRUE(PeftDirectory(golden("qwen2_untied/adapter_dora")).config().use_dora);
  EXPECT_EQ(PeftDirectory(golden("qwen2_untied/adapter_bias")).config().bias, lora::TrainedBiases::all);
  EXPECT_EQ(PeftDirectory(golden("qwen2_untied/adapter_modules_to_save")).config().modules_to_save,
            std::vector<std::string>{"lm_head"});
}

TEST(PeftDirectory, BaseModelName) {
  Json config = minimal();
  EXPECT_EQ(PeftDirectory(Adapter(config).dir().path()).base_model_name(), "");
  config["base_model_name_or_path"] = nullptr;
  EXPECT_EQ(PeftDirectory(Adapter(config).dir().path()).base_model_name(), "");
  config["base_model_name_or_path"] = "org/base";
  EXPECT_EQ(PeftDirectory(Adapter(config).dir().path()).base_model_name(), "org/base");
  config["base_model_name_or_path"] = 7;
  expect_error<FormatError>([&] { PeftDirectory(Adapter(config).dir().path()); },
                            {"adapter_config.json", "base_model_name_or_path"});
}

TEST(PeftDirectory, AlphaIsAboveZero) {
  for (const Json& alpha : {Json(0), Json(0.0), Json(-1)}) expect_refused("lora_alpha", alpha);
  expect_refused("alpha_pattern", {{"q_proj", 0}});
}

TEST(PeftDirectory, DefaultsOfMissingKeys) {
  const lora::LoraConfig config = Adapter(Json{{"peft_type", "LORA"}, {"target_modules", {"q_proj"}}}).config();
  EXPECT_EQ(config.rank, 8);
  EXPECT_EQ(config.alpha, 8);
  EXPECT_EQ(config.dropout, 0);
  EXPECT_FALSE(config.use_rslora);
  EXPECT_FALSE(config.layers_to_transform);
  EXPECT_TRUE(config.rank_pattern.empty());
}

TEST(PeftDirectory, ValuesInEverySpelling) {
  EXPECT_EQ(config_with("lora_alpha", 2.5).alpha, 2.5);
  EXPECT_EQ(config_with("lora_dropout", 0.25).dropout, 0.25);
  EXPECT_EQ(config_with("lora_dropout", 0).dropout, 0);
  EXPECT_EQ(config_with("layers_to_transform", 3).layers_to_transform, (std::vector<int64_t>{3}));
  EXPECT_EQ(config_with("layers_to_transform", {0, 5}).layers_to_transform, (std::vector<int64_t>{0, 5}));
  EXPECT_FALSE(config_with("layers_to_transform", Json::array()).layers_to_transform);
  EXPECT_EQ(config_with("exclude_modules", {"lm_head", "o_proj"}).exclude_modules.size(), 2u);
  EXPECT_EQ(config_with("target_modules", "all-linear").target_modules, (std::vector<std::string>{"all-linear"}));
  EXPECT_EQ(config_with("target_modules", "ALL-LINEAR").target_modules, (std::vector<std::string>{"all-linear"}));
  for (const Json& pattern : {Json(nullptr), Json(""), Json::array()})
    EXPECT_NO_THROW(config_with("layers_pattern", pattern)) << pattern;
  EXPECT_EQ(config_with("exclude_modules", ".*\\.1\\..*").exclude_regex, ".*\\.1\\..*");
  EXPECT_FALSE(config_with("exclude_modules", "").exclude_regex);
  EXPECT_EQ(config_with("init_lora_weights", "gaussian").init.method, lora::InitMethod::gaussian);
  EXPECT_EQ(config_with("init_lora_weights", false).init.method, lora::InitMethod::random);
}

TEST(PeftDirectory, PatternsInFileOrderNotSorted) {
  const Adapter adapter(
      R"({"peft_type":"LORA","target_modules":["q_proj"],"rank_pattern":{"z":3,"a":5},"alpha_pattern":{"y":1.5,"b":2}})");
  EXPECT_EQ(adapter.config().rank_pattern, (std::vector<std::pair<std::string, int64_t>>{{"z", 3}, {"a", 5}}));
  EXPECT_EQ(adapter.config().alpha_pattern, (std::vector<std::pair<std::string, double>>{{"y", 1.5}, {"b", 2}}));
}

TEST(PeftDirectory, HarmlessKeysPass) {
  const std::vector<std::pair<std::string, Json>> harmless = {{"init_lora_weights", false},
                                                              {"init_lora_weights", "gaussian"},
                                                              {"init_lora_weights", "orthogonal"},
                                                              {"task_type", "CAUSAL_LM"},
                                                              {"task_type", nullptr},
                                                              {"base_model_name_or_path", "x/y"},
                                                              {"inference_mode", false},
                                                              {"auto_mapping", {{"parent_library", "x"}}},
                                                              {"peft_version", "0.20.1"},
                                                              {"revision", "main"},
                                                              {"megatron_core", "megatron.core"},
                                                              {"qalora_group_size", 16},
                                                              {"use_qalora", false},
                                                              {"lora_bias", false},
                                                              {"modules_to_save", nullptr},
                                                              {"modules_to_save", Json::array()},
                                                              {"init_lora_weights", "eva"},
                                                              {"init_lora_weights", "mica"},
                                                              {"fan_in_fan_out", true},
                                                              {"corda_config", {{"corda_method", "ipm"}}},
                                                              {"loftq_config", Json::object()},
                                                              {"loftq_config", {{"loftq_bits", 4}}},
                                                              {"a_key_of_the_future", nullptr},
                                                              {"a_key_of_the_future", false},
                                                              {"a_key_of_the_future", ""}};
  for (const auto& [key, value] : harmless) EXPECT_NO_THROW(config_with(key, value)) << key << " " << value;
}

TEST(PeftDirectory, RefusedKeysAreNamed) {
  expect_refused("use_dora", 1);
  expect_refused("bias", "some");
  expect_refused("modules_to_save", {1});
  expect_refused("layer_replication", {{0, 4}, {2, 5}});
  expect_refused("trainable_token_indices", {1, 2});
  expect_refused("target_parameters", {"mlp.experts.down_proj"});
  expect_refused("lora_bias", true);
  expect_refused("use_qalora", true);
  expect_refused("use_bdlora", {{"a", 1}});
  expect_refused("megatron_config", {{"tp", 2}});
  expect_refused("alora_invocation_tokens", {1});
  expect_refused("ensure_weight_tying", true);
  expect_refused("a_key_of_the_future", 3);
  expect_refused("a_key_of_the_future", 0);
  expect_refused("task_type", "SEQ_CLS");
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "pissa_niter_", "?"})
    expect_refused("init_lora_weights", init);
}

// PEFT's name for a critic: token classification with one label.
TEST(PeftDirectory, AValueHeadIsReadAndWritten) {
  NamedTensors tensors = one_pair();
  tensors.push_back({"base_model.model.score.weight", ConstTensor(kValues, DType::f32, {1, 3})});
  tensors.push_back({"base_model.model.score.bias", ConstTensor(kValues, DType::f32, {1})});
  Json config = minimal();
  config["task_type"] = "TOKEN_CLS";
  for (const Json& saved : {Json(), Json({"classifier", "score"}), Json({"score"})}) {
    config["modules_to_save"] = saved;
    const Adapter adapter(config.dump(), tensors);
    EXPECT_EQ(adapter.config().value_width, 3);
    EXPECT_TRUE(adapter.config().modules_to_save.empty());
    TempDirectory again;
    write_peft_directory(again.path(), adapter.config(), {"q_proj"}, "base", tensors);
    const Json written = read_json((again / "adapter_config.json").string());
    EXPECT_EQ(written["task_type"], "TOKEN_CLS");
    EXPECT_EQ(written["modules_to_save"], Json({"score"}));
    EXPECT_EQ(PeftDirectory(again.path()).config().value_width, 3);
  }
  EXPECT_EQ(Adapter(minimal()).config().value_width, 0);
  const auto refused = [&](const NamedTensors& wrong, const Json& json, const char* why) {
    expect_error<FormatError>([&] { Adapter(json.dump(), wrong).config(); }, {why});
  };
  refused(one_pair(), config, "no value head of one output");
  NamedTensors labels = one_pair();
  labels.push_back({"base_model.model.score.weight", ConstTensor(kValues, DType::f32, {2, 3})});
  refused(labels, config, "no value head of one output");
  refused(tensors, minimal(), "no LoRA factor");
}

TEST(PeftDirectory, WrongValuesAreNamed) {
  for (const Json& r :
       {Json(0), Json(-1), Json(2.5), Json("8"), Json(true), Json(uint64_t{1} << 63), Json(int64_t{1} << 40)})
    expect_refused("r", r);
  for (const Json& alpha : {Json("16"), Json(false), Json::array()}) expect_refused("lora_alpha", alpha);
  for (const Json& dropout : {Json(1.0), Json(-0.1), Json("0")}) expect_refused("lora_dropout", dropout);
  for (const Json& targets : {Json(nullptr), Json::array(), Json(""), Json(7), Json({1}), Json({""})})
    expect_refused("target_modules", targets);
  for (const Json& layers : {Json(-1), Json("1"), Json({0.5}), Json(true), Json({1, "2"})})
    expect_refused("layers_to_transform", layers);
  for (const Json& pattern : {Json("layers"), Json({"layers"}), Json(3)}) expect_refused("layers_pattern", pattern);
  for (const Json& pattern : {Json({{"q", 0}}), Json({{"q", "8"}}), Json({{"q", 1.5}}), Json({8})})
    expect_refused("rank_pattern", pattern);
  for (const Json& pattern : {Json({{"q", "8"}}), Json({{"q", nullptr}}), Json(4)})
    expect_refused("alpha_pattern", pattern);
  for (const Json& exclude : {Json({1}), Json(true)}) expect_refused("exclude_modules", exclude);
  expect_refused("use_rslora", 1);
  expect_refused("peft_type", "LOHA");
  Json both = minimal();
  both["target_modules"] = ".*q_proj";
  both["layers_to_transform"] = {0};
  expect_error<FormatError>([&] { Adapter(both).config(); }, {"layers_to_transform", "regular expression"});
  both.erase("layers_to_transform");
  both["layers_pattern"] = "layers";
  expect_error<FormatError>([&] { Adapter(both).config(); }, {"layers_pattern", "regular expression"});
  both["target_modules"] = {"q_proj"};
  both["layers_to_transform"] = 1;
  EXPECT_EQ(Adapter(both).config().layers_pattern, std::vector<std::string>{"layers"});
}

TEST(PeftDirectory, OtherMethodsAreRefusedWithTheWayOut) {
  expect_error<FormatError>([] { config_with("peft_type", "VERA"); }, {"peft_type", "VERA", "merge_and_unload"});
  expect_error<FormatError>([] { config_with("peft_type", "PROMPT_TUNING"); }, {"peft_type", "cannot be merged"});
  expect_error<FormatError>([] { config_with("lora_bias", true); }, {"lora_bias", "merge_and_unload"});
  expect_error<FormatError>([] { config_with("trainable_token_indices", {1}); },
                            {"trainable_token_indices", "modules_to_save"});
  for (const PeftType& type : other_peft_types()) expect_refused("peft_type", std::string(type.name));
}

// Every key that refuses refuses; every key that is ignored takes anything.
TEST(PeftDirectory, KeysAreTreatedAsTheirTableSays) {
  for (const PeftKey& key : peft_keys()) {
    const std::string name(key.name);
    if (key.use == KeyUse::refused) {
      EXPECT_FALSE(key.attempt.empty()) << name;
      expect_refused(name, {{"a", 1}});
    }
    if (key.use == KeyUse::ignored) {
      EXPECT_NO_THROW(config_with(name, {{"a", 1}})) << name;
    }
  }
}

// docs/peft.md shows the table that files are read by.
TEST(PeftDirectory, TheTableOfTheDocumentationIsTheListOfKeys) {
  std::string rows;
  for (const PeftKey& key : peft_keys()) {
    const bool refused = key.use == KeyUse::refused;
    rows += fmt::format("| `{}` | {} | {}{}{} |\n", key.name,
                        refused                      ? "refused"
                        : key.use == KeyUse::ignored ? "ignored"
                                                     : "used",
                        key.meaning, refused ? ". Instead: " : "", key.attempt);
  }
  const std::string page = fs::read_file(fs::Path(LOCKSTEP_SOURCE_DIR) / "docs/peft.md");
  EXPECT_NE(page.find("|---|---|---|\n" + rows + "\n"), std::string::npos) << rows;
}

TEST(PeftDirectory, MissingAndMalformedFiles) {
  const TempDirectory dir;
  const auto open = [&] { PeftDirectory adapter(dir.path()); };
  expect_error<FormatError>(open, {"no adapter_config.json"});
  dir.write("adapter_config.json", "{");
  expect_error<FormatError>(open, {"adapter_config.json", "invalid JSON"});
  dir.write("adapter_config.json", "{}");
  expect_error<FormatError>(open, {"peft_type"});
  dir.write("adapter_config.json", minimal().dump());
  expect_error<FormatError>(open, {"no weights", "adapter_model.safetensors"});
  dir.write("adapter_model.bin", "x");
  expect_error<FormatError>(open, {"adapter_model.bin", "no file of torch.save"});
  dir.write("adapter_model.safetensors", "");
  expect_error<FormatError>(open, {"adapter_model.safetensors"});
}

// Each beside a pair, with the key that explains it.
TEST(PeftDirectory, TensorsBesideFactorsAreExplainedByTheConfiguration) {
  const auto read = [](const std::string& name, const std::string& key, const Json& value) {
    NamedTensors tensors = one_pair();
    tensors.push_back({name, ConstTensor(kValues, DType::f32, {3})});
    Json json = minimal();
    json[key] = value;
    Adapter(json.dump(), tensors).config();
  };
  const std::string head = "base_model.model.lm_head";
  EXPECT_NO_THROW(read(kModule + ".lora_magnitude_vector", "use_dora", true));
  EXPECT_NO_THROW(read(kModule + ".base_layer.bias", "bias", "lora_only"));
  EXPECT_NO_THROW(read(kModule + ".bias", "bias", "all"));
  EXPECT_NO_THROW(read(head + ".weight", "modules_to_save", {"lm_head"}));
  EXPECT_NO_THROW(read(head + ".base_layer.weight", "target_modules", {"q_proj", "lm_head"}));
  expect_error<FormatError>([&] { read(kModule + ".lora_embedding_A", "target_modules", {"q_proj"}); },
                            {"no partner", ".lora_embedding_B"});
  expect_error<FormatError>([&] { read(kModule + ".lora_B.bias", "bias", "all"); }, {".lora_B.bias"});
}

TEST(PeftDirectory, OtherTensorsAreNamed) {
  for (const char* name : {".lora_magnitude_vector", ".lora_B.bias", ".lora_embedding_A", ".weight",
                           ".lora_A.default.weight", ".base_layer.bias", ".lora_A.weights"}) {
    NamedTensors tensors = one_pair();
    tensors.push_back({kModule + name, ConstTensor(kValues, DType::f32, {3})});
    const Adapter adapter(minimal().dump(), tensors);
    expect_error<FormatError>([&] { adapter.config(); }, {"adapter_model.safetensors", name});
  }
}

TEST(PeftDirectory, PairsAndDtypes) {
  for (size_t lost : {0u, 1u}) {
    NamedTensors tensors = one_pair();
    tensors.erase(tensors.begin() + static_cast<int>(lost));
    expect_error<FormatError>([&] { Adapter(minimal().dump(), tensors).config(); },
                              {"no partner", one_pair()[lost].name.c_str()});
  }
  NamedTensors tensors = one_pair();
  tensors[0].tensor.dtype = DType::i32;
  expect_error<FormatError>([&] { Adapter(minimal().dump(), tensors).config(); }, {"lora_A", "i32", "bf16"});
  for (DType dtype : {DType::bf16, DType::f16}) {
    tensors[0].tensor.dtype = tensors[1].tensor.dtype = dtype;
    EXPECT_NO_THROW(Adapter(minimal().dump(), tensors).config());
  }
}

const AdapterMetadata kMetadata = {.iteration = 3,
                                   .version = 5,
                                   .rank = 2,
                                   .alpha = 4.5,
                                   .lora_type = "lora",
                                   .target_modules = {"q_proj"},
                                   .base_fingerprint = std::string(64, 'a'),
                                   .weights_fingerprint = std::string(64, 'b')};

TEST(PeftDirectory, MetadataOfTheDirectory) {
  const TempDirectory dir;
  write_peft_directory(dir / "a", simple_config(2, 4), {"q_proj"}, "base", one_pair());
  fs::write_file_atomic(dir / "a/vime_lora_metadata.json", adapter_metadata_text(kMetadata));
  for (const char* spelling : {"a", "a/", "a/."}) {
    const PeftDirectory adapter(dir / spelling);
    ASSERT_TRUE(adapter.metadata()) << spelling;
    EXPECT_EQ(adapter.config().type, lora::LoraType::fused);
    EXPECT_EQ(adapter.metadata()->iteration, 3);
    EXPECT_EQ(adapter.metadata()->version, 5);
    EXPECT_EQ(adapter.metadata()->rank, 2);
    EXPECT_EQ(adapter.metadata()->alpha, 4.5);
    EXPECT_EQ(adapter.metadata()->target_modules, kMetadata.target_modules);
    EXPECT_EQ(adapter.metadata()->base_fingerprint, kMetadata.base_fingerprint);
    EXPECT_EQ(adapter.metadata()->weights_fingerprint, kMetadata.weights_fingerprint);
  }
}

// What lies beside an adapter describes it only if a checkpoint of ours says so by the hash of its weights.
TEST(PeftDirectory, MetadataOfTheParentIsForTheAdapterOfACheckpoint) {
  const TempDirectory dir;
  const auto write_state = [&](const std::string& hash) {
    dir.write("train_state.json", Json{{"sha256", {{"lora_adapter/adapter_model.safetensors", hash}}}}.dump());
  };
  for (const char* name : {"lora_adapter", "stranger"})
    write_peft_directory(dir / name, simple_config(2, 4), {"q_proj"}, "base", one_pair());
  fs::write_file_atomic(dir / "vime_lora_metadata.json", adapter_metadata_text(kMetadata));
  EXPECT_FALSE(PeftDirectory(dir / "lora_adapter").metadata()) << "no checkpoint";
  write_state(file_sha256(dir / "lora_adapter/adapter_model.safetensors"));
  for (const char* spelling : {"lora_adapter", "lora_adapter/"}) {
    const PeftDirectory adapter(dir / spelling);
    ASSERT_TRUE(adapter.metadata()) << spelling;
    EXPECT_EQ(adapter.config().type, lora::LoraType::fused);
  }
  EXPECT_FALSE(PeftDirectory(dir / "stranger").metadata()) << "the same weights, but not the checkpoint's adapter";
  EXPECT_EQ(PeftDirectory(dir / "stranger").config().type, lora::LoraType::canonical);
  write_state(std::string(64, '0'));
  EXPECT_FALSE(PeftDirectory(dir / "lora_adapter").metadata()) << "other weights";
}

// The header is read without what is behind it: no terabyte is taken to say that an adapter does not fit.
TEST(PeftDirectory, OnlyTheHeaderOfTheWeightsIsRead) {
  constexpr uint64_t kColumns = uint64_t{1} << 37;  // a terabyte of f32, in a file without a block of data
  const Json a = {{"dtype", "F32"}, {"shape", {2, kColumns}}, {"data_offsets", {0, 8 * kColumns}}};
  const Json b = {{"dtype", "F32"}, {"shape", {4, 2}}, {"data_offsets", {8 * kColumns, 8 * kColumns + 32}}};
  std::string header = Json{{kModule + ".lora_A.weight", a}, {kModule + ".lora_B.weight", b}}.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 255);
  const TempDirectory dir;
  dir.write("adapter_config.json", minimal().dump());
  const fs::Path weights = dir.write("adapter_model.safetensors", bytes + header);
  std::filesystem::resize_file(weights, 8 + header.size() + 8 * kColumns + 32);
  const PeftDirectory adapter(dir.path());
  ASSERT_EQ(adapter.header().size(), 2u);
  EXPECT_EQ(adapter.header()[0].tensor.shape[1], static_cast<int64_t>(kColumns));
  std::filesystem::resize_file(weights, 8 + header.size() + 8 * kColumns);
  expect_error<FormatError>([&] { PeftDirectory torn(dir.path()); }, {"do not fill the file"});
  std::filesystem::resize_file(weights, 8 + header.size() / 2);
  expect_error<FormatError>([&] { PeftDirectory torn(dir.path()); }, {"impossible safetensors header length"});
}

TEST(PeftDirectory, WeightsThatChangedSinceAreCheckedAgain) {
  const Adapter adapter(minimal());
  const PeftDirectory opened(adapter.dir().path());
  EXPECT_EQ(opened.read_weights().tensors().size(), 2u);
  NamedTensors tensors = one_pair();
  tensors.pop_back();
  adapter.dir().write("adapter_model.safetensors", safetensors_bytes(tensors, {}));
  expect_error<FormatError>([&] { opened.read_weights(); }, {"no partner"});
}

TEST(PeftDirectory, BadMetadataNamesFileAndField) {
  const TempDirectory dir;
  write_peft_directory(dir / "a", simple_config(2, 4), {"q_proj"}, "base", one_pair());
  fs::write_file_atomic(dir / "good.json", adapter_metadata_text(kMetadata));
  const Json good = read_json((dir / "good.json").string());
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{{"iteration", "3"},
                                                                            {"version", 1.5},
                                                                            {"rank", nullptr},
                                                                            {"alpha", "x"},
                                                                            {"lora_type", "qlora"},
                                                                            {"target_modules", {1}},
                                                                            {"base_fingerprint", 7},
                                                                            {"base_weights_fingerprint", 7}}) {
    Json bad = good;
    bad[key] = value;
    dir.write("a/vime_lora_metadata.json", bad.dump());
    expect_error<FormatError>([&] { PeftDirectory adapter(dir / "a"); }, {"vime_lora_metadata.json", key.c_str()});
  }
}

TEST(WritePeftDirectory, RoundTrip) {
  lora::LoraConfig config = simple_config(2, 4);
  config.dropout = 0.125;
  config.use_rslora = true;
  config.exclude_modules = {"o_proj"};
  config.layers_to_transform = {0, 2};
  config.rank_pattern = {{"z_proj", 4}, {"a_proj", 2}};
  config.alpha_pattern = {{"z_proj", 1.5}, {"a_proj", 16}};
  const TempDirectory dir;
  write_peft_directory(dir / "x", config, {"q_proj", "v_proj"}, "org/base", one_pair());
  EXPECT_EQ(dir.entries(), 1);
  const PeftDirectory adapter(dir / "x");
  EXPECT_EQ(adapter.config().rank, 2);
  EXPECT_EQ(adapter.config().alpha, 4);
  EXPECT_EQ(adapter.config().dropout, 0.125);
  EXPECT_TRUE(adapter.config().use_rslora);
  EXPECT_EQ(adapter.config().target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(adapter.config().exclude_modules, config.exclude_modules);
  EXPECT_EQ(adapter.config().layers_to_transform, config.layers_to_transform);
  EXPECT_EQ(adapter.config().rank_pattern, config.rank_pattern);
  EXPECT_EQ(adapter.config().alpha_pattern, config.alpha_pattern);
  ASSERT_EQ(adapter.header().size(), 2u);
  EXPECT_EQ(fs::read_file(dir / "x/adapter_model.safetensors"), safetensors_bytes(one_pair(), {{"format", "pt"}}));
}

TEST(WritePeftDirectory, WhatIsTrainedBesideFactorsIsSaid) {
  lora::LoraConfig config = simple_config(2, 4);
  config.use_dora = true;
  config.bias = lora::TrainedBiases::lora_only;
  config.modules_to_save = {"lm_head"};
  const TempDirectory dir;
  write_peft_directory(dir / "x", config, {"q_proj"}, "", one_pair());
  const lora::LoraConfig read = PeftDirectory(dir / "x").config();
  EXPECT_TRUE(read.use_dora);
  EXPECT_EQ(read.bias, config.bias);
  EXPECT_EQ(read.modules_to_save, config.modules_to_save);
}

TEST(WritePeftDirectory, TextIsWhatPeftAndServersRead) {
  const TempDirectory dir;
  write_peft_directory(dir / "x", simple_config(8, 16), {"q_proj", "v_proj"}, "org/base", one_pair());
  EXPECT_EQ(fs::read_file(dir / "x/adapter_config.json"), R"({
  "alpha_pattern": {},
  "base_model_name_or_path": "org/base",
  "bias": "none",
  "exclude_modules": null,
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_pattern": null,
  "layers_to_transform": null,
  "lora_alpha": 16,
  "lora_dropout": 0.0,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 8,
  "rank_pattern": {},
  "target_modules": [
    "q_proj",
    "v_proj"
  ],
  "task_type": "CAUSAL_LM",
  "use_dora": false,
  "use_rslora": false
})");
}

}  // namespace
}  // namespace lockstep::checkpoint
