// Adapters of the embedding and the head, with magnitudes, biases, whole weights, first values that are subtracted:
// gradients against differences, outputs against a model that has them merged, and the same bits however they are made.
#include "model/own_tensors.h"

#include <functional>

#include "core/error.h"
#include "model/tensor_places.h"

namespace lockstep::model {
namespace {

std::vector<float> logprobs_of(const Model& model, const lora::AdapterVersion* adapter, Stream& stream) {
  const Packed packed(0, kSequences);
  TrainPass pass(model, stream);
  const HeadOutputs heads = pass.score(packed.batch(), adapter, {});
  return {heads.logprob_T.f32(), heads.logprob_T.f32() + packed.size()};
}

double objective(const Model& model, const lora::AdapterVersion& adapter, const Packed& packed,
                 const kernels::LoraDropout& dropout, Stream& stream) {
  TrainPass pass(model, stream);
  const HeadOutputs heads = pass.forward(packed.batch(), adapter, {.inv_temperature = 1.25f, .entropy = true}, dropout);
  double sum = 0;
  for (int64_t t = 0; t < packed.size(); ++t)
    sum += double(packed.d_logprob[static_cast<size_t>(t)]) * heads.logprob_T.f32()[t] +
           double(packed.d_entropy[static_cast<size_t>(t)]) * heads.entropy_T.f32()[t];
  return sum;
}

// The extras of `moved` with the norms of `still`: PEFT's gradient takes them for constants.
lora::AdapterVersion with_norms_of(const lora::AdapterVersion& still, lora::AdapterVersion moved, const Model& model,
                                   Stream& stream) {
  moved = with_extras(std::move(moved), model.weights(), stream);
  if (!moved.extras) return moved;
  auto extras = std::make_shared<lora::AdapterExtras>();
  extras->sites = moved.extras->sites;
  for (lora::AdapterExtras::Site& site : extras->sites) {
    if (site.factor.empty()) continue;
    Buffer& memory = extras->memory.emplace_back(static_cast<size_t>(site.factor[0]) * sizeof(float));
    std::fill_n(memory.f32(), site.factor[0], 1.0f);
    for (const lora::OwnTensors& own : lora::own_tensors_at(*moved.layout, site.site))
      for (int64_t i = 0; own.magnitude != lora::kAbsent && i < own.module.out; ++i)
        memory.f32()[own.module.out_begin + i] =
            moved.weights->f32()[own.magnitude + i] *
            still.extras->at(site.site)->inverse_norm.f32()[own.module.out_begin + i];
    site.factor = ConstTensor(memory.data(), DType::f32, {site.factor[0]});
  }
  const auto kept = moved.extras;
  moved.extras = {extras.get(), [extras, kept](const void*) {}};
  return moved;
}

class OwnTensors : public ::testing::TestWithParam<size_t> {
 protected:
  const OwnCase case_ = own_cases()[GetParam()];
  Stream stream_{{.threads = 2}};
};

TEST_P(OwnTensors, GradientsAgreeWithDifferences) {
  for (const char* family : {"llama", "qwen3"})
    for (const float p : {0.0f, 0.3f}) {
      const Model model = tiny_model(family, stream_);
      const lora::AdapterVersion adapter =
          with_extras(own_adapter(model.config(), case_.config, 1), model.weights(), stream_);
      const Packed packed(0, 3);
      kernels::LoraDropout dropout;
      if (p > 0) dropout = {.p = p, .key = 4, .step = 2, .sample = packed.sample, .position = packed.position};
      const int64_t trained = adapter.layout->num_trained;
      std::vector<float> gradient(static_cast<size_t>(trained));
      const lora::GradientRows lane{0, packed.size(), gradient.data()};
      TrainPass pass(model, stream_);
      pass.forward(packed.batch(), adapter, {.inv_temperature = 1.25f, .entropy = true}, dropout);
      pass.backward(Packed::view(packed.d_logprob), Packed::view(packed.d_entropy), {&lane, 1});
      // Each kind of tensor by itself, so that none hides behind larger ones.
      std::vector<std::pair<int64_t, int64_t>> parts;
      for (const lora::Pair& pair : adapter.layout->pairs)
        if (pair.module().kind != lora::ModuleKind::linear || pair.module().layer == adapter.layout->first_layer)
          parts.insert(parts.end(), {{pair.a_offset, pair.in * pair.rank}, {pair.b_offset, pair.rank * pair.out}});
      for (const lora::OwnTensors& own : adapter.layout->own) {
        if (own.magnitude != lora::kAbsent) parts.emplace_back(own.magnitude, own.module.out);
        if (own.bias != lora::kAbsent) parts.emplace_back(own.bias, own.module.out);
        if (own.weight != lora::kAbsent) parts.emplace_back(own.weight, own.module.in * own.module.out);
      }
      ASSERT_FALSE(parts.empty());
      for (size_t part = 0; part < parts.size(); ++part) {
        const auto [begin, count] = parts[part];
        constexpr float kStep = 2e-3f;
        double along = 0, size = 0;
        const auto moved = [&](float step) {
          lora::AdapterVersion version = adapter;
          auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
          std::memcpy(weights->data(), adapter.weights->data(), weights->bytes());
          along = size = 0;
          for (int64_t i = begin; i < begin + count; ++i) {
            const float u = drawn(500 + static_cast<uint32_t>(part), static_cast<uint32_t>(i));
            weights->f32()[i] += step * u;
            along += double(u) * gradient[static_cast<size_t>(i)];
            size += std::fabs(double(u) * gradient[static_cast<size_t>(i)]);
          }
          version.weights = weights;
          return objective(model, with_norms_of(adapter, version, model, stream_), packed, dropout, stream_);
        };
        const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        EXPECT_GT(size, 0) << case_.name << " " << family << " part " << part;
        EXPECT_NEAR(along, slope, 3e-3 * size + 2e-3) << case_.name << " " << family << " " << p << " part " << part;
      }
    }
}

TrainCase train_case(const OwnCase& own, const char* family) {
  TrainCase run{.json = tiny_json(family)};
  run.adapter = [config = own.config](const Model& model, Stream& stream) {
    return with_extras(own_adapter(model.config(), config, 1), model.weights(), stream);
  };
  return run;
}

TEST_P(OwnTensors, BitsDoNotDependOnMicroBatchesThreadsIsaChunksOrRecomputing) {
  for (const char* family : {"llama", "qwen3"})
    for (const float dropout : {0.0f, 0.25f}) {
      TrainCase run = train_case(case_, family);
      run.dropout = dropout;
      const TrainResult whole = train(run);
      EXPECT_NE(whole.gradients[0], whole.gradients[1]);
      const auto same = [&](const std::function<void(TrainCase&)>& change, const char* what) {
        TrainCase other = run;
        change(other);
        EXPECT_EQ(whole, train(other)) << case_.name << " " << family << " " << what;
      };
      same([](TrainCase& r) { r.micro_batches = {1, 1, 1, 1, 1, 1}; }, "one by one");
      same([](TrainCase& r) { r.micro_batches = {2, 3, 1}, r.logits_bytes = 7 * 53 * 4; }, "chunks of 7");
      same([](TrainCase& r) { r.recompute = Recompute::none; }, "none");
      same([](TrainCase& r) { r.recompute = Recompute::full; }, "full");
      same([](TrainCase& r) { r.stream = {.threads = 1}; }, "one thread");
      same([](TrainCase& r) { r.stream = {.threads = 2, .isa = CpuIsa::avx2}; }, "avx2");
    }
}

// Values of a named tensor of the adapter, as its file has them.
struct NamedValues {
  explicit NamedValues(const lora::AdapterVersion& adapter)
      : exported(lora::export_tensors(*adapter.layout, adapter.weights->f32())) {}
  const ConstTensor* find(const std::string& name) const {
    for (const NamedTensor& tensor : exported.tensors)
      if (tensor.name == "base_model.model." + name) return &tensor.tensor;
    return nullptr;
  }
  lora::ExportedTensors exported;
};

// W [out, in] of a module as merging gives it: what file names say, in double.
void merge(ConstTensor weight, const lora::Module& module, const lora::AdapterVersion& adapter,
           const NamedValues& values) {
  const bool table = module.kind == lora::ModuleKind::embedding;
  const auto at = [&](int64_t row, int64_t col) -> float& {
    return const_cast<float&>(table ? weight.row(col)[row] : weight.row(row)[col]);
  };
  if (const ConstTensor* own = values.find(module.name + ".weight"))
    for (int64_t i = 0; i < own->elements(); ++i) const_cast<float*>(weight.f32())[i] = own->f32()[i];
  const ConstTensor* const a = values.find(module.name + (table ? ".lora_embedding_A" : ".lora_A.weight"));
  const ConstTensor* const b = values.find(module.name + (table ? ".lora_embedding_B" : ".lora_B.weight"));
  const ConstTensor* const m = values.find(module.name + ".lora_magnitude_vector");
  if (!a) return;
  const double scale = adapter.layout->pairs.front().scale;
  for (int64_t n = 0; n < module.out; ++n) {
    double norm = 0;
    for (int64_t k = 0; k < module.in; ++k) {
      double sum = at(n, k);
      for (int64_t r = 0; r < a->shape[0]; ++r) sum += scale * double(b->row(n)[r]) * a->row(r)[k];
      at(n, k) = static_cast<float>(sum);
      norm += sum * sum;
    }
    for (int64_t k = 0; m && k < module.in; ++k)
      at(n, k) = static_cast<float>(at(n, k) * (m->f32()[n] / std::sqrt(norm)));
  }
}

TEST_P(OwnTensors, OutputsAreThoseOfTheMergedModel) {
  for (const char* family : {"llama", "qwen3", "qwen2"}) {
    Json json = tiny_json(family);
    json["tie_word_embeddings"] = false;  // whose two ends change apart
    const ModelSpec untied = parse_config(json, "config.json");
    const bool tied = tiny_config(family).tied_head;
    ModelFile file(untied);
    if (tied) {
      const ConstTensor from = file.find("model.embed_tokens.weight").tensor, to = file.find("lm_head.weight").tensor;
      std::memcpy(const_cast<float*>(to.f32()), from.f32(), static_cast<size_t>(from.elements()) * sizeof(float));
    }
    NamedTensors of_tied;
    for (const NamedTensor& tensor : file.tensors)
      if (!tied || tensor.name != "lm_head.weight") of_tied.push_back(tensor);
    const Model model(tiny_config(family), Weights::load(tiny_config(family), of_tied, stream_));
    const lora::AdapterVersion adapter =
        with_extras(own_adapter(model.config(), case_.config, 1), model.weights(), stream_);
    const std::vector<float> live = logprobs_of(model, &adapter, stream_), base = logprobs_of(model, nullptr, stream_);
    const NamedValues values(adapter);
    for (const lora::Module& module : linear_modules(untied)) {
      merge(file.find(module.name + ".weight").tensor, module, adapter, values);
      const ConstTensor* bias = values.find(module.name + ".bias");
      if (!bias) bias = values.find(module.name + ".base_layer.bias");
      if (bias)
        std::copy_n(bias->f32(), bias->elements(), const_cast<float*>(file.find(module.name + ".bias").tensor.f32()));
    }
    const Model merged(untied, Weights::load(untied, file.tensors, stream_));
    const std::vector<float> wanted = logprobs_of(merged, nullptr, stream_);
    double moved = 0;
    for (size_t i = 0; i < live.size(); ++i) {
      ASSERT_NEAR(live[i], wanted[i], 2e-3) << case_.name << " " << family << " row " << i;
      moved = std::max(moved, std::fabs(double(live[i]) - base[i]));
    }
    const bool has_biases = std::string(case_.name) != "all biases" || family != std::string("qwen3");
    EXPECT_GT(moved, has_biases ? 0.05 : -1) << case_.name << " " << family;
  }
}

TEST_P(OwnTensors, RowsOfOthersAreWhatTheyAreAlone) {
  const Model model = tiny_model("llama", stream_);
  const lora::AdapterVersion own = with_extras(own_adapter(model.config(), case_.config, 1), model.weights(), stream_);
  const lora::AdapterVersion plain = tiny_adapter(model.config(), lora::LoraType::fused, 1);
  const std::vector<const lora::AdapterVersion*> which = {&plain, &own, nullptr, &own, &own, &plain};
  const Packed packed(0, kSequences);
  TrainPass pass(model, stream_);
  const HeadOutputs mixed = pass.forward(packed.batch(), which, {});
  const std::vector<float> got(mixed.logprob_T.f32(), mixed.logprob_T.f32() + packed.size());
  for (const lora::AdapterVersion* adapter : {&plain, &own, static_cast<const lora::AdapterVersion*>(nullptr)}) {
    const std::vector<float> alone = logprobs_of(model, adapter, stream_);
    for (size_t s = 0; s < which.size(); ++s)
      for (int64_t t = packed.begins[s]; which[s] == adapter && t < packed.begins[s + 1]; ++t)
        ASSERT_EQ(got[static_cast<size_t>(t)], alone[static_cast<size_t>(t)]) << case_.name << " sequence " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, OwnTensors, ::testing::Range<size_t>(0, own_cases().size()));

TEST(AdapterExtras, AreMadeBeforeAPass) {
  Stream stream({.threads = 1});
  const Model model = tiny_model("llama", stream);
  const lora::AdapterVersion bare = own_adapter(model.config(), own_cases()[3].config, 1);
  EXPECT_THROW(logprobs_of(model, &bare, stream), ConfigError);
  int64_t bytes = 0;
  const lora::AdapterVersion ready = with_extras(bare, model.weights(), stream);
  for (const Buffer& memory : ready.extras->memory) bytes += static_cast<int64_t>(memory.bytes());
  EXPECT_EQ(bytes, extras_bytes(*bare.layout, Device::cpu));
  const lora::AdapterVersion saved = own_adapter(model.config(), own_cases()[8].config, 1);
  EXPECT_EQ(extras_bytes(*saved.layout, Device::cpu), 64 * 32 * 4);  // 53 tokens in panels of 32
}

}  // namespace
}  // namespace lockstep::model
