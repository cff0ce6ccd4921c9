// What `export` writes, read back without it.
#include "commands/files/export.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "checkpoint/safetensors.h"
#include "commands/commands_fixture.h"
#include "core/file_lock.h"
#include "support/gguf_reader.h"

namespace lockstep::commands {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::GgufReader;

const std::string kLlama = LOCKSTEP_SOURCE_DIR "/tests/golden/llama3";
const std::string kTorch = LOCKSTEP_SOURCE_DIR "/tests/golden/torch";

// Matrices of a file as f64, by name.
struct Matrix {
  int64_t rows = 0, cols = 1;
  std::vector<double> values;
  double at(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * cols + col)]; }
};

std::map<std::string, Matrix> matrices(const std::string& file) {
  const checkpoint::SafetensorsFile read{fs::Path(file)};
  std::map<std::string, Matrix> found;
  for (const NamedTensor& named : read.tensors()) {
    Matrix& matrix = found[named.name];
    matrix.rows = named.tensor[0];
    if (named.tensor.rank == 2) matrix.cols = named.tensor[1];
    for (int64_t i = 0; i < named.tensor.elements(); ++i)
      matrix.values.push_back(named.tensor.dtype == DType::f32
                                  ? static_cast<const float*>(named.tensor.data)[i]
                                  : to_f32(static_cast<const BFloat16*>(named.tensor.data)[i]));
  }
  return found;
}

// W + scale B A of a module; the adapter of the fixture has rank 4 and alpha 8.
Matrix merged(const std::map<std::string, Matrix>& model, const std::map<std::string, Matrix>& adapter,
              const std::string& module) {
  Matrix result = model.at(module + ".weight");
  const Matrix& a = adapter.at("base_model.model." + module + ".lora_A.weight");
  const Matrix& b = adapter.at("base_model.model." + module + ".lora_B.weight");
  for (int64_t row = 0; row < result.rows; ++row)
    for (int64_t col = 0; col < result.cols; ++col)
      for (int64_t k = 0; k < a.rows; ++k)
        result.values[static_cast<size_t>(row * result.cols + col)] += 2 * b.at(row, k) * a.at(k, col);
  return result;
}

// The matrix as llama.cpp's llama models want q and k: entries i and i + half of a head stand beside one another.
Matrix neighbours(const Matrix& from, int64_t heads) {
  Matrix to = from;
  const int64_t size = from.rows / heads;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < size / 2; ++i)
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t col = 0; col < from.cols; ++col)
          to.values[static_cast<size_t>((head * size + 2 * i + part) * from.cols + col)] =
              from.at(head * size + part * (size / 2) + i, col);
  return to;
}

void expect_values(const GgufReader& file, const std::string& name, const Matrix& wanted, double tolerance) {
  const std::vector<float> got = file.values(name);
  ASSERT_EQ(got.size(), wanted.values.size()) << name;
  double largest = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(wanted.values[i]));
    worst = std::max(worst, std::abs(got[i] - wanted.values[i]));
  }
  EXPECT_LE(worst, tolerance * largest) << name;
}

class Export : public Commands {
 protected:
  // The file that `options` give.
  std::string exported(ExportOptions options, const std::string& name) {
    options.output = path(name);
    options.base.stream.threads = 2;
    run_export(options, control_);
    return options.output;
  }

  // A llama model with a tokenizer.
  std::string llama_with_tokenizer() {
    return model_with(kLlama, "tokenizer.json", read_json(kArith + "/tokenizer.json"));
  }
};

TEST_F(Export, ModelsKeepTheirWeights) {
  const GgufReader file(exported({.base = {.hf_checkpoint = kArith}}, "arith.gguf"));
  const auto model = matrices(kArith + "/model.safetensors");
  EXPECT_EQ(file.tensors.size(), model.size());
  EXPECT_EQ(file.strings.at("general.architecture"), "qwen3");
  EXPECT_EQ(file.numbers.at("general.file_type"), 32);
  EXPECT_EQ(file.numbers.at("qwen3.block_count"), 4);
  EXPECT_EQ(file.numbers.at("qwen3.attention.head_count_kv"), 2);
  EXPECT_EQ(file.numbers.at("qwen3.attention.key_length"), 32);
  EXPECT_EQ(file.numbers.at("qwen3.rope.freq_base"), 10000);
  EXPECT_EQ(file.numbers.at("tokenizer.ggml.eos_token_id"), 0);
  EXPECT_EQ(file.strings.at("tokenizer.ggml.pre"), "smollm");
  EXPECT_EQ(file.string_lists.at("tokenizer.ggml.tokens").size(), 288u);
  expect_values(file, "token_embd.weight", model.at("model.embed_tokens.weight"), 0);
  expect_values(file, "blk.3.attn_q.weight", model.at("model.layers.3.self_attn.q_proj.weight"), 0);
  expect_values(file, "blk.0.attn_k_norm.weight", model.at("model.layers.0.self_attn.k_norm.weight"), 0);
  EXPECT_EQ(file.tensors.at("blk.0.attn_k_norm.weight").type, 0u);
  EXPECT_EQ(file.tensors.at("token_embd.weight").type, 30u);
  EXPECT_EQ(file.tensors.at("token_embd.weight").shape, (std::vector<uint64_t>{128, 288}));
}

