#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "model/fixture.h"

namespace lockstep::model {
namespace {

std::string format_error(const Json& json) {
  try {
    parse_config(json, "dir/config.json");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}

TEST(Config, DefaultsOfTheFamilies) {
  const ModelSpec llama = parse_config({{"model_type", "llama"}}, "x");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.ffn, 11008);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_FLOAT_EQ(llama.norm_eps, 1e-6f);
  EXPECT_FALSE(llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm || llama.tied_head);

  const ModelSpec mistral = parse_config({{"model_type", "mistral"}}, "x");
  EXPECT_EQ(mistral.ffn, 14336);
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.max_positions, 131072);
  EXPECT_EQ(mistral.window, std::vector<int64_t>(32, 4096));

  const ModelSpec qwen2 = parse_config({{"model_type", "qwen2"}}, "x");
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.ffn, 22016);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias);
  EXPECT_EQ(qwen2.window, std::vector<int64_t>(32, 0));

  const ModelSpec qwen3 = parse_config(
      {{"model_type", "qwen3"}, {"hidden_size", 1024}, {"num_attention_heads", 16}, {"num_key_value_heads", 8}}, "x");
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.q_width(), 2048);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
}

TEST(Config, NullMeansWhatTransformersMakesOfIt) {
  EXPECT_EQ(parse_config(with(tiny_json("llama"), "num_key_value_heads", nullptr), "x").kv_heads, 4);
  EXPECT_EQ(parse_config(with(tiny_json("llama"), "head_dim", nullptr), "x").head_dim, 8);
  EXPECT_EQ(parse_config(with(tiny_json("mistral"), "sliding_window", nullptr), "x").window,
            std::vector<int64_t>(3, 0));
}

TEST(Config, Windows) {
  EXPECT_EQ(tiny_config("mistral").window, std::vector<int64_t>(3, 5));
  Json json = tiny_json("qwen2");
  json["sliding_window"] = 6;
  json["max_window_layers"] = 1;
  EXPECT_EQ(parse_config(json, "x").window, (std::vector<int64_t>{0, 0, 0}));
  json["use_sliding_window"] = true;
  EXPECT_EQ(parse_config(json, "x").window, (std::vector<int64_t>{0, 6, 6}));
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(parse_config(json, "x").window, (std::vector<int64_t>{6, 0, 6}));
  json["use_sliding_window"] = false;
  EXPECT_NE(format_error(json).find("layer_types"), std::string::npos);
  json["layer_types"] = {"full_attention", "full_attention", "linear_attention"};
  EXPECT_NE(format_error(json).find("linear_attention"), std::string::npos);
  json["layer_types"] = {"full_attention"};
  EXPECT_NE(format_error(json), "");
  EXPECT_NE(
      format_error(with(tiny_json("mistral"), "layer_types", {"full_attention", "full_attention", "full_attention"})),
      "");
  EXPECT_NE(format_error(with(tiny_json("mistral"), "sliding_window", 0)), "");
}

TEST(Config, UnknownKeys) {
  EXPECT_NE(format_error(with(tiny_json("llama"), "logit_scale", 0.5)).find("logit_scale"), std::string::npos);
  EXPECT_NE(format_error(with(tiny_json("llama"), "sliding_window", 7)).find("sliding_window"), std::string::npos);
  EXPECT_NE(format_error(with(tiny_json("qwen2"), "auto_map", Json{{"AutoModel", "x.y"}})).find("auto_map"),
            std::string::npos);
  const std::string quantized = format_error(with(tiny_json("llama"), "quantization_config", Json{{"bits", 4}}));
  EXPECT_NE(quantized.find("quantization_config"), std::string::npos);
  EXPECT_NE(quantized.find("quantized"), std::string::npos);
  EXPECT_NE(format_error(with(tiny_json("llama"), "attention_dropout", 0.1)).find("attention_dropout"),
            std::string::npos);
  EXPECT_NE(format_error(with(tiny_json("llama"), "rope_interleaved", true)).find("rope_interleaved"),
            std::string::npos);
  for (const Json& nothing : {Json(), Json(false), Json(""), Json::array(), Json::object()})
    EXPECT_EQ(format_error(with(tiny_json("llama"), "some_new_key", nothing)), "");
  for (const char* key : {"bos_token_id", "_model_name_or_path", "id2label", "initializer_range", "pretraining_tp",
                          "transformers.js_config", "torch_dtype"})
    EXPECT_EQ(format_error(with(tiny_json("llama"), key, 1)), "") << key;
}

