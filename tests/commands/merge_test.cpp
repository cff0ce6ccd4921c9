// A merged model is the base with the adapter: the same logits within the rounding of its weights, in a directory like
// any other.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "checkpoint/hf_directory.h"
#include "commands/commands_fixture.h"
#include "commands/files/commands.h"
#include "core/file_lock.h"
#include "load/lora_factors.h"
#include "recipes/golden_case.h"

namespace lockstep::commands {
namespace {

using testing::expect_error;

class Merged : public Commands {
 protected:
  MergeOptions options(const std::string& base, const std::string& adapter,
                       const std::string& output = "merged") const {
    MergeOptions options;
    options.base = {.hf_checkpoint = base, .stream = {.threads = 2}};
    options.adapter_path = adapter;
    options.output = path(output);
    return options;
  }
  std::string merge(const MergeOptions& options) {
    run_merge(options, control_);
    return options.output;
  }

  // Whether nothing but these lies in the temporary directory.
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) names.insert(entry.path().filename());
    return names;
  }

  // A model directory of these tensors.
  std::string model_of(const std::string& name, const Json& config, const NamedTensors& tensors) {
    dir_.write(name + "/config.json", config.dump());
    dir_.write(name + "/model.safetensors", checkpoint::safetensors_bytes(tensors, {}));
    return path(name);
  }
  std::string peft_of(const std::string& name, lora::LoraConfig config, const std::string& module, int64_t out,
                      int64_t in) {
    const std::vector<float> ones(static_cast<size_t>(std::max(out, in) * config.rank), 1.0f);
    checkpoint::write_peft_directory(
        path(name), config, {module.substr(module.rfind('.') + 1)}, "",
        {{"base_model.model." + module + ".lora_A.weight", ConstTensor(ones.data(), DType::f32, {config.rank, in})},
         {"base_model.model." + module + ".lora_B.weight", ConstTensor(ones.data(), DType::f32, {out, config.rank})}});
    return path(name);
  }
};

float element(const ConstTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::f32) return tensor.f32()[i];
  const uint16_t bits = static_cast<const uint16_t*>(tensor.data)[i];
  return tensor.dtype == DType::bf16 ? to_f32(BFloat16{bits}) : to_f32(Float16{bits});
}

Buffer bytes_of(const NamedTensor& named) {
  Buffer bytes(named.bytes(), Buffer::Fill::none);
  named.read(bytes.data(), 0, bytes.bytes());
  return bytes;
}

// Half the distance between two values of this type at `value`.
double half_step(DType dtype, double value) {
  const int bits = dtype == DType::f32 ? 24 : dtype == DType::bf16 ? 8 : 11;
  const double smallest = dtype == DType::f16 ? 0x1p-25 : 0;
  return std::max(smallest, std::ldexp(0.5, std::ilogb(value) - bits + 1));
}

// Every tensor is the base's plus the update, rounded to the nearest value of `dtype` (nothing: of its own type); what
// has no update has its very bytes. The update itself is made of f32 sums.
void expect_merged(const std::string& base_path, const std::string& adapter_path, const std::string& merged_path,
                   std::optional<DType> dtype = std::nullopt) {
  checkpoint::HfDirectory base(base_path), merged(merged_path);
  base.open_weights(), merged.open_weights();
  const checkpoint::PeftDirectory directory{fs::Path(adapter_path)};
  const load::AdapterFactors adapter(directory);
  ASSERT_EQ(base.tensors().size(), merged.tensors().size());
  size_t updated = 0;
  for (size_t t = 0; t < base.tensors().size(); ++t) {
    const NamedTensor &before = base.tensors()[t], &after = merged.tensors()[t];
    const Buffer before_bytes = bytes_of(before), after_bytes = bytes_of(after);
    ConstTensor w = before.tensor, m = after.tensor;
    w.data = before_bytes.data(), m.data = after_bytes.data();
    ASSERT_EQ(before.name, after.name);
    ASSERT_EQ(m.dtype, dtype.value_or(w.dtype)) << before.name;
    ASSERT_EQ(w.shape, m.shape) << before.name;
    const load::ModuleFactors* module =
        before.name.ends_with(".weight") ? adapter.find(before.name.substr(0, before.name.rfind('.'))) : nullptr;
    updated += module != nullptr;
    for (int64_t i = 0; i < w.elements(); ++i) {
      double wanted = element(w, i), magnitude = 0;  // of what is summed in f32
      if (module != nullptr)
        for (int64_t k = 0; k < module->rank; ++k) {
          const double term = double(module->b.row(i / w[1])[k]) * module->a.row(k)[i % w[1]] * module->scale;
          wanted += term, magnitude += std::fabs(term);
        }
      ASSERT_NEAR(element(m, i), wanted, half_step(m.dtype, wanted) + 1e-6 * magnitude) << before.name << " " << i;
    }
  }
  EXPECT_EQ(updated, adapter.modules().size());
}

class MergedFamily : public Merged, public ::testing::WithParamInterface<std::string> {};

// In f32 nothing is rounded: the logits are those of transformers with PEFT.
TEST_P(MergedFamily, LogitsAreThoseOfTheAdapter) {
  const fs::Path base = golden::directory(GetParam());
  MergeOptions asked = options(base.string(), (base / "adapter").string());
  asked.dtype = DType::f32;
  const std::string merged = merge(asked);
  std::filesystem::copy(base / "expected.safetensors", fs::Path(merged) / "expected.safetensors");
  Stream stream({.threads = 2});
  const golden::Case c(std::filesystem::absolute(merged).string(), stream);
  golden::Numbers got;
  for (int i = 0; i < golden::kSamples; ++i)
    got["logits_lora." + std::to_string(i)] = golden::logits(c, c.tokens(i), nullptr);
  golden::expect_golden(c, got, testing::kSameArithmetic);
}

TEST_P(MergedFamily, EveryWeightIsRoundedOnce) {
  const fs::Path base = golden::directory(GetParam());
  for (const std::optional<DType> dtype :
       {std::optional<DType>(), std::optional(DType::bf16), std::optional(DType::f16)}) {
    MergeOptions asked = options(base.string(), (base / "adapter").string());
    asked.dtype = dtype;
    asked.overwrite = true;
    expect_merged(base.string(), asked.adapter_path, merge(asked), dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MergedFamily, ::testing::ValuesIn(golden::families()),
                         [](const auto& info) { return info.param; });

TEST_F(Merged, PatternsRegularExpressionsLayersAndRankStabilization) {
  for (const std::string name : {"adapter_pattern", "adapter_regex", "adapter_layers"}) {
    const std::string adapter = kTiny + "/" + name;
    expect_merged(kTiny, adapter, merge(options(kTiny, adapter, name)));
  }
}

// One model and the other, on the embedded model, whose weights are bf16.
TEST_F(Merged, LogitsOfTheLiveAdapterWithinTheRoundingOfWeights) {
  for (const lora::LoraType type : {lora::LoraType::fused, lora::LoraType::canonical}) {
    const std::string adapter = adapter_of(kArith, type);
    const std::string merged = merge(options(kArith, adapter, lora::lora_type_name(type)));
    expect_merged(kArith, adapter, merged);
    const std::vector<int32_t> tokens = {17, 31, 44, 5, 90, 17, 200, 31, 8};
    std::vector<std::vector<float>> logits;
    for (const std::string& model : {kArith, merged}) {
      fs::write_file_atomic(dir_.path() / "view" / "expected.safetensors", checkpoint::safetensors_bytes({}, {}));
      for (const char* file : {"config.json", "model.safetensors"})
        std::filesystem::copy(fs::Path(model) / file, dir_.path() / "view" / file,
                              std::filesystem::copy_options::overwrite_existing);
      Stream stream({.threads = 2});
      const golden::Case c((dir_.path() / "view").string(), stream);
      if (model == merged) {
        logits.push_back(golden::logits(c, tokens, nullptr));
        continue;
      }
      const load::Base base = recipes::load_base({.hf_checkpoint = model}, stream, control_);
      const lora::AdapterVersion live = recipes::load_adapter(adapter, base, control_);
      logits.push_back(golden::logits(c, tokens, &live));
      logits.push_back(golden::logits(c, tokens, nullptr));
    }
    EXPECT_LT(testing::difference(logits[2], logits[0]).of_norm, testing::kRounded.logits);
    EXPECT_GT(testing::difference(logits[1], logits[0]).of_norm, 0.2) << "an adapter that changes nothing";
  }
}

TEST_F(Merged, ADirectoryLikeAnyOther) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::canonical);
  const std::string merged = merge(options(kArith, adapter));
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(fs::read_file(fs::Path(merged) / file), fs::read_file(fs::Path(kArith) / file)) << file;
  for (const char* file : {"README.md", "train.jsonl", "model.safetensors.index.json"})
    EXPECT_FALSE(fs::exists(fs::Path(merged) / file)) << file;
  Stream stream({.threads = 1});
  EXPECT_NO_THROW(text::Tokenizer::load(recipes::load_base({.hf_checkpoint = merged}, stream, control_).path.string()));
  EXPECT_NE(taken(info_).find("merged  28 modules"), std::string::npos);
}