TEST_F(Export, AdaptersAreMergedIntoModels) {
  for (const lora::LoraType type : {lora::LoraType::fused, lora::LoraType::canonical}) {
    const std::string adapter = adapter_of(kArith, type);
    const auto model = matrices(kArith + "/model.safetensors");
    const auto factors = matrices(adapter + "/adapter_model.safetensors");
    for (const auto& [type_name, tolerance] : std::map<ExportType, double>{
             {ExportType::f32, 1e-6}, {ExportType::bf16, 0x1p-8}, {ExportType::f16, 0x1p-11}}) {
      const GgufReader file(
          exported({.base = {.hf_checkpoint = kArith}, .adapter_path = adapter, .type = type_name}, "merged.gguf"));
      for (const auto& [module, name] : std::map<std::string, std::string>{{"self_attn.q_proj", "attn_q"},
                                                                           {"self_attn.o_proj", "attn_output"},
                                                                           {"mlp.up_proj", "ffn_up"},
                                                                           {"mlp.down_proj", "ffn_down"}})
        expect_values(file, "blk.2." + name + ".weight", merged(model, factors, "model.layers.2." + module), tolerance);
      expect_values(file, "token_embd.weight", model.at("model.embed_tokens.weight"), tolerance);
    }
  }
}

TEST_F(Export, LlamaModelsHaveTheirRotatedRowsSideBySide) {
  const std::string model_path = llama_with_tokenizer();
  const std::string adapter = adapter_of(kLlama, lora::LoraType::canonical);
  const auto model = matrices(kLlama + "/model.safetensors");
  const auto factors = matrices(adapter + "/adapter_model.safetensors");
  const GgufReader file(exported(
      {.base = {.hf_checkpoint = model_path}, .adapter_path = adapter, .type = ExportType::f32}, "llama.gguf"));
  const std::string layer = "model.layers.1.self_attn.";
  expect_values(file, "blk.1.attn_q.weight", neighbours(merged(model, factors, layer + "q_proj"), 4), 1e-6);
  expect_values(file, "blk.1.attn_k.weight", neighbours(merged(model, factors, layer + "k_proj"), 2), 1e-6);
  expect_values(file, "blk.1.attn_v.weight", merged(model, factors, layer + "v_proj"), 1e-6);
  expect_values(file, "output.weight", model.at("lm_head.weight"), 0);
  EXPECT_EQ(file.numbers.at("llama.context_length"), 512);
  // Frequencies above 64 / 4 positions are kept, those below 64 / 1 are 8 times as slow (config.json).
  const std::vector<float> stretch = file.values("rope_freqs.weight");
  ASSERT_EQ(stretch.size(), 8u);
  EXPECT_EQ(stretch.front(), 1);
  EXPECT_NEAR(stretch.back(), 8, 1e-5);
  EXPECT_TRUE(std::ranges::is_sorted(stretch));
}

TEST_F(Export, AdaptersOfLlamaCppAreTheFactors) {
  const std::string adapter = adapter_of(kLlama, lora::LoraType::fused);
  const auto factors = matrices(adapter + "/adapter_model.safetensors");
  const GgufReader file(exported(
      {.base = {.hf_checkpoint = kLlama}, .adapter_path = adapter, .format = ExportFormat::gguf_lora}, "lora.gguf"));
  EXPECT_EQ(file.tensors.size(), factors.size());
  EXPECT_EQ(file.strings.at("general.type"), "adapter");
  EXPECT_EQ(file.strings.at("adapter.type"), "lora");
  EXPECT_EQ(file.strings.at("general.architecture"), "llama");
  EXPECT_EQ(file.numbers.at("adapter.lora.alpha"), 8);
  const std::string module = "base_model.model.model.layers.0.";
  expect_values(file, "blk.0.attn_q.weight.lora_a", factors.at(module + "self_attn.q_proj.lora_A.weight"), 0);
  expect_values(file, "blk.0.attn_q.weight.lora_b",
                neighbours(factors.at(module + "self_attn.q_proj.lora_B.weight"), 4), 0);
  expect_values(file, "blk.0.attn_k.weight.lora_b",
                neighbours(factors.at(module + "self_attn.k_proj.lora_B.weight"), 2), 0);
  expect_values(file, "blk.0.attn_v.weight.lora_b", factors.at(module + "self_attn.v_proj.lora_B.weight"), 0);
  expect_values(file, "blk.0.ffn_down.weight.lora_b", factors.at(module + "mlp.down_proj.lora_B.weight"), 0);
  // Rows as long as the rank are no blocks of 32.
  const GgufReader blocks(exported({.base = {.hf_checkpoint = kLlama},
                                    .adapter_path = adapter,
                                    .format = ExportFormat::gguf_lora,
                                    .type = ExportType::q8_0},
                                   "blocks.gguf"));
  EXPECT_EQ(blocks.tensors.at("blk.0.attn_q.weight.lora_a").type, 8u);
  EXPECT_EQ(blocks.tensors.at("blk.0.attn_q.weight.lora_b").type, 1u);
  EXPECT_NE(taken(info_).find("rows that q8_0 cannot hold and are f16"), std::string::npos);
}