TEST(Config, ImpossibleNumbers) {
  const std::pair<const char*, Json> cases[] = {{"hidden_size", 0},         {"hidden_size", 30},
                                                {"vocab_size", -1},         {"num_hidden_layers", 1000000},
                                                {"num_key_value_heads", 3}, {"head_dim", 7},
                                                {"intermediate_size", 1e3}, {"vocab_size", "many"},
                                                {"rms_norm_eps", 0},        {"max_position_embeddings", 0},
                                                {"rope_theta", -1},         {"hidden_act", "gelu"},
                                                {"model_type", "gpt2"},     {"tie_word_embeddings", 1}};
  for (const auto& [key, value] : cases) {
    const std::string text = format_error(with(tiny_json("llama"), key, value));
    EXPECT_NE(text.find("dir/config.json"), std::string::npos) << key;
    EXPECT_NE(text.find(key), std::string::npos) << key << ": " << text;
  }
}

TEST(Rope, OldAndNewSpelling) {
  Json old_json = with(tiny_json("llama"), "rope_theta", 500000.0);
  old_json["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 64}};
  Json new_json = tiny_json("llama");
  new_json["rope_parameters"] = old_json["rope_scaling"];
  new_json["rope_parameters"]["rope_theta"] = 500000.0;
  const ModelSpec one = parse_config(old_json, "x"), two = parse_config(new_json, "x");
  EXPECT_EQ(one.rope.type, RopeType::llama3);
  EXPECT_EQ(rope_frequencies(one), rope_frequencies(two));
  EXPECT_NE(rope_frequencies(one), rope_frequencies(tiny_config("llama")));
  new_json["rope_theta"] = 500000.0;  // both, in agreement
  EXPECT_EQ(format_error(new_json), "");
  new_json["rope_theta"] = 10000.0;
  EXPECT_NE(format_error(new_json).find("contradicts"), std::string::npos);
}

TEST(Rope, Kinds) {
  const auto scaled = [](const Json& scaling) { return with(tiny_json("llama"), "rope_scaling", scaling); };
  const ModelSpec linear = parse_config(scaled({{"type", "linear"}, {"factor", 4.0}}), "x");
  const std::vector<float> plain = rope_frequencies(tiny_config("llama")), stretched = rope_frequencies(linear);
  ASSERT_EQ(plain.size(), 4u);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_FLOAT_EQ(plain[i], std::pow(10000.0f, -2.0f * i / 8));
    EXPECT_FLOAT_EQ(stretched[i], plain[i] / 4);
  }
  for (const char* kind : {"yarn", "dynamic", "longrope", "su"})
    EXPECT_NE(format_error(scaled({{"rope_type", kind}, {"factor", 2.0}})).find(kind), std::string::npos);
  EXPECT_NE(format_error(scaled({{"rope_type", "linear"}})).find("factor"), std::string::npos);
  EXPECT_NE(format_error(scaled({{"rope_type", "default"}, {"mrope_section", {1, 2}}})).find("mrope_section"),
            std::string::npos);
  EXPECT_NE(format_error(scaled({{"rope_type", "linear"}, {"factor", 0.0}})), "");
  EXPECT_NE(format_error(with(tiny_json("llama"), "partial_rotary_factor", 0.5)).find("partial_rotary_factor"),
            std::string::npos);
  EXPECT_EQ(format_error(with(tiny_json("llama"), "rope_scaling", nullptr)), "");
}

// modeling_rope_utils on Llama 3.2's numbers: the highest frequencies stay, the lowest are divided, between them a
// smooth passage.
TEST(Rope, Llama3Bands) {
  Json json = tiny_json("llama");
  json["head_dim"] = 64;
  json["rope_theta"] = 500000.0;
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 32.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  const std::vector<float> f = rope_frequencies(parse_config(json, "x"));
  json.erase("rope_scaling");
  const std::vector<float> plain = rope_frequencies(parse_config(json, "x"));
  EXPECT_EQ(f[0], plain[0]);
  EXPECT_EQ(f[5], plain[5]);
  EXPECT_FLOAT_EQ(f[31], plain[31] / 32);
  const double wavelength = 2 * M_PI / plain[16], smooth = (8192 / wavelength - 1) / 3;
  ASSERT_GT(smooth, 0);
  ASSERT_LT(smooth, 1);
  EXPECT_NEAR(f[16], (1 - smooth) * plain[16] / 32 + smooth * plain[16], 1e-9);
}

TEST(Tensors, NamesShapesAndCounts) {
  const ModelSpec config = tiny_config("qwen3");
  const std::vector<TensorSpec> specs = expected_tensors(config);
  EXPECT_EQ(specs.size(), 2u + 3 * 11);
  int64_t total = 0;
  bool q_norm = false;
  for (const TensorSpec& spec : specs) {
    EXPECT_NE(spec.name, "lm_head.weight");
    int64_t elements = 1;
    for (const int64_t dim : spec.shape) elements *= dim;
    total += elements;
    if (spec.name == "model.layers.2.self_attn.q_norm.weight") q_norm = spec.shape == std::vector<int64_t>{16};
  }
  EXPECT_TRUE(q_norm);
  EXPECT_EQ(num_parameters(config), total);
  EXPECT_EQ(total, 53 * 32 + 32 + 3 * (32 * 2 + 16 * 2 + 32 * (64 + 32 + 32) + 64 * 32 + 3 * 32 * 40));
}

