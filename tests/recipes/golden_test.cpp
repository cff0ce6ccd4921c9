// Our numbers against transformers + PEFT in float32 (tests/golden, tools/golden/make_goldens.py).
// Relative error = max|a-b| / max|b| per tensor; log-probs and entropies absolute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "checkpoint/hf_directory.h"
#include "checkpoint/peft_directory.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "model/train_pass.h"

namespace lockstep {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int kSamples = 3;
constexpr float kTemperature = 1.25f;

fs::Path golden(const std::string& name) {
  return fs::Path(LOCKSTEP_SOURCE_DIR) / "tests" / "golden" / name;
}

double max_difference(const float* a, const float* b, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(double(a[i]) - b[i]));
  return largest;
}

double relative_error(const float* a, const ConstTensor& wanted) {
  double scale = 0;
  for (int64_t i = 0; i < wanted.elements(); ++i) scale = std::max<double>(scale, std::fabs(wanted.f32()[i]));
  return max_difference(a, wanted.f32(), wanted.elements()) / scale;
}

// KV memory of one sequence, every layer its own.
struct Cache {
  Buffer memory;
  std::vector<void*> blocks;
  int64_t stride = 0;

  Cache(const model::Model& model, int64_t tokens) {
    const int64_t count = (tokens + kernels::kKvBlock - 1) / kernels::kKvBlock;
    stride = model.kv_layer_elements();
    const int64_t block = stride * model.config().layers;
    memory = Buffer(static_cast<size_t>(count * block) * sizeof(float));
    for (int64_t i = 0; i < count; ++i) blocks.push_back(memory.f32() + i * block);
  }
};

struct Case {
  Stream stream{StreamOptions{.threads = 2}};
  checkpoint::HfDirectory directory;
  checkpoint::SafetensorsFile expected;
  model::ModelConfig config;
  std::unique_ptr<model::Model> model;

  explicit Case(const std::string& name) : directory(golden(name)), expected(golden(name) / "expected.safetensors") {
    directory.map_weights();
    config = model::parse_config(directory.config(), name + "/config.json");
    model = std::make_unique<model::Model>(config, model::Weights::load(config, directory.tensors(), stream));
  }

  const ConstTensor& want(const std::string& key) const {
    const ConstTensor* found = expected.find(key);
    if (!found) throw std::runtime_error("no golden tensor " + key);
    return *found;
  }

  std::vector<int32_t> tokens(int i) const {
    const ConstTensor& tensor = want("tokens." + std::to_string(i));
    const int32_t* values = static_cast<const int32_t*>(tensor.data);
    return {values, values + tensor.elements()};
  }

  lora::AdapterVersion adapter(const std::string& name) const {
    const checkpoint::PeftDirectory peft(golden(directory.path().filename()) / name);
    lora::AdapterVersion version;
    version.layout = lora::resolve_layout(peft.config(), model::linear_modules(config));
    version.weights = std::make_shared<Buffer>(lora::import_tensors(*version.layout, peft.tensors(), name));
    return version;
  }

  std::vector<float> logits(const std::vector<int32_t>& tokens, const lora::AdapterVersion* adapter) {
    const int64_t count = static_cast<int64_t>(tokens.size());
    const Cache cache(*model, count);
    const model::Segment segment{
        .row_begin = 0, .rows = count, .first_position = 0, .kv_blocks = cache.blocks, .adapter = adapter};
    Arena arena;
    const Tensor hidden = arena.alloc({count, config.width});
    model->forward(hidden, {.tokens = tokens, .segments = {&segment, 1}, .kv_layer_stride = cache.stride}, arena,
                   stream);
    std::vector<float> values(static_cast<size_t>(count * config.vocab_size));
    model->logits(Tensor(values.data(), DType::f32, {count, config.vocab_size}), hidden, arena, stream);
    return values;
  }
};

// The three samples as one packed batch.
struct Batch {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> begins = {0};

  explicit Batch(const Case& c) {
    for (int i = 0; i < kSamples; ++i) {
      const std::vector<int32_t> sample = c.tokens(i);
      tokens.insert(tokens.end(), sample.begin(), sample.end());
      targets.insert(targets.end(), sample.begin() + 1, sample.end());
      targets.push_back(-1);
      begins.push_back(static_cast<int64_t>(tokens.size()));
    }
  }
  model::TrainBatch view() const { return {.tokens = tokens, .sequence_begin = begins, .targets = targets}; }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void expect_gradients(const Case& c, const lora::AdapterVersion& adapter, const Buffer& gradient,
                        const std::string& prefix) {
    const lora::ExportedTensors exported = lora::export_tensors(*adapter.layout, gradient.f32());
    ASSERT_EQ(exported.tensors.size(), 28u);
    for (const NamedTensor& tensor : exported.tensors)
      EXPECT_LE(relative_error(tensor.tensor.f32(), c.want(prefix + tensor.name)), kTolerance) << prefix << tensor.name;
  }
};

TEST_P(Golden, Logits) {
  Case c(GetParam());
  const lora::AdapterVersion adapter = c.adapter("adapter");
  for (int i = 0; i < kSamples; ++i) {
    const std::string at = std::to_string(i);
    EXPECT_LE(relative_error(c.logits(c.tokens(i), nullptr).data(), c.want("logits_base." + at)), kTolerance) << at;
    EXPECT_LE(relative_error(c.logits(c.tokens(i), &adapter).data(), c.want("logits_lora." + at)), kTolerance) << at;
  }
}