TEST_F(Merged, ShardsAreNoLargerThanAsked) {
  const fs::Path base = golden::directory("mistral");  // two shards itself
  MergeOptions asked = options(base.string(), (base / "adapter").string());
  asked.max_shard_bytes = 40'000;
  const fs::Path merged = merge(asked);
  const Json index = read_json((merged / "model.safetensors.index.json").string());
  checkpoint::HfDirectory directory(merged);
  directory.open_weights();
  ASSERT_GT(directory.weight_files().size(), 3u);
  int64_t total = 0, parameters = 0;
  for (const fs::Path& file : directory.weight_files()) {
    const checkpoint::SafetensorsFile shard(file);
    EXPECT_EQ(shard.metadata().at("format"), "pt");
    int64_t bytes = 0;
    for (const NamedTensor& tensor : shard.tensors()) {
      bytes += tensor.tensor.elements() * dtype_bytes(tensor.tensor.dtype);
      parameters += tensor.tensor.elements();
    }
    EXPECT_TRUE(bytes <= asked.max_shard_bytes || shard.tensors().size() == 1) << file;
    total += bytes;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["metadata"]["total_parameters"], parameters);
  expect_merged(base.string(), asked.adapter_path, merged.string());
}

TEST_F(Merged, AnotherTypeIsInTheConfigToo) {
  MergeOptions asked = options(kArith, adapter_of(kArith, lora::LoraType::fused));
  asked.dtype = DType::f16;
  const Json config = read_json(merge(asked) + "/config.json");
  EXPECT_EQ(config["torch_dtype"], "float16");
  EXPECT_FALSE(config.contains("dtype"));
  EXPECT_EQ(config["hidden_size"], 128);
  const fs::Path llama = golden::directory("smollm2");
  asked = options(llama.string(), (llama / "adapter").string(), "other");
  asked.dtype = DType::bf16;
  const Json newer = read_json(merge(asked) + "/config.json");
  EXPECT_EQ(newer["dtype"], "bfloat16");
  EXPECT_FALSE(newer.contains("torch_dtype"));
}

// The model need not be one that we run: names and shapes decide, as here of a family with fused projections.
TEST_F(Merged, AFamilyThatIsNotKnown) {
  const std::vector<float> weights(6 * 4, 2.0f);
  const std::string module = "transformer.h.3.attn.qkv_proj";
  const std::string base = model_of("base", {{"model_type", "other"}},
                                    {{module + ".weight", ConstTensor(weights.data(), DType::f32, {6, 4})},
                                     {"transformer.ids", ConstTensor(weights.data(), DType::i64, {3})}});
  const std::string merged = merge(options(base, peft_of("adapter", {.rank = 2, .alpha = 8}, module, 6, 4)));
  const checkpoint::SafetensorsFile file(fs::Path(merged) / "model.safetensors");
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(file.find(module + ".weight")->f32()[i], 2 + 4.0f * 2);
  EXPECT_EQ(std::memcmp(file.find("transformer.ids")->data, weights.data(), 24), 0);
}

// Tensors of a merged model, by name.
class Weights {
 public:
  explicit Weights(const std::string& path) : directory_(path) { directory_.open_weights(); }
  std::vector<float> operator[](const std::string& name) {
    const auto found = std::ranges::find(directory_.tensors(), name, &NamedTensor::name);
    if (found == directory_.tensors().end()) return {};
    const Buffer bytes = bytes_of(*found);
    ConstTensor tensor = found->tensor;
    tensor.data = bytes.data();
    std::vector<float> values;
    for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(element(tensor, i));
    return values;
  }

 private:
  checkpoint::HfDirectory directory_;
};

const std::string kUntied = golden::directory("qwen2_untied").string(), kTied = golden::directory("qwen2").string();

// Rows of a merged weight have the norms that are the magnitudes, and the directions of W + scale B A.
TEST_F(Merged, MagnitudesAreTheNormsOfRows) {
  const std::string adapter_path = kUntied + "/adapter_dora";
  MergeOptions asked = options(kUntied, adapter_path);
  asked.dtype = DType::f32;
  Weights base(kUntied), merged(merge(asked));
  const load::AdapterFactors adapter{checkpoint::PeftDirectory(fs::Path(adapter_path))};
  ASSERT_FALSE(adapter.modules().empty());
  for (const load::ModuleFactors& module : adapter.modules()) {
    ASSERT_FALSE(module.magnitude.empty()) << module.name;
    const std::vector<float> w = base[module.name + ".weight"], m = merged[module.name + ".weight"];
    for (int64_t i = 0; i < module.out(); ++i) {
      double squares = 0, inner = 0, sum_squares = 0;
      for (int64_t j = 0; j < module.in(); ++j) {
        double sum = w[static_cast<size_t>(i * module.in() + j)];
        for (int64_t k = 0; k < module.rank; ++k) sum += module.scale * module.b.row(i)[k] * module.a.row(k)[j];
        const double got = m[static_cast<size_t>(i * module.in() + j)];
        squares += got * got, inner += got * sum, sum_squares += sum * sum;
      }
      ASSERT_NEAR(std::sqrt(squares), load::magnitude_of(module, i), 1e-5 * std::sqrt(squares)) << module.name;
      ASSERT_NEAR(inner / std::sqrt(squares * sum_squares), 1, 1e-6);
    }
  }
}

TEST_F(Merged, BiasesAndSavedWeightsTakeThePlaceOfTheBases) {
  for (const std::string name : {"adapter_bias", "adapter_modules_to_save"}) {
    const std::string adapter_path = kUntied + "/" + name;
    MergeOptions asked = options(kUntied, adapter_path, name);
    asked.dtype = DType::f32;
    Weights base(kUntied), merged(merge(asked));
    const load::AdapterFactors adapter{checkpoint::PeftDirectory(fs::Path(adapter_path))};
    int replaced = 0;
    for (const load::ModuleFactors& module : adapter.modules())
      for (const auto& [own, suffix] : {std::pair(module.bias, ".bias"), std::pair(module.weight, ".weight")}) {
        if (own.empty()) continue;
        const std::vector<float> after = merged[module.name + suffix];
        EXPECT_TRUE(std::equal(after.begin(), after.end(), static_cast<const float*>(own.data))) << module.name;
        EXPECT_NE(after, base[module.name + suffix]) << "nothing is shown otherwise";
        ++replaced;
      }
    EXPECT_EQ(replaced, name == "adapter_bias" ? 6 : 1);
  }
}

// Factors of the head and of the embedding, whose update is transposed: (B A)^T.
TEST_F(Merged, TheEndsOfATiedModelBecomeTwoTensors) {
  const auto sizes = Json(read_json(kTied + "/config.json"));
  const auto vocab = sizes["vocab_size"].get<int64_t>(), width = sizes["hidden_size"].get<int64_t>();
  std::vector<float> long_side(static_cast<size_t>(2 * vocab)), short_side(static_cast<size_t>(2 * width));
  for (size_t i = 0; i < long_side.size(); ++i) long_side[i] = 0.01f * static_cast<float>(i % 7) - 0.02f;
  for (size_t i = 0; i < short_side.size(); ++i) short_side[i] = 0.03f * static_cast<float>(i % 5) - 0.05f;
  const auto adapter = [&](const std::string& name, const std::string& target, const NamedTensors& tensors) {
    checkpoint::write_peft_directory(path(name), {.rank = 2, .alpha = 4}, {target}, "", tensors);
    return path(name);
  };
  const std::string prefix = "base_model.model.";
  const std::string head =
      adapter("head", "lm_head",
              {{prefix + "lm_head.lora_A.weight", ConstTensor(short_side.data(), DType::f32, {2, width})},
               {prefix + "lm_head.lora_B.weight", ConstTensor(long_side.data(), DType::f32, {vocab, 2})}});
  const std::string embedding = adapter(
      "embedding", "embed_tokens",
      {{prefix + "model.embed_tokens.lora_embedding_A", ConstTensor(long_side.data(), DType::f32, {2, vocab})},
       {prefix + "model.embed_tokens.lora_embedding_B", ConstTensor(short_side.data(), DType::f32, {width, 2})}});
  const std::vector<float> before = Weights(kTied)["model.embed_tokens.weight"];
  const auto expect = [&](const std::string& adapter_path, bool is_head) {
    MergeOptions asked = options(kTied, adapter_path, is_head ? "with-head" : "with-embedding");
    asked.dtype = DType::f32;
    Weights merged(merge(asked));
    EXPECT_EQ(read_json(asked.output + "/config.json")["tie_word_embeddings"], false);
    EXPECT_NO_THROW(run_verify({.path = asked.output, .base = {.hf_checkpoint = kTied}}, control_)) << taken(out_);
    const std::vector<float> changed = merged[is_head ? "lm_head.weight" : "model.embed_tokens.weight"];
    EXPECT_EQ(merged[is_head ? "model.embed_tokens.weight" : "lm_head.weight"], before) << "the other stays";
    ASSERT_EQ(changed.size(), before.size());
    for (int64_t v = 0; v < vocab; ++v)
      for (int64_t d = 0; d < width; ++d) {
        double wanted = before[static_cast<size_t>(v * width + d)];
        for (int64_t k = 0; k < 2; ++k)
          wanted +=
              2.0 * (is_head
                         ? long_side[static_cast<size_t>(v * 2 + k)] * short_side[static_cast<size_t>(k * width + d)]
                         : long_side[static_cast<size_t>(k * vocab + v)] * short_side[static_cast<size_t>(d * 2 + k)]);
        ASSERT_NEAR(changed[static_cast<size_t>(v * width + d)], wanted, 1e-6);
      }
  };
  expect(head, true);
  expect(embedding, false);
}