TEST(Tensors, ModulesAreTheEndsOfTheModelAndThoseOfItsBlocks) {
  std::vector<lora::Module> modules = linear_modules(tiny_config("qwen2"));
  ASSERT_EQ(modules.size(), 23u);
  EXPECT_EQ(modules[0].name, "model.embed_tokens");
  EXPECT_EQ(modules[0].kind, lora::ModuleKind::embedding);
  EXPECT_EQ(modules[0].in, 53);
  EXPECT_EQ(modules[0].out, 32);
  EXPECT_EQ(modules[1].name, "lm_head");
  EXPECT_EQ(modules[1].kind, lora::ModuleKind::head);
  EXPECT_EQ(modules[1].in, 32);
  EXPECT_EQ(modules[1].out, 53);
  EXPECT_EQ(modules[1].site, 1);
  modules.erase(modules.begin(), modules.begin() + 2);
  EXPECT_TRUE(modules[9].has_bias);  // qwen2: of q, k and v alone
  EXPECT_FALSE(modules[10].has_bias);
  EXPECT_EQ(modules[9].name, "model.layers.1.self_attn.v_proj");
  EXPECT_EQ(modules[9].leaf, "v_proj");
  EXPECT_EQ(modules[9].layer, 1);
  EXPECT_EQ(modules[9].in, 32);
  EXPECT_EQ(modules[9].out, 16);
  EXPECT_EQ(modules[9].out_begin, 48);
  // The embedding and the head come first, then four sites a layer.
  EXPECT_EQ(modules[0].site, 2);
  EXPECT_EQ(modules[9].site, 6);
  EXPECT_EQ(modules[10].site, 7);
  EXPECT_EQ(modules.back().site, 2 + 3 * 4 - 1);
}

Json without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

std::string text_of(const Json& json) {
  return canonical_text(parse_config(json, "dir/config.json"));
}

// What adapters are bound to: both spellings of one model are one, and every value that changes a number is seen.
TEST(CanonicalText, OfBothSpellingsIsOne) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  Json old = with(with(tiny_json("llama"), "rope_theta", 500000.0), "rope_scaling", llama3);
  old["torch_dtype"] = "bfloat16";
  Json parameters = llama3;
  parameters["rope_theta"] = 500000;
  Json fresh = with(without(tiny_json("llama"), "rope_theta"), "rope_parameters", parameters);
  fresh["dtype"] = "float32";
  EXPECT_EQ(text_of(old), text_of(fresh));
  const Json plain = with(without(tiny_json("llama"), "rope_theta"), "rope_theta", 10000.0);
  EXPECT_EQ(text_of(plain), text_of(with(without(plain, "rope_theta"), "rope_parameters",
                                         {{"rope_type", "default"}, {"rope_theta", 1e4}})));
}

TEST(CanonicalText, LeavesOutWhatChangesNoNumber) {
  const std::string text = text_of(tiny_json("llama"));
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{{"torch_dtype", "float16"},
                                                                            {"dtype", "float16"},
                                                                            {"_name_or_path", "x"},
                                                                            {"transformers_version", "9"},
                                                                            {"use_cache", false},
                                                                            {"eos_token_id", 7},
                                                                            {"hidden_act", "swish"},
                                                                            {"max_position_embeddings", 4096}})
    EXPECT_EQ(text_of(with(tiny_json("llama"), key, value)), text) << key;
}

TEST(CanonicalText, HasEverythingElse) {
  const Json json = tiny_json("llama");
  const std::string text = text_of(json);
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"rope_theta", 12345.5},
                                                 {"rms_norm_eps", 2e-6},
                                                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                                                 {"tie_word_embeddings", !json.value("tie_word_embeddings", false)},
                                                 {"attention_bias", !json.value("attention_bias", false)},
                                                 {"mlp_bias", !json.value("mlp_bias", false)},
                                                 {"vocab_size", 999},
                                                 {"num_hidden_layers", 5},
                                                 {"intermediate_size", 96},
                                                 {"num_key_value_heads", 1},
                                                 {"head_dim", 16}})
    EXPECT_NE(text_of(with(json, key, value)), text) << key;
  const Json linear = with(json, "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}});
  EXPECT_NE(text_of(linear), text_of(with(json, "rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}})));
  const Json mistral = tiny_json("mistral");
  EXPECT_NE(text_of(with(mistral, "sliding_window", 7)), text_of(with(mistral, "sliding_window", 8)));
}

}  // namespace
}  // namespace lockstep::model
