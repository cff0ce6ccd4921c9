// Megatron's names and layouts of an adapter: against a small example worked out by hand, and there and back.
#include <gtest/gtest.h>

#include "commands/commands_fixture.h"
#include "commands/files/commands.h"
#include "commands/files/megatron_names.h"
#include "load/lora_factors.h"
#include "recipes/golden_case.h"

namespace lockstep::commands {
namespace {

using testing::expect_error;

class Convert : public Commands {
 protected:
  std::string convert(AdapterNames to, const std::string& base, const std::string& adapter, const std::string& output,
                      std::optional<lora::LoraType> type = std::nullopt) {
    run_convert(
        {.base = {.hf_checkpoint = base}, .adapter_path = adapter, .output = path(output), .to = to, .lora_type = type},
        control_);
    return path(output);
  }
  static checkpoint::SafetensorsFile tensors(const std::string& directory) {
    return checkpoint::SafetensorsFile(fs::Path(directory) / checkpoint::kAdapterWeightsFile);
  }
  static void expect_same_tensors(const std::string& a, const std::string& b) {
    const auto first = tensors(a), second = tensors(b);
    ASSERT_EQ(first.tensors().size(), second.tensors().size());
    for (const NamedTensor& named : first.tensors()) {
      const ConstTensor* other = second.find(named.name);
      ASSERT_NE(other, nullptr) << named.name;
      ASSERT_EQ(shape_text(*other), shape_text(named.tensor)) << named.name;
      EXPECT_EQ(std::memcmp(other->data, named.tensor.data,
                            static_cast<size_t>(named.tensor.elements() * dtype_bytes(named.tensor.dtype))),
                0)
          << named.name;
    }
  }
  static void expect_same_adapter(const std::string& a, const std::string& b) {
    expect_same_tensors(a, b);
    const load::AdapterFactors first{checkpoint::PeftDirectory(a)}, second{checkpoint::PeftDirectory(b)};
    for (const load::ModuleFactors& module : first.modules()) EXPECT_EQ(second.find(module.name)->scale, module.scale);
  }
};

// Four query heads in two groups, heads of 2 rows, rank 1: row r of q holds r, of k 10 + r, of v 20 + r.
//   linear_qkv: group 0 = q heads 0, 1 (rows 0..3), k head 0 (10, 11), v head 0 (20, 21); group 1 the rest
//   linear_fc1: gate (30..32), then up (40..42)
TEST_F(Convert, AnExampleWorkedOutByHand) {
  const Json config = {
      {"model_type", "llama"},  {"vocab_size", 8},          {"hidden_size", 8},         {"intermediate_size", 3},
      {"num_hidden_layers", 1}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"max_position_embeddings", 8}};
  dir_.write("base/config.json", config.dump());
  std::vector<std::vector<float>> memory;
  NamedTensors adapter;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols, float first) {
    std::vector<float>& values = memory.emplace_back();
    for (int64_t i = 0; i < rows * cols; ++i) values.push_back(first + static_cast<float>(i));
    adapter.push_back(
        {"base_model.model.model.layers.0." + name, ConstTensor(values.data(), DType::f32, {rows, cols})});
  };
  const auto module = [&](const std::string& name, int64_t out, float first_b, float first_a, int64_t in) {
    add(name + ".lora_A.weight", 1, in, first_a);
    add(name + ".lora_B.weight", out, 1, first_b);
  };
  module("self_attn.q_proj", 8, 0, 100, 8);
  module("self_attn.k_proj", 4, 10, 100, 8);
  module("self_attn.v_proj", 4, 20, 100, 8);
  module("self_attn.o_proj", 8, 50, 200, 8);
  module("mlp.gate_proj", 3, 30, 300, 8);
  module("mlp.up_proj", 3, 40, 300, 8);
  module("mlp.down_proj", 8, 60, 400, 3);
  checkpoint::write_peft_directory(path("hf"), {.rank = 1, .alpha = 2},
                                   {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
                                   "base", adapter);
  const std::string out = convert(AdapterNames::megatron, path("base"), path("hf"), "megatron");
  const checkpoint::SafetensorsFile file = tensors(out);
  const std::map<std::string, std::vector<float>> wanted = {
      {"self_attention.linear_qkv.adapter.linear_in", {100, 101, 102, 103, 104, 105, 106, 107}},
      {"self_attention.linear_qkv.adapter.linear_out", {0, 1, 2, 3, 10, 11, 20, 21, 4, 5, 6, 7, 12, 13, 22, 23}},
      {"self_attention.linear_proj.adapter.linear_in", {200, 201, 202, 203, 204, 205, 206, 207}},
      {"self_attention.linear_proj.adapter.linear_out", {50, 51, 52, 53, 54, 55, 56, 57}},
      {"mlp.linear_fc1.adapter.linear_in", {300, 301, 302, 303, 304, 305, 306, 307}},
      {"mlp.linear_fc1.adapter.linear_out", {30, 31, 32, 40, 41, 42}},
      {"mlp.linear_fc2.adapter.linear_in", {400, 401, 402}},
      {"mlp.linear_fc2.adapter.linear_out", {60, 61, 62, 63, 64, 65, 66, 67}}};
  ASSERT_EQ(file.tensors().size(), wanted.size());
  for (const auto& [name, values] : wanted) {
    const ConstTensor* tensor = file.find("decoder.layers.0." + name + ".weight");
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(std::vector<float>(tensor->f32(), tensor->f32() + tensor->elements()), values) << name;
  }
  const Json written = read_json(out + "/adapter_config.json");
  EXPECT_EQ(written["target_modules"], Json({"linear_fc1", "linear_fc2", "linear_proj", "linear_qkv"}));
  EXPECT_EQ(written["r"], 1);
  EXPECT_EQ(written["lora_alpha"], 2);
  expect_same_adapter(path("hf"), convert(AdapterNames::hf, path("base"), out, "back"));
}

TEST_F(Convert, ThereAndBackBitForBit) {
  for (const lora::LoraType type : {lora::LoraType::fused, lora::LoraType::canonical}) {
    const std::string name = lora::lora_type_name(type);
    const std::string adapter = adapter_of(kArith, type);
    const std::string megatron = convert(AdapterNames::megatron, kArith, adapter, name);
    EXPECT_EQ(tensors(megatron).find("decoder.layers.3.self_attention.linear_qkv.adapter.linear_in.weight") != nullptr,
              type == lora::LoraType::fused);
    EXPECT_EQ(tensors(megatron).find("decoder.layers.3.mlp.linear_fc1.adapter.adapter_up.linear_out.weight") != nullptr,
              type == lora::LoraType::canonical);
    const std::string back = convert(AdapterNames::hf, kArith, megatron, name + "_back");
    expect_same_adapter(adapter, back);
    EXPECT_EQ(fs::read_file(adapter + "/vime_lora_metadata.json"), fs::read_file(back + "/vime_lora_metadata.json"));
    expect_same_tensors(megatron, convert(AdapterNames::megatron, kArith, back, name + "_again"));
    Stream stream({.threads = 1});
    EXPECT_NO_THROW(
        recipes::load_adapter(back, recipes::load_base({.hf_checkpoint = kArith}, stream, control_), control_));
  }
}

// Layers, ranks and alphas of their own, and rsLoRA, which Megatron does not have.
TEST_F(Convert, PatternsAndLayers) {
  for (const std::string name : {"adapter_pattern", "adapter_layers", "adapter_regex"}) {
    const std::string megatron = convert(AdapterNames::megatron, kTiny, kTiny + "/" + name, name);
    EXPECT_FALSE(read_json(megatron + "/adapter_config.json")["use_rslora"]);
    expect_same_adapter(kTiny + "/" + name, convert(AdapterNames::hf, kTiny, megatron, name + "_back"));
  }
  EXPECT_NE(taken(info_).find("Megatron has no rsLoRA"), std::string::npos);
}

TEST_F(Convert, Refuses) {
  const std::string canonical = adapter_of(kArith, lora::LoraType::canonical),
                    fused = adapter_of(kArith, lora::LoraType::fused);
  expect_error<FormatError>([&] { convert(AdapterNames::megatron, kArith, canonical, "out", lora::LoraType::fused); },
                            {"share one A", "canonical_lora"});
  expect_error<ShapeError>([&] { convert(AdapterNames::megatron, kTiny, canonical, "out"); }, {"heads and widths"});
  const std::string megatron = convert(AdapterNames::megatron, kArith, fused, "megatron");
  expect_error<ShapeError>([&] { convert(AdapterNames::hf, kTiny, megatron, "out"); }, {"heads and widths"});
  expect_error<FormatError>([&] { convert(AdapterNames::hf, kArith, fused, "out"); },
                            {"no name on the other side", "decoder.layers.0"});
  expect_error<FormatError>([&] { convert(AdapterNames::megatron, kArith, megatron, "out"); }, {"no LoRA factor"});
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_TRUE(tensors(convert(AdapterNames::megatron, kArith, fused, "forced", lora::LoraType::canonical))
                  .find("decoder.layers.0.self_attention.linear_qkv.adapter.adapter_k.linear_in.weight"));
}

TEST(MegatronNames, ThereAndBack) {
  for (int linear = 0; linear < kMegatronLinears; ++linear)
    for (int part = -1; part < num_parts(static_cast<MegatronLinear>(linear)); ++part) {
      const auto p = static_cast<MegatronLinear>(linear);
      if (num_parts(p) == 1 && part >= 0) continue;
      const MegatronSite site{.layer = 11, .linear = p, .part = part < 0 ? std::nullopt : std::optional(part)};
      for (const bool is_a : {true, false})
        for (const std::string prefix : {"", "module.", "module.module."}) {
          const auto parsed = parse_megatron_tensor(prefix + megatron_tensor(site, is_a));
          ASSERT_TRUE(parsed) << megatron_tensor(site, is_a);
          EXPECT_EQ(parsed->site, site);
          EXPECT_EQ(parsed->is_a, is_a);
        }
      if (part >= 0 || num_parts(p) == 1) {
        EXPECT_EQ(parse_hf_module(hf_module(site)), site);
      }
    }
  for (const char* name :
       {"decoder.layers.x.mlp.linear_fc1.adapter.linear_in.weight", "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.adapter.adapter_q.linear_in.weight", "", "module."})
    EXPECT_FALSE(parse_megatron_tensor(name)) << name;
  EXPECT_FALSE(parse_hf_module("model.layers.0.mlp.experts.0.gate_proj"));
}

}  // namespace
}  // namespace lockstep::commands