// llama.cpp knows alpha / rank of one alpha; rsLoRA divides by the root, patterns give modules ranks of their own.
TEST_F(Export, EveryModuleKeepsItsScale) {
  const std::string adapter = adapter_of(kLlama, lora::LoraType::canonical);
  Json config = read_json(adapter + "/adapter_config.json");
  config["use_rslora"] = true;
  config["alpha_pattern"] = {{"v_proj", 2}};
  std::filesystem::remove(adapter + "/vime_lora_metadata.json");
  fs::write_file_atomic(adapter + "/adapter_config.json", config.dump());
  const auto factors = matrices(adapter + "/adapter_model.safetensors");
  const GgufReader file(exported(
      {.base = {.hf_checkpoint = kLlama}, .adapter_path = adapter, .format = ExportFormat::gguf_lora}, "lora.gguf"));
  for (const auto& [names, scale] : std::map<std::pair<std::string, std::string>, double>{
           {{"attn_v", "self_attn.v_proj"}, 2 / 2.0}, {{"ffn_up", "mlp.up_proj"}, 8 / 2.0}}) {
    Matrix wanted = factors.at("base_model.model.model.layers.1." + names.second + ".lora_B.weight");
    const double theirs = file.numbers.at("adapter.lora.alpha") / 4;
    for (double& value : wanted.values) value *= scale / theirs;
    expect_values(file, "blk.1." + names.first + ".weight.lora_b", wanted, 1e-6);
  }
}

TEST_F(Export, PeftDirectoriesOfOtherTypes) {
  const std::string adapter = adapter_of(kTiny, lora::LoraType::fused);
  const auto factors = matrices(adapter + "/adapter_model.safetensors");
  const std::string output = exported({.base = {.hf_checkpoint = kTiny},
                                       .adapter_path = adapter,
                                       .format = ExportFormat::peft,
                                       .type = ExportType::bf16},
                                      "peft");
  const checkpoint::PeftDirectory written{fs::Path(output)};
  EXPECT_EQ(written.base_model_name(), kTiny);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(output), {}), 2);
  const auto got = matrices(output + "/adapter_model.safetensors");
  ASSERT_EQ(got.size(), factors.size());
  for (const auto& [name, matrix] : factors)
    for (size_t i = 0; i < matrix.values.size(); ++i)
      EXPECT_EQ(got.at(name).values[i], to_f32(to_bf16(static_cast<float>(matrix.values[i])))) << name;
  // As they are, without a base: the same bytes.
  const std::string same = exported({.adapter_path = output, .format = ExportFormat::peft}, "same");
  for (const char* file : {"/adapter_model.safetensors", "/adapter_config.json"})
    EXPECT_EQ(fs::read_file(same + file), fs::read_file(output + file));
  // An adapter that is there is replaced when asked for, as a whole; another directory is not.
  dir_.write("same/checkpoint-7/optimizer.pt", "x");
  const ExportOptions again = {.adapter_path = adapter, .format = ExportFormat::peft};
  expect_error<ConfigError>([&] { exported(again, "same"); }, {"not empty", "--overwrite"});
  EXPECT_TRUE(fs::exists(dir_ / "same/checkpoint-7/optimizer.pt"));
  ExportOptions replacing = again;
  replacing.overwrite = true;
  EXPECT_EQ(exported(replacing, "same"), same);
  EXPECT_FALSE(fs::exists(dir_ / "same/checkpoint-7"));
  EXPECT_EQ(matrices(same + "/adapter_model.safetensors").begin()->second.values, factors.begin()->second.values);
  dir_.write("mine/notes.txt", "x");
  expect_error<ConfigError>([&] { exported(replacing, "mine"); }, {"holds something else", "no adapter_config.json"});
  EXPECT_TRUE(fs::exists(dir_ / "mine/notes.txt"));
  // Neither the adapter itself nor a directory around it.
  replacing.adapter_path = output;
  expect_error<ConfigError>([&] { exported(replacing, "peft"); }, {"would replace an input"});
  std::filesystem::create_directory(dir_ / "run");
  std::filesystem::rename(output, dir_ / "run" / "checkpoint-1");
  std::filesystem::copy(same, dir_ / "run", std::filesystem::copy_options::recursive);
  replacing.adapter_path = (dir_ / "run/checkpoint-1").string();
  expect_error<ConfigError>([&] { exported(replacing, "run"); }, {"would replace an input"});
  EXPECT_TRUE(fs::exists(dir_ / "run/checkpoint-1/adapter_model.safetensors"));
}