// PEFT adds the base's head to an adapter of it.
TEST_F(Merged, CopiesOfTheBaseAreComparedWithIt) {
  Weights base(kUntied);
  std::vector<float> copy = base["lm_head.weight"];
  const auto sizes = Json(read_json(kUntied + "/config.json"));
  const auto vocab = sizes["vocab_size"].get<int64_t>(), width = sizes["hidden_size"].get<int64_t>();
  const std::vector<float> ones(static_cast<size_t>(vocab + width), 0.5f);
  const auto adapter = [&](const std::string& name) {
    const std::string prefix = "base_model.model.lm_head";
    checkpoint::write_peft_directory(
        path(name), {.rank = 1}, {"lm_head"}, "",
        {{prefix + ".lora_A.weight", ConstTensor(ones.data(), DType::f32, {1, width})},
         {prefix + ".lora_B.weight", ConstTensor(ones.data(), DType::f32, {vocab, 1})},
         {prefix + ".base_layer.weight", ConstTensor(copy.data(), DType::f32, {vocab, width})}});
    return path(name);
  };
  EXPECT_NO_THROW(merge(options(kUntied, adapter("same"))));
  copy[5] += 1;
  expect_error<FormatError>([&] { merge(options(kUntied, adapter("another"), "not-written")); },
                            {"lm_head.base_layer.weight", "other values", "modules_to_save"});
  EXPECT_FALSE(fs::exists(path("not-written")));
}

TEST_F(Merged, RefusesWhatDoesNotFit) {
  const std::vector<float> weights(64, 1.0f);
  const std::string q = "model.layers.0.self_attn.q_proj";
  const auto base = [&](const std::string& name, const Json& config, const std::string& tensor, DType dtype) {
    return model_of(name, config, {{tensor, ConstTensor(weights.data(), dtype, {6, 4})}});
  };
  const std::string good = base("good", Json::object(), q + ".weight", DType::f32);
  const std::string packed = base("packed", Json::object(), q + ".weight", DType::u8);
  const std::string adapter = peft_of("adapter", {.rank = 2}, q, 6, 4);
  expect_error<ShapeError>([&] { merge(options(good, peft_of("wide", {.rank = 2}, q, 6, 5))); },
                           {"differ in shape", "f32 [6, 4]", "[6, 5]", q.c_str()});
  expect_error<FormatError>(
      [&] { merge(options(good, peft_of("far", {.rank = 2}, "model.layers.1.self_attn.q_proj", 6, 4))); },
      {"no tensor for a module", "model.layers.1.self_attn.q_proj.weight", q.c_str()});
  expect_error<DTypeError>([&] { merge(options(packed, adapter)); }, {"weights of this type", "u8"});
  expect_error<ConfigError>([&] { merge(options(good, path("absent"))); }, {"no adapter there", "absent"});
  EXPECT_FALSE(fs::exists(path("merged")));
}

