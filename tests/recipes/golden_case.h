// One family's golden directory (tests/golden, tools/golden/make_goldens.py) on one device, and its numbers by the keys
// of expected.safetensors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/hf_directory.h"
#include "checkpoint/peft_directory.h"
#include "checkpoint/safetensors.h"
#include "core/transfer.h"
#include "model/config.h"
#include "model/train_pass.h"
#include "support/gpu.h"
#include "support/tolerance.h"

namespace lockstep::golden {

inline constexpr int kSamples = 3;
inline constexpr float kTemperature = 1.25f;
inline fs::Path directory(const std::string& name) {
  return fs::Path(LOCKSTEP_SOURCE_DIR) / "tests" / "golden" / name;
}

// The models that make_goldens.py has written.
inline std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory(".").parent_path()))
    if (fs::exists(entry.path() / "expected.safetensors")) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

using Numbers = std::map<std::string, std::vector<float>>;

// As the file has it, or with matrices and adapters rounded to bf16: the numbers a GPU works with.
enum class Storage { file, bf16 };

struct Case {
  Stream& stream;
  Storage storage;
  checkpoint::HfDirectory files;
  checkpoint::SafetensorsFile expected;
  model::ModelSpec config;
  std::unique_ptr<model::Model> model;

  Case(const std::string& name, Stream& s, Storage as = Storage::file)
      : stream(s), storage(as), files(directory(name)), expected(directory(name) / "expected.safetensors") {
    files.open_weights();
    config = model::parse_config(files.config(), name + "/config.json");
    std::vector<Buffer> memory;
    NamedTensors tensors = files.tensors();
    if (storage == Storage::bf16) tensors = in_bf16(tensors, memory);
    model = std::make_unique<model::Model>(config, model::Weights::load(config, tensors, stream));
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

  lora::AdapterVersion adapter(const std::string& name = "adapter") const {
    const checkpoint::PeftDirectory peft(files.path() / name);
    lora::AdapterVersion version;
    version.layout = lora::resolve_layout(peft.config(), model::linear_modules(config));
    version.weights =
        std::make_shared<Buffer>(lora::import_tensors(*version.layout, peft.read_weights().tensors(), name));
    return testing::placed(storage == Storage::bf16 ? testing::rounded(version) : version, stream);
  }

 private:
  static NamedTensors in_bf16(const NamedTensors& tensors, std::vector<Buffer>& memory) {
    NamedTensors result;
    for (const NamedTensor& named : tensors) {
      const bool rounded = named.tensor.rank == 2 && named.tensor.dtype != DType::bf16;
      result.push_back(rounded ? in_bf16(named, memory.emplace_back()) : named);
    }
    return result;
  }
  static NamedTensor in_bf16(const NamedTensor& named, Buffer& memory) {
    std::vector<std::byte> bytes(named.bytes());
    named.read(bytes.data(), 0, bytes.size());
    memory = Buffer(static_cast<size_t>(named.tensor.elements()) * sizeof(BFloat16));
    for (int64_t i = 0; i < named.tensor.elements(); ++i)
      static_cast<BFloat16*>(memory.data())[i] = to_bf16(element(bytes.data(), named.tensor.dtype, i));
    return {named.name, ConstTensor(memory.data(), DType::bf16, {named.tensor[0], named.tensor[1]})};
  }
  static float element(const std::byte* bytes, DType dtype, int64_t i) {
    bytes += i * dtype_bytes(dtype);
    float value;
    Float16 half;
    if (dtype == DType::f32) return std::memcpy(&value, bytes, sizeof value), value;
    return std::memcpy(&half, bytes, sizeof half), to_f32(half);
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
  int64_t begin(int i) const { return begins[static_cast<size_t>(i)]; }
  int64_t length(int i) const { return begin(i + 1) - begin(i); }
};

inline std::vector<float> logits(const Case& c, const std::vector<int32_t>& tokens,
                                 const lora::AdapterVersion* adapter) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const DType dtype = kernels::activation_dtype(c.stream.device());
  const int64_t stride = c.model->kv_layer_elements(), num_blocks = (count + kernels::kKvBlock - 1) / kernels::kKvBlock;
  Arena arena(c.stream.device());
  const Tensor cache = arena.alloc({num_blocks, stride * c.config.layers}, dtype);
  std::vector<void*> blocks;
  for (int64_t i = 0; i < num_blocks; ++i) blocks.push_back(cache.rows(i, i + 1).data);
  const model::Segment segment{.rows = count, .kv_blocks = blocks, .adapter = adapter};
  const Tensor hidden = arena.alloc({count, c.config.width}, dtype);
  c.model->forward(hidden, {.tokens = tokens, .segments = {&segment, 1}, .kv_layer_stride = stride}, arena, c.stream);
  const Tensor result = arena.alloc({count, c.config.vocab_size});
  c.model->logits(result, hidden, {.rows = {{.rows = count, .adapter = adapter}}, .tiles = {}, .dropout = {}}, arena,
                  c.stream);
  return testing::values_of(result, c.stream);
}

inline Numbers logits_of(const Case& c) {
  Numbers numbers;
  const lora::AdapterVersion adapter = c.adapter();
  for (int i = 0; i < kSamples; ++i) {
    numbers["logits_base." + std::to_string(i)] = logits(c, c.tokens(i), nullptr);
    numbers["logits_lora." + std::to_string(i)] = logits(c, c.tokens(i), &adapter);
  }
  return numbers;
}

// One pass under the adapter: log-probs and entropies of every sample, and the adapter's gradients.
struct Pass {
  float temperature = 1;
  model::Recompute recompute = model::Recompute::selective;
  std::string logprobs, entropy, gradient;  // prefixes of the keys
  std::vector<float> d_logprob, d_entropy;  // of the rows; the latter may be empty
};

inline Numbers numbers_of(const Case& c, const Pass& wanted) {
  Numbers numbers;
  const lora::AdapterVersion adapter = c.adapter();
  const Batch batch(c);
  model::TrainPass pass(*c.model, c.stream);
  const model::HeadOutputs heads =
      pass.forward(batch.view(), adapter,
                   {.inv_temperature = 1 / wanted.temperature, .recompute = wanted.recompute, .entropy = true});
  for (int i = 0; i < kSamples; ++i) {
    const int64_t begin = batch.begin(i), count = batch.length(i) - 1;
    const float *logprob = heads.logprob_T.f32() + begin, *entropy = heads.entropy_T.f32() + begin;
    numbers[wanted.logprobs + std::to_string(i)] = {logprob, logprob + count};
    numbers[wanted.entropy + std::to_string(i)] = {entropy, entropy + count};
    EXPECT_EQ(logprob[count], 0.0f);
  }
  const auto view = [](const std::vector<float>& values) {
    return values.empty() ? ConstTensor()
                          : ConstTensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
  };
  const Buffer gradient(static_cast<size_t>(adapter.layout->num_floats) * sizeof(float), Buffer::Fill::zero,
                        c.stream.device());
  const lora::GradientRows lane{0, batch.size(), gradient.f32()};
  pass.backward(view(wanted.d_logprob), view(wanted.d_entropy), {&lane, 1});
  const Buffer host = host_copy(gradient, c.stream);
  const lora::ExportedTensors exported = lora::export_tensors(*adapter.layout, host.f32());
  EXPECT_EQ(exported.tensors.size(), 28u);
  for (const NamedTensor& tensor : exported.tensors)
    numbers[wanted.gradient + tensor.name] = {tensor.tensor.f32(), tensor.tensor.f32() + tensor.tensor.elements()};
  return numbers;
}

// The mean of the samples' mean losses, and the gradient of that.
inline Numbers sft_numbers(const Case& c, model::Recompute recompute) {
  const Batch batch(c);
  Pass pass{.recompute = recompute, .logprobs = "logprobs_lora.", .entropy = "entropy_lora.", .gradient = "grad."};
  pass.d_logprob.assign(static_cast<size_t>(batch.size()), 0.0f);
  for (int i = 0; i < kSamples; ++i)
    std::fill_n(pass.d_logprob.begin() + batch.begin(i), batch.length(i) - 1,
                -1.0f / static_cast<float>(kSamples * (batch.length(i) - 1)));
  return numbers_of(c, pass);
}

// At a temperature, with weights for log-probs and entropies.
inline Numbers rl_numbers(const Case& c) {
  const Batch batch(c);
  Pass pass{.temperature = kTemperature, .logprobs = "rl.logprobs.", .entropy = "rl.entropy.", .gradient = "rl.grad."};
  pass.d_logprob.assign(static_cast<size_t>(batch.size()), 0.0f);
  pass.d_entropy = pass.d_logprob;
  for (int i = 0; i < kSamples; ++i) {
    const ConstTensor &weight = c.want("rl.c." + std::to_string(i)), &entropy = c.want("rl.d." + std::to_string(i));
    std::copy_n(weight.f32(), weight.elements(), pass.d_logprob.begin() + batch.begin(i));
    std::copy_n(entropy.f32(), entropy.elements(), pass.d_entropy.begin() + batch.begin(i));
  }
  return numbers_of(c, pass);
}

inline void expect_near(const std::vector<float>& got, const float* wanted, const std::string& key,
                        const testing::Tolerance& tolerance) {
  const testing::Difference d = testing::difference(got.data(), wanted, static_cast<int64_t>(got.size()));
  const bool logits = key.find("logits") != std::string::npos, gradient = key.find("grad.") != std::string::npos;
  if (logits || gradient)
    EXPECT_LE(tolerance.largest ? d.of_largest : d.of_norm, logits ? tolerance.logits : tolerance.gradient) << key;
  else
    EXPECT_LE(tolerance.largest ? d.largest : d.root_mean_square, tolerance.logprob) << key;
}

inline void expect_golden(const Case& c, const Numbers& got, const testing::Tolerance& tolerance) {
  for (const auto& [key, values] : got) {
    const ConstTensor& wanted = c.want(key);
    ASSERT_EQ(wanted.elements(), static_cast<int64_t>(values.size())) << key;
    expect_near(values, wanted.f32(), key, tolerance);
  }
}

inline void expect_near(const Numbers& got, const Numbers& wanted, const testing::Tolerance& tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [key, values] : got) {
    ASSERT_EQ(values.size(), wanted.at(key).size()) << key;
    expect_near(values, wanted.at(key).data(), key, tolerance);
  }
}

}  // namespace lockstep::golden