TEST_F(Export, PeftDirectoriesOfMilesAndVimeBecomeSafetensors) {
  const std::string output = exported({.adapter_path = kTorch + "/adapter", .format = ExportFormat::peft}, "peft");
  const checkpoint::SafetensorsFile got(fs::Path(output) / "adapter_model.safetensors");
  EXPECT_EQ(got.tensors().size(), 4u);
  EXPECT_EQ(matrices(output + "/adapter_model.safetensors").begin()->second.values,
            matrices(kTorch + "/adapter.safetensors").begin()->second.values);
}

TEST_F(Export, OnlyAGgufFileIsReplaced) {
  const auto written = [&] { return exported({.base = {.hf_checkpoint = kArith}}, "x.gguf"); };
  std::ofstream(dir_ / "x.gguf");  // an empty one, as mktemp makes it
  const std::string file = written();
  EXPECT_EQ(written(), file);
  for (const char* text : {"notes", "GGU", "{\"a\": 1}"}) {
    fs::write_file_atomic(file, text);
    expect_error<ConfigError>([&] { written(); }, {"holds something else", "x.gguf"});
    EXPECT_EQ(fs::read_file(file), text);
  }
  expect_error<ConfigError>([&] { run_export({.base = {.hf_checkpoint = kArith}, .output = "/dev/null"}, control_); },
                            {"not a regular file"});
}

TEST_F(Export, NothingIsLeftOfAnExportThatFails) {
  const std::string model = llama_with_tokenizer();
  const auto entries = dir_.entries();
  control_.interrupted = [] { return true; };
  expect_error<Cancelled>([&] { exported({.base = {.hf_checkpoint = model}}, "x.gguf"); }, {"nothing was written"});
  control_.interrupted = [] { return false; };
  expect_error<Error>(
      [&] { exported({.base = {.hf_checkpoint = kArith}, .adapter_path = kTorch + "/adapter"}, "x.gguf"); },
      {"q_proj"});
  expect_error<ConfigError>([&] { exported({.base = {.hf_checkpoint = kArith}, .adapter_path = kArith}, "x.gguf"); },
                            {"no adapter there"});
  {
    const fs::FileLock lock(dir_ / ".x.gguf.lock", "it", "");
    expect_error<ResourceError>([&] { exported({.base = {.hf_checkpoint = kArith}}, "x.gguf"); },
                                {"--output is in use"});
  }
  std::filesystem::remove(dir_ / ".x.gguf.lock");
  EXPECT_EQ(dir_.entries(), entries);
}

TEST_F(Export, WhatLlamaCppWouldComputeDifferentlyIsRefusedOrTold) {
  const auto config_of = [](const std::string& model, const std::string& key, const Json& value) {
    Json config = read_json(model + "/config.json");
    config[key] = value;
    return config;
  };
  const std::string biased = model_with(kArith, "config.json", config_of(kArith, "attention_bias", true));
  expect_error<FormatError>([&] { exported({.base = {.hf_checkpoint = biased}}, "x.gguf"); }, {"attention_bias"});
  const std::string stretched = model_with(kArith, "config.json",
                                           config_of(kArith, "rope_scaling",
                                                     {{"rope_type", "llama3"},
                                                      {"factor", 8.0},
                                                      {"low_freq_factor", 1.0},
                                                      {"high_freq_factor", 4.0},
                                                      {"original_max_position_embeddings", 64}}));
  expect_error<FormatError>([&] { exported({.base = {.hf_checkpoint = stretched}}, "x.gguf"); }, {"llama3"});
  Json sliding = config_of(kArith, "use_sliding_window", true);
  sliding["sliding_window"] = 100, sliding["max_window_layers"] = 2;
  const GgufReader file(exported({.base = {.hf_checkpoint = model_with(kArith, "config.json", sliding)}}, "x.gguf"));
  EXPECT_EQ(file.numbers.at("qwen3.context_length"), 100);
  EXPECT_NE(taken(info_).find("sliding window"), std::string::npos);
  expect_error<DataError>([&] { exported({.base = {.hf_checkpoint = kTiny}}, "y.gguf"); }, {"tokenizer.json"});
}

}  // namespace
}  // namespace lockstep::commands