// As PEFT, which does not read factors of modules that the configuration leaves out.
TEST_F(Merged, RefusesFactorsOfModulesThatAreNotTargets) {
  for (const auto& [key, value] : std::map<std::string, Json>{
           {"layers_to_transform", {0}}, {"exclude_modules", {"q_proj"}}, {"target_modules", {"k_proj"}}}) {
    std::filesystem::remove_all(path("adapter"));
    std::filesystem::copy(kTiny + "/adapter", path("adapter"));
    Json config = read_json(path("adapter") + "/adapter_config.json");
    config[key] = value;
    fs::write_file_atomic(path("adapter") + "/adapter_config.json", config.dump());
    expect_error<FormatError>([&] { merge(options(kTiny, path("adapter"))); }, {"does not target", "_proj"});
  }
}

TEST_F(Merged, RefusesValuesThatAreNotFiniteOrDoNotFit) {
  std::filesystem::copy(kTiny + "/adapter", path("adapter"));
  Json config = read_json(path("adapter") + "/adapter_config.json");
  config["lora_alpha"] = 4e6;
  fs::write_file_atomic(path("adapter") + "/adapter_config.json", config.dump());
  MergeOptions large = options(kTiny, path("adapter"));
  large.dtype = DType::f16;
  expect_error<FormatError>([&] { merge(large); }, {"does not fit f16", "_proj.weight", "bfloat16"});
  EXPECT_FALSE(fs::exists(path("merged")));
  const std::string weights = path("adapter") + "/adapter_model.safetensors";
  std::string bytes = fs::read_file(weights);
  const uint32_t nan = 0x7fc00000;
  std::memcpy(bytes.data() + bytes.size() - 8, &nan, 4);
  fs::write_file_atomic(weights, bytes);
  expect_error<FormatError>([&] { merge(options(kTiny, path("adapter"))); }, {"not finite", "_proj"});
}

TEST_F(Merged, RefusesAnotherBase) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused);
  Json config = read_json(kArith + "/config.json");
  config["rope_theta"] = 20000.0;
  expect_error<FormatError>([&] { merge(options(model_with(kArith, "config.json", config), adapter)); },
                            {"another config.json of the same weights"});
  EXPECT_FALSE(fs::exists(path("merged")));
  merge(options(kArith, adapter));
  expect_error<FormatError>([&] { merge(options(path("merged"), adapter, "twice")); }, {"belongs to another base"});
}

TEST_F(Merged, ReplacesAModelOnlyWhenAsked) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused);
  MergeOptions asked = options(kArith, adapter);
  dir_.write("merged/mine.txt", "mine");
  expect_error<ConfigError>([&] { merge(asked); }, {"not empty", "--overwrite"});
  asked.overwrite = true;
  expect_error<ConfigError>([&] { merge(asked); }, {"holds something else", "no config.json"});
  EXPECT_EQ(fs::read_file(path("merged") + "/mine.txt"), "mine");
  dir_.write("merged/config.json", "{}");
  merge(asked);
  EXPECT_FALSE(fs::exists(path("merged") + "/mine.txt"));
  expect_merged(kArith, adapter, path("merged"));
  dir_.write("file", "x");
  expect_error<ConfigError>([&] { merge(options(kArith, adapter, "file")); }, {"the output is a file"});
  asked = options(path("merged"), adapter);
  asked.overwrite = true;
  expect_error<ConfigError>([&] { merge(asked); }, {"would replace an input"});
  asked.output = dir_.path().string();
  expect_error<ConfigError>([&] { merge(asked); }, {"would replace an input"});
}

TEST_F(Merged, OneAtATime) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused);
  std::filesystem::create_directory(path("merged"));
  const fs::FileLock other(path("merged"), "the output directory", "");
  expect_error<ResourceError>([&] { merge(options(kArith, adapter)); }, {"the output directory is in use", "process"});
}

TEST_F(Merged, AnInterruptLeavesNothing) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused);
  const auto before = names();
  control_.interrupted = [] { return true; };
  expect_error<Cancelled>([&] { merge(options(kArith, adapter)); }, {"interrupted"});
  EXPECT_EQ(names(), before);
}

// A disk without room, as far as a process can be given one: files may have 64 KB.
TEST_F(Merged, AFullDiskLeavesTheOlderModel) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused);
  MergeOptions asked = options(kArith, adapter);
  merge(asked);
  const auto before = names();
  const std::string older = fs::read_file(path("merged") + "/model.safetensors");
  asked.dtype = DType::f32;
  asked.overwrite = true;
  rlimit unlimited{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 64 << 10, .rlim_max = unlimited.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error<ResourceError>([&] { merge(asked); }, {"cannot write", "model.safetensors"});
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(names(), before);
  EXPECT_EQ(fs::read_file(path("merged") + "/model.safetensors"), older);
}

}  // namespace
}  // namespace lockstep::commands
