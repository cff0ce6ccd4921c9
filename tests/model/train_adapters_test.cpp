// Training batches with rows of several adapters, and heads other than the model's own.
#include "core/device.h"
#include "core/error.h"
#include "kernels/pack.h"
#include "model/tensor_places.h"
#include "model/train_case.h"

namespace lockstep::model {
namespace {

using Versions = std::vector<const lora::AdapterVersion*>;

struct Outputs {
  std::vector<float> logprob;
  std::vector<std::vector<float>> gradients;  // of each adapter
  bool operator==(const Outputs&) const = default;
};

constexpr Recompute kRecompute[] = {Recompute::none, Recompute::norms, Recompute::selective, Recompute::full};

// One batch of all sequences, or sequence by sequence those that `only` uses. `which[s]` is the adapter of sequence s,
// -1 the base.
Outputs run(const Model& model, const Versions& adapters, const std::vector<int>& which, int only, Recompute recompute,
            float dropout, Stream& stream) {
  Outputs result;
  std::vector<Buffer> gradients;
  for (const lora::AdapterVersion* adapter : adapters) gradients.push_back(zero_gradient(*adapter->layout, stream));
  TrainPass pass(model, stream);
  const auto step = [&](int first, int count) {
    const Packed packed(first, count);
    Versions of_sequences;
    std::vector<lora::GradientRows> lanes;
    for (int i = 0; i < count; ++i) {
      const int adapter = which[static_cast<size_t>(first + i)];
      of_sequences.push_back(adapter < 0 ? nullptr : adapters[static_cast<size_t>(adapter)]);
      if (adapter < 0) continue;
      const int64_t begin = packed.begins[static_cast<size_t>(i)];
      lanes.push_back(
          {begin, packed.begins[static_cast<size_t>(i) + 1] - begin, gradients[static_cast<size_t>(adapter)].f32()});
    }
    Arena counters(stream.device());
    kernels::LoraDropout mask;
    if (dropout > 0)
      mask = {.p = dropout,
              .key = 4,
              .step = 2,
              .sample = upload(std::span<const int32_t>(packed.sample), counters, stream),
              .position = upload(std::span<const int32_t>(packed.position), counters, stream)};
    const HeadOutputs heads =
        pass.forward(packed.batch(), of_sequences, {.recompute = recompute, .entropy = true}, mask);
    result.logprob.insert(result.logprob.end(), heads.logprob_T.f32(), heads.logprob_T.f32() + packed.size());
    pass.backward(Packed::view(packed.d_logprob), Packed::view(packed.d_entropy), lanes);
    stream.synchronize();
  };
  if (only < 0)
    step(0, kSequences);
  else
    for (int s = 0; s < kSequences; ++s)
      if (which[static_cast<size_t>(s)] == only) step(s, 1);
  for (size_t i = 0; i < adapters.size(); ++i)
    result.gradients.push_back(gradient_values(gradients[i], *adapters[i]->layout, stream));
  return result;
}

// Runs of rows of one adapter, of the other, and of the base; the adapters differ in layers, modules and ranks.
void expect_own_gradients(const Model& model, Stream& stream) {
  const auto placed = [&](const lora::AdapterVersion& version) {
    return testing::placed(testing::rounded(version), stream);
  };
  const lora::AdapterVersion all = placed(tiny_adapter(model.config(), lora::LoraType::fused, 1));
  const lora::AdapterVersion upper = placed(tiny_adapter(model.config(), lora::LoraType::canonical, 2,
                                                         {"layers.1.self_attn.v_proj", "layers.2.mlp.down_proj"}));
  const std::vector<int> which = {0, 0, 1, 0, -1, 1};
  for (const Recompute recompute : kRecompute)
    for (const float dropout : {0.0f, 0.3f}) {
      const std::string what = model.config().family + " " + recompute_name(recompute);
      const Outputs both = run(model, {&all, &upper}, which, -1, recompute, dropout, stream);
      for (int adapter = 0; adapter < 2; ++adapter) {
        const Outputs alone = run(model, {&all, &upper}, which, adapter, recompute, dropout, stream);
        const auto index = static_cast<size_t>(adapter);
        EXPECT_EQ(both.gradients[index], alone.gradients[index]) << what;
        EXPECT_NE(both.gradients[index], std::vector<float>(both.gradients[index].size())) << what;
        size_t row = 0, row_alone = 0;
        for (size_t s = 0; s < kLengths.size(); row += static_cast<size_t>(kLengths[s++])) {
          if (which[s] != adapter) continue;
          for (int64_t t = 0; t < kLengths[s]; ++t, ++row_alone)
            ASSERT_EQ(both.logprob[row + static_cast<size_t>(t)], alone.logprob[row_alone]) << what;
        }
      }
    }
}

TEST(TrainAdapters, EachGetsTheGradientsThatItGetsAlone) {
  Stream stream({.threads = 2});
  for (const char* family : {"llama", "qwen3"}) expect_own_gradients(tiny_model(family, stream), stream);
}

TEST(TrainAdaptersCuda, EachGetsTheGradientsThatItGetsAlone) {
  if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  Stream stream({.device = Device::cuda});
  for (const char* family : {"llama", "qwen3"}) expect_own_gradients(gpu_model(family, stream), stream);
}

TEST(TrainAdapters, WrongBatchesAreErrors) {
  Stream stream({.threads = 1});
  const Model model = tiny_model("qwen3", stream);
  const lora::AdapterVersion one = tiny_adapter(model.config(), lora::LoraType::fused, 1);
  const lora::AdapterVersion two = tiny_adapter(model.config(), lora::LoraType::fused, 2);
  const Packed packed(0, 3);
  std::vector<float> gradient(static_cast<size_t>(one.layout->num_floats));
  TrainPass pass(model, stream);
  const auto forward = [&](const Versions& adapters) { pass.forward(packed.batch(), adapters, {}); };
  EXPECT_THROW(forward({&one, &two}), ShapeError);
  EXPECT_THROW(forward({nullptr, nullptr, nullptr}), ShapeError);
  const auto backward = [&](const Versions& adapters, const lora::GradientRows& lane) {
    forward(adapters);
    pass.backward(Packed::view(packed.d_logprob), {}, {&lane, 1});
  };
  EXPECT_NO_THROW(backward({&one, &one, &two}, {0, packed.begins[2], gradient.data()}));
  EXPECT_THROW(backward({&one, &two, &two}, {0, packed.begins[2], gradient.data()}), ShapeError);
  EXPECT_THROW(backward({nullptr, &one, &one}, {0, packed.begins[1], gradient.data()}), ShapeError);
}

lora::AdapterVersion with_value_head(lora::AdapterVersion version, int64_t width) {
  auto extras = std::make_shared<lora::AdapterExtras>();
  float* const values = extras->memory.emplace_back(static_cast<size_t>(width) * sizeof(float)).f32();
  for (int64_t i = 0; i < width; ++i) values[i] = drawn(600, static_cast<uint32_t>(i));
  extras->tensors.push_back({"v_head.summary.weight", ConstTensor(values, DType::f32, {1, width})});
  version.extras = std::move(extras);
  return version;
}
std::span<const float> value_head(const lora::AdapterVersion& version) {
  const ConstTensor& weight = version.extras->tensors.front().tensor;
  return {weight.f32(), static_cast<size_t>(weight.elements())};
}

std::vector<float> logprobs(const Model& model, const lora::AdapterVersion& adapter, Stream& stream) {
  const Packed packed(0, 3);
  TrainPass pass(model, stream);
  const HeadOutputs heads = pass.score(packed.batch(), &adapter, {});
  return {heads.logprob_T.f32(), heads.logprob_T.f32() + packed.size()};
}

// A weight and a bias that an adapter has in place of the base's give the bits of a base with these.
TEST(AdapterExtras, AreThoseOfAModelThatHasThem) {
  Stream stream({.threads = 2});
  const ModelSpec config = tiny_config("llama");
  ModelFile file(config);
  const Model model(config, Weights::load(config, file.tensors, stream));
  const lora::AdapterVersion plain = tiny_adapter(config, lora::LoraType::fused, 1);
  const int64_t site = model.weights().layers[1].o.site;
  const auto with = [&](const lora::AdapterExtras::Site& at_site) {
    lora::AdapterVersion version = plain;
    auto extras = std::make_shared<lora::AdapterExtras>();
    extras->sites.push_back(at_site);
    version.extras = std::move(extras);
    return version;
  };
  // The file's tensors are changed in place: `other` is the model with them.
  const auto changed = [&](const char* name, const std::function<void(float*, int64_t)>& change) {
    const ConstTensor& tensor = file.find(name).tensor;
    change(const_cast<float*>(tensor.f32()), tensor.elements());
    return Model(config, Weights::load(config, file.tensors, stream));
  };
  const std::vector<float> before = logprobs(model, plain, stream);

  const Model heavier = changed("model.layers.1.self_attn.o_proj.weight", [](float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = drawn(610, static_cast<uint32_t>(i)) / 4;
  });
  const ConstTensor& tensor = file.find("model.layers.1.self_attn.o_proj.weight").tensor;
  const auto weight = std::make_shared<const kernels::PackedWeight>(kernels::pack_weight({&tensor, 1}, stream));
  const std::vector<float> replaced = logprobs(model, with({.site = site, .weight = weight}), stream);
  EXPECT_EQ(replaced, logprobs(heavier, plain, stream));
  EXPECT_NE(replaced, before);

  std::vector<float> bias;
  for (int64_t i = 0; i < config.width; ++i) bias.push_back(drawn(611, static_cast<uint32_t>(i)));
  const Model biased =
      changed("model.layers.1.self_attn.o_proj.bias", [&](float* values, int64_t) { std::ranges::copy(bias, values); });
  const std::vector<float> wanted = logprobs(biased, plain, stream);
  const std::vector<float> with_bias =
      logprobs(model, with({.site = site, .bias = Packed::view(bias), .weight = weight}), stream);
  EXPECT_EQ(with_bias, wanted);
  EXPECT_NE(with_bias, replaced);
  const std::vector<float> ones(bias.size(), 1.0f);
  const std::vector<float> scaled = logprobs(
      model, with({.site = site, .factor = Packed::view(ones), .bias = Packed::view(bias), .weight = weight}), stream);
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(scaled[i], wanted[i], 2e-4);
}

// A value head, v_i = w . hidden_i, beside the model's own head: the gradient of sum_i c_i v_i + sum_i d_i logprob_i.
TEST(TrainAdapters, AValueHeadReadsTheHiddenStateAndReturnsItsGradient) {
  Stream stream({.threads = 1});
  const Model model = tiny_model("qwen3", stream);
  const lora::AdapterVersion adapter =
      with_value_head(tiny_adapter(model.config(), lora::LoraType::fused, 1), model.config().width);
  const Packed packed(0, 2);
  const int64_t width = model.config().width;
  const std::span<const float> head = value_head(adapter);
  const auto factor = [](int64_t row) { return drawn(601, static_cast<uint32_t>(row)); };
  const auto objective = [&](const lora::AdapterVersion& version) {
    TrainPass pass(model, stream);
    const HeadOutputs heads = pass.forward(packed.batch(), version, {});
    double sum = 0;
    for (int64_t t = 0; t < packed.size(); ++t)
      sum += double(heads.logprob_T.f32()[t]) * packed.d_logprob[static_cast<size_t>(t)];
    for (int64_t row = 0; row < heads.hidden_ND[0]; ++row)
      for (int64_t i = 0; i < width; ++i)
        sum += double(factor(row)) * head[static_cast<size_t>(i)] * heads.hidden_ND.row(row)[i];
    return sum;
  };
  std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
  const lora::GradientRows lane{0, packed.size(), gradient.data()};
  TrainPass pass(model, stream);
  const int64_t rows = pass.forward(packed.batch(), adapter, {}).hidden_ND[0];
  ASSERT_GT(rows, 0);
  std::vector<float> d_hidden;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; ++i) d_hidden.push_back(factor(row) * head[static_cast<size_t>(i)]);
  const ConstTensor d_hidden_ND(d_hidden.data(), DType::f32, {rows, width});
  EXPECT_THROW(
      pass.backward({.logprob_T = Packed::view(packed.d_logprob), .hidden_ND = d_hidden_ND.rows(1, rows)}, {&lane, 1}),
      ShapeError);
  pass.backward({.logprob_T = Packed::view(packed.d_logprob), .hidden_ND = d_hidden_ND}, {&lane, 1});
  for (uint32_t direction = 0; direction < 4; ++direction) {
    constexpr float kStep = 1.0f / 512;
    double along = 0, size = 0;
    const auto moved = [&](float step) {
      lora::AdapterVersion version = adapter;
      auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
      along = size = 0;
      for (int64_t i = 0; i < adapter.layout->num_floats; ++i) {
        const float u = drawn(700 + direction, static_cast<uint32_t>(i));
        weights->f32()[i] = adapter.weights->f32()[i] + step * u;
        along += double(u) * gradient[static_cast<size_t>(i)];
        size += std::fabs(double(u) * gradient[static_cast<size_t>(i)]);
      }
      version.weights = weights;
      return objective(version);
    };
    const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    EXPECT_NEAR(along, slope, 2e-3 * size) << direction;
  }
}

}  // namespace
}  // namespace lockstep::model
