#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "lora/fixture.h"
#include "lora/targets.h"
#include "support/temp_directory.h"

namespace lockstep::lora {
namespace {

using testing::expect_error;
using Names = std::vector<std::string>;
const Names kAllLeaves = {"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"};

std::string config_error(const LoraConfig& config) {
  try {
    resolve_layout(config, tiny_modules());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Names module_names(const AdapterLayout& layout) {
  Names names;
  for (const Pair& pair : layout.pairs)
    for (const Module& module : pair.modules) names.push_back(module.name);
  return names;
}

TEST(Ranks, ThoseThatAGpuDoesNotTakeAreRefusedWhereverTheyComeFrom) {
  LoraConfig config = tiny_config(LoraType::canonical);
  config.rank = 256;
  EXPECT_NO_THROW(check_ranks(*resolve_layout(config, tiny_modules()), Device::cuda));
  EXPECT_EQ(largest_rank(*resolve_layout(config, tiny_modules())), 256);
  config.rank = 257;
  const auto wide = resolve_layout(config, tiny_modules());
  EXPECT_NO_THROW(check_ranks(*wide, Device::cpu));
  expect_error<ConfigError>([&] { check_ranks(*wide, Device::cuda); },
                            {"LoraConfig::rank", "257", "at most 256", "q_proj", "StreamOptions::device cpu"});
  config.rank = 8;
  config.rank_pattern = {{"up_proj", 300}};
  config.file = "some/adapter_config.json";
  const auto pattern = resolve_layout(config, tiny_modules());
  EXPECT_EQ(largest_rank(*pattern), 300);
  EXPECT_NO_THROW(check_ranks(*pattern, Device::cpu));
  expect_error<FormatError>([&] { check_ranks(*pattern, Device::cuda); },
                            {"some/adapter_config.json", "rank_pattern", "up_proj", "300", "at most 256"});
}

TEST(ModuleList, SplitsAtCommasAndSpaces) {
  EXPECT_EQ(split_module_list("q_proj, k_proj ,v_proj"), (Names{"q_proj", "k_proj", "v_proj"}));
  EXPECT_EQ(split_module_list(" all-linear "), Names{"all-linear"});
  EXPECT_EQ(split_module_list("q_proj k_proj"), (Names{"q_proj", "k_proj"}));
  EXPECT_TRUE(split_module_list(" , ").empty());
}

TEST(LoraType, Names) {
  EXPECT_EQ(parse_lora_type("lora"), LoraType::fused);
  EXPECT_EQ(parse_lora_type("canonical_lora"), LoraType::canonical);
  EXPECT_STREQ(lora_type_name(LoraType::fused), "lora");
  EXPECT_STREQ(lora_type_name(LoraType::canonical), "canonical_lora");
  EXPECT_THROW(parse_lora_type("LoRA"), ConfigError);
}

TEST(Layout, AllLinearFused) {
  for (const char* spelling : {"all-linear", "all", "all_linear", "All-Linear"}) {
    const auto layout = resolve_layout(tiny_config(LoraType::fused, {spelling}), tiny_modules());
    EXPECT_EQ(layout->target_leaves, kAllLeaves);
    ASSERT_EQ(layout->pairs.size(), 8u);
    const Pair& qkv = layout->pairs[0];
    EXPECT_EQ(qkv.in, 24);
    EXPECT_EQ(qkv.out, 64);
    EXPECT_EQ(qkv.modules.size(), 3u);
    EXPECT_EQ(layout->pairs_at(down_site(1)), std::vector<int>{7});
    EXPECT_EQ(layout->num_parameters, 2 * 4 * (24 + 64 + 32 + 24 + 24 + 80 + 40 + 24));
  }
}

TEST(Layout, AllLinearCanonical) {
  const auto layout = resolve_layout(tiny_config(LoraType::canonical), tiny_modules());
  ASSERT_EQ(layout->pairs.size(), 14u);
  EXPECT_EQ(layout->pairs_at(qkv_site(0)), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(layout->pairs[2].out_begin, 48);
  EXPECT_EQ(layout->pairs[2].out, 16);
  EXPECT_EQ(layout->num_parameters, 2 * 4 * (24 * 5 + 32 + 16 + 16 + 32 + 24 + 40 + 40 + 40 + 24));
  EXPECT_EQ(layout->target_leaves, kAllLeaves);
}

TEST(Layout, TensorsAreAlignedAndDoNotOverlap) {
  LoraConfig config = tiny_config(LoraType::canonical);
  config.rank = 3;
  const auto layout = resolve_layout(config, tiny_modules());
  int64_t end = 0;
  for (const Pair& pair : layout->pairs) {
    EXPECT_EQ(pair.a_offset % 16, 0);
    EXPECT_EQ(pair.b_offset % 16, 0);
    EXPECT_GE(pair.a_offset, end);
    EXPECT_GE(pair.b_offset, pair.a_offset + pair.in * pair.rank);
    end = pair.b_offset + pair.rank * pair.out;
  }
  EXPECT_GE(layout->num_floats, end);
}

TEST(Layout, MegatronNamesMeanTheirProjections) {
  const std::vector<std::pair<std::string, Names>> cases = {{"linear_qkv", {"k_proj", "q_proj", "v_proj"}},
                                                            {"linear_proj", {"o_proj"}},
                                                            {"linear_fc1", {"gate_proj", "up_proj"}},
                                                            {"linear_fc2", {"down_proj"}},
                                                            {"linear_q", {"q_proj"}},
                                                            {"linear_k", {"k_proj"}},
                                                            {"linear_v", {"v_proj"}},
                                                            {"linear_fc1_gate", {"gate_proj"}},
                                                            {"linear_fc1_up", {"up_proj"}}};
  for (const auto& [name, leaves] : cases)
    EXPECT_EQ(resolve_layout(tiny_config(LoraType::canonical, {name}), tiny_modules())->target_leaves, leaves) << name;
}

TEST(Layout, FusedNameBringsItsSiblings) {
  EXPECT_EQ(resolve_layout(tiny_config(LoraType::fused, {"q_proj", "down_proj"}), tiny_modules())->target_leaves,
            (Names{"down_proj", "k_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(resolve_layout(tiny_config(LoraType::fused, {"linear_fc1_up"}), tiny_modules())->target_leaves,
            (Names{"gate_proj", "up_proj"}));
}

TEST(Layout, Exclusions) {
  LoraConfig config = tiny_config(LoraType::canonical);
  config.exclude_modules = {"k_proj", "linear_fc1", "layers.1.self_attn.o_proj"};
  const auto layout = resolve_layout(config, tiny_modules());
  EXPECT_EQ(layout->target_leaves, (Names{"down_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(layout->pairs_at(o_site(0)).size(), 1u);
  EXPECT_TRUE(layout->pairs_at(o_site(1)).empty());
  // As in vime: targets minus exclusions name the fused module, and a fused module has all its projections.
  config.type = LoraType::fused;
  config.exclude_modules = {"k_proj", "linear_fc1"};
  EXPECT_EQ(resolve_layout(config, tiny_modules())->target_leaves,
            (Names{"down_proj", "k_proj", "o_proj", "q_proj", "v_proj"}));
}

TEST(Layout, FullNamesAndSuffixes) {
  const auto layout = resolve_layout(
      tiny_config(LoraType::canonical, {"model.layers.0.mlp.up_proj", "layers.1.self_attn.v_proj"}), tiny_modules());
  EXPECT_EQ(module_names(*layout), (Names{"model.layers.0.mlp.up_proj", "model.layers.1.self_attn.v_proj"}));
  EXPECT_EQ(layout->first_layer, 0);
  // A suffix begins at a dot.
  EXPECT_NE(config_error(tiny_config(LoraType::canonical, {"proj"})), "");
}

TEST(Layout, UnknownNameListsWhatExists) {
  const std::string text = config_error(tiny_config(LoraType::fused, {"q_porj"}));
  EXPECT_NE(text.find("q_porj"), std::string::npos);
  for (const std::string& leaf : kAllLeaves) EXPECT_NE(text.find(leaf), std::string::npos) << leaf;
  EXPECT_NE(text.find("linear_qkv"), std::string::npos);
  EXPECT_NE(text.find("try:    q_proj"), std::string::npos) << text;
  LoraConfig config = tiny_config(LoraType::fused);
  config.exclude_modules = {"lm_haed"};
  EXPECT_NE(config_error(config).find("LoraConfig::exclude_modules"), std::string::npos);
  EXPECT_NE(config_error(tiny_config(LoraType::fused, {"zzzzzz"})).find("try:    "), std::string::npos);
}

TEST(Layout, PartsThatAreNeverTargetsMayBeExcluded) {
  LoraConfig config = tiny_config(LoraType::fused);
  config.exclude_modules = {"lm_head", "embed_tokens", "model.embed_tokens", "model.layers.0.input_layernorm"};
  EXPECT_EQ(resolve_layout(config, tiny_modules())->pairs.size(), 8u);
  EXPECT_NE(config_error(tiny_config(LoraType::fused, {"lm_head"})), "");  // never a target
}

TEST(Layout, ExclusionsThatFusedSiblingsOverrule) {
  LoraConfig config = tiny_config(LoraType::fused);
  config.exclude_modules = {"q_proj", "linear_fc1_up", "o_proj", "lm_head"};
  EXPECT_EQ(shared_siblings(config).excluded, (Names{"q_proj", "up_proj"}));
  // What is written beside the tensors excludes none of them.
  EXPECT_EQ(resolve_layout(config, tiny_modules())->config.exclude_modules, (Names{"o_proj", "lm_head"}));
  config.exclude_modules = {"linear_qkv", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"};
  EXPECT_EQ(shared_siblings(config).excluded, Names());
  EXPECT_EQ(resolve_layout(config, tiny_modules())->config.exclude_modules, config.exclude_modules);
  config.exclude_modules = {"layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj", "layers.0.self_attn.v_proj",
                            "k_proj"};
  EXPECT_EQ(resolve_layout(config, tiny_modules())->config.exclude_modules.back(), "model.layers.0.self_attn.k_proj");
  config.type = LoraType::canonical;
  config.exclude_modules = {"q_proj"};
  EXPECT_EQ(shared_siblings(config).excluded, Names());
}

TEST(Layout, SiblingsThatFusedTargetsBringAlong) {
  LoraConfig config = tiny_config(LoraType::fused, {"q_proj", "v_proj", "linear_fc1"});
  EXPECT_EQ(shared_siblings(config).unnamed, Names{"k_proj"});
  config.target_modules = {"o_proj"};
  EXPECT_EQ(shared_siblings(config).unnamed, Names());
  config = tiny_config(LoraType::canonical, {"q_proj"});
  EXPECT_EQ(shared_siblings(config).unnamed, Names());
}

TEST(Layout, FaultsOfAFileNameFileAndKey) {
  const auto faulty = [](const char* key, auto change) {
    SCOPED_TRACE(key);
    LoraConfig config = tiny_config(LoraType::canonical);
    config.file = "DIR/adapter_config.json";
    change(config);
    const std::string place = config.file + ": " + key;
    testing::expect_error<FormatError>([&] { resolve_layout(config, tiny_modules()); }, {place.c_str()});
  };
  faulty("target_modules", [](LoraConfig& c) { c.target_modules = {"c_attn"}; });
  faulty("target_modules", [](LoraConfig& c) { c.target_regex = "(q_proj"; });
  faulty("target_modules", [](LoraConfig& c) { c.target_regex = "q_proj"; });
  faulty("exclude_modules", [](LoraConfig& c) { c.exclude_modules = {"all-linear"}; });
  faulty("layers_to_transform", [](LoraConfig& c) { c.layers_to_transform = std::vector<int64_t>{99}; });
  faulty("rank_pattern", [](LoraConfig& c) { c.rank_pattern = {{"(q", 2}}; });
  faulty("lora_alpha", [](LoraConfig& c) { c.alpha = 0; });
  faulty("r", [](LoraConfig& c) { c.rank = kMaxRank + 1; });
}

TEST(Layout, NothingToAdapt) {
  EXPECT_NE(config_error(tiny_config(LoraType::fused, {})), "");
  LoraConfig config = tiny_config(LoraType::fused, {"q_proj"});
  config.exclude_modules = {"linear_qkv"};
  EXPECT_NE(config_error(config).find("no module is left"), std::string::npos);
}

TEST(Layout, Regex) {
  LoraConfig config = tiny_config(LoraType::canonical, {});
  config.target_regex = R"(model\.layers\.0\.self_attn\.(q|k)_proj|.*\.mlp\.down_proj)";
  EXPECT_EQ(module_names(*resolve_layout(config, tiny_modules())),
            (Names{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj",
                   "model.layers.1.mlp.down_proj"}));
  config.target_regex = "q_proj";  // the whole name must match
  EXPECT_NE(config_error(config), "");
  config.target_regex = "(q_proj";
  EXPECT_NE(config_error(config).find("cannot be read"), std::string::npos);
  config.target_regex = std::string(20000, '(');
  EXPECT_NE(config_error(config).find("too large"), std::string::npos);
}

// re.fullmatch: both ends hold for every alternative, and \Z and named groups are Python's.
TEST(Layout, RegexMeansWhatPythonMakesOfIt) {
  LoraConfig config = tiny_config(LoraType::canonical, {});
  const auto named = [&](const char* regex) {
    config.target_regex = regex;
    return module_names(*resolve_layout(config, tiny_modules()));
  };
  const Names q_projs = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"};
  EXPECT_EQ(named("q_proj|.*\\.q_proj|model"), q_projs);
  EXPECT_EQ(named(".*q_proj\\Z"), q_projs);
  EXPECT_EQ(named("(?P<model>model)\\..*\\.q_proj(?<!(?=k)_proj)"), q_projs);
  EXPECT_EQ(named("(?i).*\\.Q_PROJ"), q_projs);
  EXPECT_EQ(named(".*\\.(?P<letter>q)_(?!(?P=letter)).*"), q_projs);
  // As they are read by re.match: an alternative outside the brackets is one of the whole expression.
  config = tiny_config(LoraType::canonical, {"o_proj"});
  config.rank_pattern = {{"o_proj)|(model", 2}};
  EXPECT_EQ(resolve_layout(config, tiny_modules())->pairs[0].rank, 2);
}

TEST(Layout, APatternThatBacktracksWithoutEndIsRefused) {
  const auto hangs = [](const char* key, auto change) {
    LoraConfig config = tiny_config(LoraType::canonical);
    config.file = "DIR/adapter_config.json";
    change(config);
    const std::string place = config.file + ": " + key;
    expect_error<FormatError>([&] { resolve_layout(config, tiny_modules()); },
                              {place.c_str(), "takes too long to match", "[XY]"});
  };
  const std::string evil = "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)[XY]";
  hangs("target_modules", [&](LoraConfig& c) { c.target_regex = evil; });
  hangs("rank_pattern", [&](LoraConfig& c) { c.rank_pattern = {{evil, 2}}; });
  hangs("alpha_pattern", [&](LoraConfig& c) { c.alpha_pattern = {{"q_proj", 8.0}, {evil, 2.0}}; });
  // Each below every limit of its own.
  hangs("rank_pattern", [&](LoraConfig& c) {
    for (int i = 0; i < 20000; ++i) c.rank_pattern.emplace_back("(?:.*)(?:.*)[XY]|" + std::to_string(i), 2);
  });
}

// Those that come after every module has found its own are read all the same.
TEST(Layout, PatternsThatMatchNothingAnyMoreAreNotFree) {
  LoraConfig config = tiny_config(LoraType::canonical);
  config.file = "DIR/adapter_config.json";
  config.rank_pattern = {{".*", 2}};
  for (int i = 0; i < 20000; ++i) config.rank_pattern.emplace_back("a" + std::to_string(i), 2);
  expect_error<FormatError>([&] { resolve_layout(config, tiny_modules()); },
                            {"rank_pattern", "takes too long to match", "too many expressions"});
}

// PEFT's check_target_module_exists for lists (peft 0.20), written down once more.
bool peft_targets(const LoraConfig& config, const Module& module) {
  const auto named = [&](const std::vector<std::string>& entries) {
    for (const std::string& entry : entries)
      if (module.name == entry || module.name.ends_with("." + entry)) return true;
    return false;
  };
  if (named(config.exclude_modules) || !named(config.target_modules)) return false;
  for (const std::string& entry : config.target_modules)
    if (entry == module.name) return true;
  const auto& layers = config.layers_to_transform;
  return !layers || layers->empty() || std::find(layers->begin(), layers->end(), module.layer) != layers->end();
}

// Whatever chose the modules, the lists that are saved choose them again, here and in PEFT.
TEST(Layout, WhatIsSavedNamesExactlyWhatIsCovered) {
  const auto holds = [](const char* how, const LoraConfig& config, bool leaves) {
    SCOPED_TRACE(how);
    const auto layout = resolve_layout(config, tiny_modules(12));
    EXPECT_FALSE(layout->config.target_regex);
    EXPECT_EQ(layout->config.target_modules == layout->target_leaves, leaves);
    const auto again = resolve_layout(layout->config, tiny_modules(12));
    EXPECT_EQ(module_names(*again), module_names(*layout));
    EXPECT_EQ(again->num_floats, layout->num_floats);
    EXPECT_EQ(again->config.target_modules, layout->config.target_modules);
    Names covered = module_names(*layout), chosen;
    for (const Module& module : tiny_modules(12))
      if (peft_targets(layout->config, module)) chosen.push_back(module.name);
    std::sort(covered.begin(), covered.end());
    std::sort(chosen.begin(), chosen.end());
    EXPECT_EQ(chosen, covered);
  };
  for (const LoraType type : {LoraType::canonical, LoraType::fused}) {
    const auto config = [type](std::vector<std::string> targets) { return tiny_config(type, std::move(targets)); };
    holds("all", config({"all-linear"}), true);
    holds("leaves", config({"q_proj", "down_proj"}), true);
    holds("Megatron's names", config({"linear_qkv", "linear_fc2"}), true);
    holds("full names", config({"model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"}), false);
    holds("one full name", config({"model.layers.11.mlp.down_proj"}), false);
    holds("suffixes", config({"1.self_attn.o_proj", "mlp.down_proj"}), false);
    LoraConfig layers = config({"q_proj"});
    layers.layers_to_transform = {1, 3};
    holds("layers", layers, true);
    layers.target_modules = {"layers.1.self_attn.q_proj", "layers.2.self_attn.q_proj"};
    holds("suffixes in layers", layers, false);
    layers.target_modules = {"model.layers.0.self_attn.q_proj", "down_proj"};
    holds("a full name beside layers", layers, false);
    LoraConfig excluding = config({"all-linear"});
    excluding.exclude_modules = {"o_proj", "model.layers.3.mlp.down_proj", "lm_head"};
    holds("exclusions", excluding, true);
    excluding.exclude_modules = {"linear_proj"};
    holds("an exclusion by Megatron's name", excluding, true);
    excluding.target_modules = {"layers.0.self_attn.o_proj", "layers.1.mlp.down_proj", "layers.2.mlp.down_proj"};
    excluding.exclude_modules = {"layers.1.mlp.down_proj"};
    holds("exclusions from full names", excluding, false);
    LoraConfig regex = config({});
    regex.target_regex = "model\\.layers\\.([0-4])\\.(self_attn\\.q|mlp\\.up)_proj";
    holds("a regular expression", regex, false);
    regex.target_regex = ".*\\.o_proj";
    holds("a regular expression that leaves say too", regex, true);
  }
  // Only a shared A brings these along.
  holds("siblings", tiny_config(LoraType::fused, {"model.layers.2.self_attn.k_proj"}), false);
}

// A file may have an expression for every module.
TEST(Layout, APatternForEveryModuleIsAffordable) {
  const std::vector<Module> modules = tiny_modules(60);
  LoraConfig config = tiny_config(LoraType::canonical);
  for (const Module& module : modules) config.rank_pattern.emplace_back(module.name, 1 + module.layer % 3);
  const auto layout = resolve_layout(config, modules);
  for (const Pair& pair : layout->pairs) EXPECT_EQ(pair.rank, 1 + pair.modules[0].layer % 3);
}

TEST(Layout, LayersToTransform) {
  LoraConfig config = tiny_config(LoraType::canonical, {"q_proj"});
  config.layers_to_transform = std::vector<int64_t>{1};
  const auto layout = resolve_layout(config, tiny_modules());
  EXPECT_EQ(module_names(*layout), Names{"model.layers.1.self_attn.q_proj"});
  EXPECT_EQ(layout->first_layer, 1);
  config.target_modules = {"model.layers.0.mlp.up_proj", "q_proj"};  // a full name is not limited
  EXPECT_EQ(module_names(*resolve_layout(config, tiny_modules())),
            (Names{"model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"}));
  config.layers_to_transform = std::vector<int64_t>{2};
  EXPECT_NE(config_error(config).find("layers_to_transform"), std::string::npos);
  config.layers_to_transform = std::vector<int64_t>{0};
  config.target_regex = ".*q_proj";
  EXPECT_NE(config_error(config).find("layers_to_transform"), std::string::npos);
}

TEST(Layout, ExclusionsByARegularExpression) {
  LoraConfig config = tiny_config(LoraType::canonical);
  config.exclude_regex = R"(model\.layers\.1\..*|.*down_proj)";
  const auto layout = resolve_layout(config, tiny_modules());
  EXPECT_EQ(layout->pairs.size(), 6u);
  EXPECT_TRUE(layout->pairs_at(qkv_site(1)).empty());
  EXPECT_TRUE(layout->pairs_at(down_site(0)).empty());
  EXPECT_FALSE(layout->config.exclude_regex) << "what is saved are names";
  config.exclude_regex = "layers.1";  // not a whole name: PEFT's re.fullmatch
  EXPECT_EQ(resolve_layout(config, tiny_modules())->pairs.size(), 14u);
  config.exclude_regex = "(";
  config.file = "DIR/adapter_config.json";
  expect_error<FormatError>([&] { resolve_layout(config, tiny_modules()); },
                            {"DIR/adapter_config.json: exclude_modules", "regular expression"});
}

// PEFT looks for a number behind any of the patterns.
TEST(Layout, LayersPattern) {
  LoraConfig config = tiny_config(LoraType::canonical, {"q_proj", "model.layers.0.mlp.up_proj"});
  config.layers_to_transform = std::vector<int64_t>{1};
  const Names both = {"model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"};
  for (const Names& patterns : {Names{}, Names{"layers"}, Names{"h", "la.*s"}}) {
    config.layers_pattern = patterns;
    const auto layout = resolve_layout(config, tiny_modules());
    EXPECT_EQ(module_names(*layout), both);
    EXPECT_TRUE(layout->config.layers_pattern.empty());
  }
  config.layers_pattern = {"h"};
  EXPECT_EQ(module_names(*resolve_layout(config, tiny_modules())), Names{"model.layers.0.mlp.up_proj"})
      << "a full name is in no need of a layer";
}

TEST(Layout, NamesOfAFileThatNoModuleHasArePassedOver) {
  LoraConfig config = tiny_config(LoraType::canonical, {"q_proj", "query_key_value"});
  config.exclude_modules = {"vision_tower"};
  config.file = "DIR/adapter_config.json";
  EXPECT_EQ(resolve_layout(config, tiny_modules())->target_leaves, Names{"q_proj"});
  config.target_modules = {"query_key_value"};
  expect_error<FormatError>([&] { resolve_layout(config, tiny_modules()); },
                            {"DIR/adapter_config.json: target_modules", "query_key_value"});
}

TEST(LoraInit, Names) {
  for (const char* name :
       {"true", "false", "gaussian", "orthogonal", "pissa", "pissa_niter_0", "pissa_niter_16", "olora"}) {
    ASSERT_TRUE(lora_init_of(name)) << name;
    EXPECT_EQ(lora_init_name(*lora_init_of(name)), name);
  }
  for (const char* name : {"", "True", "PiSSA", "pissa_niter_", "pissa_niter_-1", "pissa_niter_4x", "pissa_niter_9999"})
    EXPECT_FALSE(lora_init_of(name)) << name;
  EXPECT_TRUE(lora_init_of("pissa_niter_4")->changes_base());
  EXPECT_FALSE(lora_init_of("orthogonal")->changes_base());
}

TEST(Layout, PatternsFirstMatchWins) {
  LoraConfig config = tiny_config(LoraType::canonical);
  config.rank_pattern = {
      {"down_proj", 2}, {"layers.1.mlp.down_proj", 7}, {R"(model\.layers\.0\.mlp\.(gate|up)_proj)", 3}};
  config.alpha_pattern = {{"layers.1.self_attn.q_proj", 12.0}, {"proj", 99.0}};
  const auto layout = resolve_layout(config, tiny_modules());
  const auto pair_of = [&](const std::string& name) -> const Pair& {
    for (const Pair& pair : layout->pairs)
      if (pair.modules.front().name == name) return pair;
    throw std::runtime_error(name);
  };
  EXPECT_EQ(pair_of("model.layers.1.mlp.down_proj").rank, 2);
  EXPECT_EQ(pair_of("model.layers.0.mlp.up_proj").rank, 3);
  EXPECT_EQ(pair_of("model.layers.1.mlp.up_proj").rank, 4);
  EXPECT_FLOAT_EQ(pair_of("model.layers.1.self_attn.q_proj").scale, 12.0f / 4);
  EXPECT_FLOAT_EQ(pair_of("model.layers.0.self_attn.q_proj").scale, 8.0f / 4);  // "proj" is no suffix after a dot
  config.type = LoraType::fused;
  config.rank_pattern = {{"q_proj", 2}};
  EXPECT_NE(config_error(config).find("share one A"), std::string::npos);
}

std::vector<std::string> own_names(const AdapterLayout& layout, int64_t OwnTensors::*which) {
  std::vector<std::string> names;
  for (const OwnTensors& own : layout.own)
    if (own.*which != kAbsent) names.push_back(own.module.name);
  return names;
}

TEST(Layout, TheEmbeddingAndTheHeadAreTargetsWhereTheyAreNamed) {
  const auto all = resolve_layout(tiny_config(LoraType::canonical), whole_modules());
  EXPECT_EQ(all->pairs.size(), 14u);
  EXPECT_TRUE(all->pairs_at(0).empty());
  EXPECT_EQ(all->first_layer, 0);
  EXPECT_FALSE(all->trains_embedding);
  const auto head = resolve_layout(tiny_config(LoraType::fused, {"lm_head"}), whole_modules());
  ASSERT_EQ(head->pairs_at(1).size(), 1u);
  EXPECT_EQ(head->pairs[0].in, 24);
  EXPECT_EQ(head->pairs[0].out, 50);
  EXPECT_EQ(head->first_layer, 2);  // above all layers
  EXPECT_FALSE(head->trains_embedding);
  const auto ends = resolve_layout(tiny_config(LoraType::fused, {"embed_tokens", "lm_head"}), whole_modules());
  EXPECT_EQ(ends->pairs[0].in, 50);
  EXPECT_TRUE(ends->pairs[0].of_embedding());
  EXPECT_EQ(ends->first_layer, 0);
  EXPECT_TRUE(ends->trains_embedding);
  EXPECT_EQ(ends->config.target_modules, (Names{"embed_tokens", "lm_head"}));
  LoraConfig config = tiny_config(LoraType::fused, {"q_proj", "lm_head"});
  config.exclude_modules = {"lm_head"};
  EXPECT_TRUE(resolve_layout(config, whole_modules())->pairs_at(1).empty());
}

TEST(Layout, LayersDoNotHoldForTheHead) {
  LoraConfig config = tiny_config(LoraType::canonical, {"q_proj", "lm_head", "embed_tokens"});
  config.layers_to_transform = {1};
  const auto layout = resolve_layout(config, whole_modules());
  EXPECT_EQ(layout->pairs_at(1).size(), 1u);  // named in full
  EXPECT_TRUE(layout->pairs_at(0).empty());   // a suffix, of no layer
  EXPECT_EQ(layout->first_layer, 1);
}

TEST(Layout, MagnitudesOfAllTargets) {
  LoraConfig config = tiny_config(LoraType::fused, {"k_proj", "lm_head"});
  config.use_dora = true;
  const auto layout = resolve_layout(config, whole_modules());
  EXPECT_EQ(own_names(*layout, &OwnTensors::magnitude),
            (Names{"lm_head", "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                   "model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.q_proj",
                   "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.v_proj"}));
  int64_t factors = 0;
  for (const Pair& pair : layout->pairs) factors += pair.rank * (pair.in + pair.out);
  EXPECT_EQ(layout->num_parameters, factors + 50 + 2 * (32 + 16 + 16));
  config.target_modules = {"embed_tokens"};
  testing::expect_error<ConfigError>([&] { resolve_layout(config, whole_modules()); }, {"use_dora", "embed_tokens"});
}

TEST(Layout, BiasesOfTargetsOrOfAll) {
  LoraConfig config = tiny_config(LoraType::canonical, {"k_proj", "down_proj"});
  config.bias = TrainedBiases::lora_only;
  const auto some = resolve_layout(config, whole_modules());
  EXPECT_EQ(own_names(*some, &OwnTensors::bias),
            (Names{"model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.k_proj"}));
  config.bias = TrainedBiases::all;
  config.target_modules = {"model.layers.1.mlp.down_proj"};
  const auto all = resolve_layout(config, whole_modules());
  EXPECT_EQ(own_names(*all, &OwnTensors::bias).size(), 6u);
  EXPECT_EQ(all->first_layer, 0);  // biases of layer 0 learn, too
}

TEST(Layout, SavedModulesAreNoTargets) {
  LoraConfig config = tiny_config(LoraType::canonical, {"q_proj", "lm_head"});
  config.modules_to_save = {"lm_head", "model.embed_tokens"};
  const auto layout = resolve_layout(config, whole_modules());
  EXPECT_EQ(own_names(*layout, &OwnTensors::weight), (Names{"model.embed_tokens", "lm_head"}));
  EXPECT_TRUE(layout->pairs_at(1).empty());
  EXPECT_TRUE(layout->trains_embedding);
  EXPECT_EQ(layout->own[0].weight_rows(), 50);
  EXPECT_EQ(layout->own[0].weight_cols(), 24);
  for (const char* const name : {"q_proj", "score", "all-linear"}) {
    config.modules_to_save = {name};
    testing::expect_error<ConfigError>([&] { resolve_layout(config, whole_modules()); }, {"modules_to_save", name});
  }
}

TEST(Layout, Scale) {
  LoraConfig config = tiny_config(LoraType::fused);
  EXPECT_FLOAT_EQ(resolve_layout(config, tiny_modules())->pairs[0].scale, 2.0f);
  config.use_rslora = true;
  EXPECT_FLOAT_EQ(resolve_layout(config, tiny_modules())->pairs[0].scale, 4.0f);
}

TEST(Layout, ImpossibleNumbers) {
  const auto with = [](auto change) {
    LoraConfig config = tiny_config(LoraType::canonical);
    change(config);
    return config_error(config);
  };
  EXPECT_NE(with([](LoraConfig& c) { c.rank = 0; }), "");
  EXPECT_EQ(with([](LoraConfig& c) { c.rank = 16; }), "");
  EXPECT_EQ(with([](LoraConfig& c) { c.rank = 99; }), "");  // above every side: PEFT makes such adapters
  EXPECT_NE(with([](LoraConfig& c) { c.rank = kMaxRank + 1; }).find("LoraConfig::rank"), std::string::npos);
  EXPECT_NE(with([](LoraConfig& c) { c.alpha = 0; }), "");
  EXPECT_NE(with([](LoraConfig& c) { c.alpha = NAN; }), "");
  EXPECT_NE(with([](LoraConfig& c) { c.dropout = 1; }), "");
  EXPECT_NE(with([](LoraConfig& c) { c.dropout = -0.1; }), "");
}

}  // namespace
}  // namespace lockstep::lora