TEST_P(Golden, LogprobsAndEntropies) {
  Case c(GetParam());
  const lora::AdapterVersion adapter = c.adapter("adapter");
  const Batch batch(c);
  model::TrainPass pass(*c.model, c.stream);
  const auto heads = pass.forward(batch.view(), adapter, {.inv_temperature = 1, .recompute = false, .entropy = true});
  for (int i = 0; i < kSamples; ++i) {
    const std::string at = std::to_string(i);
    const ConstTensor& logprobs = c.want("logprobs_lora." + at);
    const int64_t begin = batch.begins[static_cast<size_t>(i)], count = logprobs.elements();
    EXPECT_LE(max_difference(heads.logprob_T.f32() + begin, logprobs.f32(), count), kTolerance) << at;
    EXPECT_LE(max_difference(heads.entropy_T.f32() + begin, c.want("entropy_lora." + at).f32(), count), kTolerance)
        << at;
    EXPECT_EQ(heads.logprob_T.f32()[begin + count], 0.0f);
  }
}

TEST_P(Golden, GradientsOfTheMeanLoss) {
  Case c(GetParam());
  const lora::AdapterVersion adapter = c.adapter("adapter");
  const Batch batch(c);
  std::vector<float> d(static_cast<size_t>(batch.size()), 0.0f);
  for (int i = 0; i < kSamples; ++i) {
    const int64_t begin = batch.begins[static_cast<size_t>(i)], end = batch.begins[static_cast<size_t>(i) + 1];
    for (int64_t t = begin; t + 1 < end; ++t)
      d[static_cast<size_t>(t)] = -1.0f / static_cast<float>(kSamples * (end - begin - 1));
  }
  for (const bool recompute : {false, true}) {
    Buffer gradient(static_cast<size_t>(adapter.layout->num_floats) * sizeof(float));
    const lora::GradientRows lane{0, batch.size(), gradient.f32()};
    model::TrainPass pass(*c.model, c.stream);
    pass.forward(batch.view(), adapter, {.inv_temperature = 1, .recompute = recompute, .entropy = false});
    pass.backward(ConstTensor(d.data(), DType::f32, {batch.size()}), {}, {&lane, 1});
    expect_gradients(c, adapter, gradient, "grad.");
  }
}

TEST_P(Golden, GradientsOfLogprobAndEntropyAtTemperature) {
  Case c(GetParam());
  const lora::AdapterVersion adapter = c.adapter("adapter");
  const Batch batch(c);
  std::vector<float> d_logprob(static_cast<size_t>(batch.size()), 0.0f), d_entropy = d_logprob;
  for (int i = 0; i < kSamples; ++i) {
    const ConstTensor& weight = c.want("rl.c." + std::to_string(i));
    const int64_t begin = batch.begins[static_cast<size_t>(i)];
    std::copy_n(weight.f32(), weight.elements(), d_logprob.data() + begin);
    std::copy_n(c.want("rl.d." + std::to_string(i)).f32(), weight.elements(), d_entropy.data() + begin);
  }
  Buffer gradient(static_cast<size_t>(adapter.layout->num_floats) * sizeof(float));
  const lora::GradientRows lane{0, batch.size(), gradient.f32()};
  model::TrainPass pass(*c.model, c.stream);
  const auto heads =
      pass.forward(batch.view(), adapter, {.inv_temperature = 1 / kTemperature, .recompute = false, .entropy = true});
  for (int i = 0; i < kSamples; ++i) {
    const std::string at = std::to_string(i);
    const ConstTensor& logprobs = c.want("rl.logprobs." + at);
    const int64_t begin = batch.begins[static_cast<size_t>(i)];
    EXPECT_LE(max_difference(heads.logprob_T.f32() + begin, logprobs.f32(), logprobs.elements()), kTolerance);
    EXPECT_LE(max_difference(heads.entropy_T.f32() + begin, c.want("rl.entropy." + at).f32(), logprobs.elements()),
              kTolerance);
  }
  pass.backward(ConstTensor(d_logprob.data(), DType::f32, {batch.size()}),
                ConstTensor(d_entropy.data(), DType::f32, {batch.size()}), {&lane, 1});
  expect_gradients(c, adapter, gradient, "rl.grad.");
}

// The file's bytes can be made again from the packed weights.
TEST_P(Golden, VisitGivesTheFileBack) {
  Case c(GetParam());
  size_t next = 0;
  c.model->weights().visit(
      c.config,
      [&](const NamedTensor& tensor) {
        ASSERT_LT(next, c.directory.tensors().size());
        const NamedTensor& file = c.directory.tensors()[next++];
        ASSERT_EQ(tensor.name, file.name);
        ASSERT_EQ(shape_text(tensor.tensor), shape_text(file.tensor));
        const size_t bytes = static_cast<size_t>(file.tensor.elements() * dtype_bytes(file.tensor.dtype));
        EXPECT_EQ(std::memcmp(tensor.tensor.data, file.tensor.data, bytes), 0) << file.name;
      },
      c.stream);
  EXPECT_EQ(next, c.directory.tensors().size());
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("llama3", "smollm2", "mistral", "qwen2", "qwen2_untied", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GoldenAdapters, PatternsRegexAndLayers) {
  Case c("qwen3");
  for (const char* name : {"pattern", "regex", "layers"}) {
    const lora::AdapterVersion adapter = c.adapter(std::string("adapter_") + name);
    const ConstTensor& wanted = c.want(std::string("extra.") + name + ".logits.0");
    EXPECT_LE(relative_error(c.logits(c.tokens(0), &adapter).data(), wanted), kTolerance) << name;
  }
}

TEST(GoldenAdapters, RefusedWithTheKey) {
  for (const char* key : {"bias", "dora", "modules_to_save"}) {
    try {
      checkpoint::PeftDirectory(golden("qwen2_untied") / (std::string("adapter_") + key));
      FAIL() << key;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep
