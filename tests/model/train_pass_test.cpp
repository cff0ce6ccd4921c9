#include "model/train_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "core/error.h"
#include "core/hash.h"
#include "model/train_case.h"

namespace lockstep::model {
namespace {

TEST(TrainPass, PackedIsUnpackedAndMicroBatchesAreOneBatch) {
  for (const std::string& family : family_names())
    for (const float dropout : {0.0f, 0.25f}) {
      TrainCase run{.json = tiny_json(family), .dropout = dropout, .candidates = dropout > 0};
      const TrainResult whole = train(run);
      EXPECT_NE(whole.gradients[0], whole.gradients[1]);
      for (const std::vector<int>& split : {std::vector<int>{1, 1, 1, 1, 1, 1}, {2, 3, 1}, {4, 2}}) {
        run.micro_batches = split;
        EXPECT_EQ(whole, train(run)) << family << " " << split.size();
      }
    }
}

TEST(TrainPass, RecomputeGivesTheSameBits) {
  for (const std::string& family : family_names())
    for (const float dropout : {0.0f, 0.1f}) {
      TrainCase run{
          .json = tiny_json(family), .type = lora::LoraType::canonical, .micro_batches = {3, 3}, .dropout = dropout};
      const TrainResult kept = train(run);
      for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::full}) {
        run.recompute = recompute;
        EXPECT_EQ(kept, train(run)) << family << " " << recompute_name(recompute) << " " << dropout;
      }
    }
}

TEST(TrainPass, BitsDoNotDependOnThreadsOrIsa) {
  for (const std::string& family : family_names()) {
    TrainCase run{
        .json = tiny_json(family), .type = lora::LoraType::canonical, .stream = {.threads = 1}, .candidates = true};
    const TrainResult one = train(run);
    run.stream = {.threads = 2};
    EXPECT_EQ(one, train(run)) << family;
    run.stream = {.threads = 2, .isa = CpuIsa::avx2};
    EXPECT_EQ(one, train(run)) << family;
  }
}

TEST(TrainPass, ChunkedHeadGivesTheSameBits) {
  for (const bool candidates : {false, true}) {
    TrainCase run{.json = tiny_json("qwen2"), .candidates = candidates};
    const TrainResult whole = train(run);
    for (const int64_t rows : {1, 7, 50}) {
      run.logits_bytes = rows * 53 * 4;
      EXPECT_EQ(whole, train(run)) << rows;
    }
  }
}

TEST(TrainPass, DropoutChangesWhatItShould) {
  const TrainResult without = train({}), with = train({.dropout = 0.25f});
  EXPECT_NE(without.logprob, with.logprob);
  EXPECT_NE(without.gradients, with.gradients);
}

// Whatever is not trained, the gradients that remain are the same bits: nothing is computed differently below the
// lowest adapter.
TEST(TrainPass, LowestAdapterMayBeAtAnySite) {
  for (const char* target : {"layers.1.mlp.down_proj", "layers.1.mlp.gate_proj", "layers.1.self_attn.o_proj",
                             "layers.1.self_attn.v_proj", "layers.2.mlp.down_proj"})
    for (const char* family : {"llama", "qwen3"}) {
      // An adapter with B = 0 below and the same values above trains to the same gradients above.
      Stream stream({.threads = 2});
      const Model model = tiny_model(family, stream);
      const lora::AdapterVersion high = tiny_adapter(model.config(), lora::LoraType::canonical, 1, {target});
      lora::AdapterVersion all = tiny_adapter(model.config(), lora::LoraType::canonical, 2);
      auto weights = std::make_shared<Buffer>(all.weights->bytes());
      const auto& pair = high.layout->pairs.front();
      const lora::Pair* same = nullptr;
      for (const lora::Pair& p : all.layout->pairs)
        if (p.modules.front().name == pair.modules.front().name) same = &p;
      ASSERT_NE(same, nullptr);
      std::memcpy(weights->f32() + same->a_offset, high.weights->f32() + pair.a_offset,
                  static_cast<size_t>(pair.in * pair.rank) * sizeof(float));
      std::memcpy(weights->f32() + same->b_offset, high.weights->f32() + pair.b_offset,
                  static_cast<size_t>(pair.out * pair.rank) * sizeof(float));
      all.weights = weights;

      const Packed packed(0, 3);
      const auto gradient = [&](const lora::AdapterVersion& adapter, Recompute recompute) {
        std::vector<float> flat(static_cast<size_t>(adapter.layout->num_floats));
        const lora::GradientRows lane{0, packed.size(), flat.data()};
        TrainPass pass(model, stream);
        pass.forward(packed.batch(), adapter, {.inv_temperature = 1, .recompute = recompute, .entropy = false});
        pass.backward(Packed::view(packed.d_logprob), {}, {&lane, 1});
        return flat;
      };
      const std::vector<float> one = gradient(high, Recompute::selective),
                               reference = gradient(all, Recompute::selective);
      EXPECT_EQ(one, gradient(high, Recompute::full)) << target;
      EXPECT_EQ(std::memcmp(one.data() + pair.a_offset, reference.data() + same->a_offset,
                            static_cast<size_t>(pair.in * pair.rank) * sizeof(float)),
                0)
          << family << " " << target;
      EXPECT_EQ(std::memcmp(one.data() + pair.b_offset, reference.data() + same->b_offset,
                            static_cast<size_t>(pair.out * pair.rank) * sizeof(float)),
                0)
          << family << " " << target;
      EXPECT_NE(one, std::vector<float>(one.size()));
    }
}

// Log-probs of the trainer's forward, of its score and of the engine's way are one computation.
TEST(TrainPass, ScoreIsForward) {
  Stream stream({.threads = 2});
  const Model model = tiny_model("mistral", stream);
  const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::fused, 1);
  const Packed packed(0, kSequences);
  TrainPass pass(model, stream);
  const TrainOptions options{.inv_temperature = 1.25f, .recompute = Recompute::selective, .entropy = true};
  const HeadOutputs forward = pass.forward(packed.batch(), adapter, options);
  const std::vector<float> kept(forward.logprob_T.f32(), forward.logprob_T.f32() + packed.size());
  const HeadOutputs score = pass.score(packed.batch(), &adapter, options);
  EXPECT_EQ(kept, std::vector<float>(score.logprob_T.f32(), score.logprob_T.f32() + packed.size()));
  EXPECT_EQ(std::memcmp(forward.entropy_T.data, score.entropy_T.data, kept.size() * sizeof(float)), 0);

  // The candidates' log-probs, too; a candidate that is the target has its log-prob to within the last bits.
  const HeadOutputs with = pass.forward(packed.batch(true), adapter, options);
  const std::vector<float> others(with.candidate_logprob_TK.f32(),
                                  with.candidate_logprob_TK.f32() + packed.size() * kCandidates);
  TrainOptions asked = options;
  asked.top = 5;
  const HeadOutputs scored = pass.score(packed.batch(true), &adapter, asked);
  EXPECT_EQ(std::memcmp(scored.candidate_logprob_TK.data, others.data(), others.size() * sizeof(float)), 0);
  for (int64_t t = 0; t < packed.size(); ++t) {
    const auto at = static_cast<size_t>(t);
    const auto first = static_cast<size_t>(t * kCandidates);
    if (packed.targets[at] < 0) {
      EXPECT_EQ(others[first], 0.0f);
      EXPECT_EQ(scored.top_TK[5 * at], -1);
      continue;
    }
    if (packed.candidates[first] == packed.targets[at]) {
      EXPECT_NEAR(others[first], kept[at], 1e-6);
    }
    if (packed.candidates[first + 2] < 0) {
      EXPECT_EQ(others[first + 2], 0.0f);
    }
    for (size_t i = 5 * at; i < 5 * at + 5; ++i) {
      if (i > 5 * at) {
        EXPECT_LE(scored.top_logprob_TK[i], scored.top_logprob_TK[i - 1]);
      }
      for (size_t c = first; c < first + kCandidates; ++c)
        if (packed.candidates[c] == scored.top_TK[i]) {
          EXPECT_EQ(others[c], scored.top_logprob_TK[i]);
        }
    }
  }

  // A score of the reference between forward and backward disturbs neither.
  const auto gradient = [&](bool reference) {
    std::vector<float> flat(static_cast<size_t>(adapter.layout->num_floats));
    const lora::GradientRows lane{0, packed.size(), flat.data()};
    pass.forward(packed.batch(), adapter, options);
    if (reference) pass.score(packed.batch(), nullptr, options);
    pass.backward(Packed::view(packed.d_logprob), Packed::view(packed.d_entropy), {&lane, 1});
    return flat;
  };
  EXPECT_EQ(gradient(false), gradient(true));
  const HeadOutputs base = pass.score(packed.batch(), nullptr, options);
  EXPECT_NE(kept, std::vector<float>(base.logprob_T.f32(), base.logprob_T.f32() + packed.size()));
}

double objective(const Model& model, const lora::AdapterVersion& adapter, const Packed& packed,
                 const kernels::LoraDropout& dropout, Stream& stream) {
  TrainPass pass(model, stream);
  const HeadOutputs heads =
      pass.forward(packed.batch(true), adapter,
                   {.inv_temperature = 1.25f, .recompute = Recompute::selective, .entropy = true}, dropout);
  double sum = 0;
  for (int64_t t = 0; t < packed.size(); ++t) {
    if (packed.targets[static_cast<size_t>(t)] < 0) continue;
    sum += double(packed.d_logprob[static_cast<size_t>(t)]) * heads.logprob_T.f32()[t] +
           double(packed.d_entropy[static_cast<size_t>(t)]) * heads.entropy_T.f32()[t];
    for (int64_t i = t * kCandidates; i < (t + 1) * kCandidates; ++i)
      if (packed.candidates[static_cast<size_t>(i)] >= 0)
        sum += double(packed.d_candidates[static_cast<size_t>(i)]) * heads.candidate_logprob_TK.f32()[i];
  }
  return sum;
}

// Along random directions through the whole adapter, so that every parameter takes part in every check.
TEST(TrainPass, GradientAgreesWithDifferences) {
  Stream stream({.threads = 2});
  for (const std::string& family : family_names())
    for (const float p : {0.0f, 0.3f}) {
      const Model model = tiny_model(family, stream);
      const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::canonical, 1);
      const Packed packed(0, 3);
      kernels::LoraDropout dropout;
      if (p > 0) dropout = {.p = p, .key = 4, .step = 2, .sample = packed.sample, .position = packed.position};
      std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
      const lora::GradientRows lane{0, packed.size(), gradient.data()};
      TrainPass pass(model, stream);
      pass.forward(packed.batch(true), adapter,
                   {.inv_temperature = 1.25f, .recompute = Recompute::full, .entropy = true}, dropout);
      pass.backward(packed.gradients(true), {&lane, 1});
      for (uint32_t direction = 0; direction < 4; ++direction) {
        constexpr float kStep = 2e-3f;
        double along = 0, size = 0;
        const auto moved = [&](float step) {
          lora::AdapterVersion version = adapter;
          auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
          along = size = 0;
          for (int64_t i = 0; i < adapter.layout->num_floats; ++i) {
            const float u = drawn(500 + direction, static_cast<uint32_t>(i));
            weights->f32()[i] = adapter.weights->f32()[i] + step * u;
            along += double(u) * gradient[static_cast<size_t>(i)];
            size += std::fabs(double(u) * gradient[static_cast<size_t>(i)]);
          }
          version.weights = weights;
          return objective(model, version, packed, dropout, stream);
        };
        const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        EXPECT_NEAR(along, slope, 2e-3 * size) << family << " dropout " << p << " direction " << direction;
      }
    }
}

TEST(TrainPass, BaseStaysWhatItWas) {
  Stream stream({.threads = 2});
  const Model model = tiny_model("llama", stream);
  const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::fused, 1);
  const auto hash = [&] {
    Sha256 sha;
    model.weights().visit(
        model.config(),
        [&](const NamedTensor& tensor) {
          sha.update({static_cast<const std::byte*>(tensor.tensor.data),
                      static_cast<size_t>(tensor.tensor.elements() * dtype_bytes(tensor.tensor.dtype))});
        },
        stream);
    return sha.hex();
  };
  const std::string before = hash();
  const Packed packed(0, kSequences);
  std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
  const lora::GradientRows lane{0, packed.size(), gradient.data()};
  TrainPass pass(model, stream);
  pass.forward(packed.batch(), adapter, {});
  pass.backward(Packed::view(packed.d_logprob), {}, {&lane, 1});
  EXPECT_EQ(before, hash());
}

TEST(TrainPass, NoTargetsIsNoGradient) {
  Stream stream({.threads = 2});
  const Model model = tiny_model("qwen3", stream);
  const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::fused, 1);
  Packed packed(0, 2);
  packed.targets.assign(packed.targets.size(), -1);
  std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
  const lora::GradientRows lane{0, packed.size(), gradient.data()};
  TrainPass pass(model, stream);
  const HeadOutputs heads = pass.forward(packed.batch(), adapter, {});
  EXPECT_EQ(heads.logprob_T.f32()[5], 0.0f);
  pass.backward(Packed::view(packed.d_logprob), {}, {&lane, 1});
  for (const float value : gradient) ASSERT_EQ(value, 0.0f);
}

TEST(TrainPass, MemoryIsWhatTheEstimateSays) {
  Stream stream({.threads = 1});
  Json json = tiny_json("qwen3");
  json["num_hidden_layers"] = 8;
  const ModelSpec config = parse_config(json, "config.json");
  const Model model(config, tiny_weights(config, stream));
  const lora::AdapterVersion adapter = tiny_adapter(config, lora::LoraType::fused, 1);
  std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
  constexpr int64_t kMany = 128;  // candidates of a row
  const auto step = [&](TrainPass& pass, int64_t sequences, Recompute recompute) {
    const int64_t count = sequences * 128;
    const std::vector<int32_t> tokens = tiny_tokens(count, 1), targets = tiny_tokens(count, 2);
    const std::vector<int32_t> candidates = tiny_tokens(count * kMany, 3);
    std::vector<int64_t> begins;
    for (int64_t i = 0; i <= sequences; ++i) begins.push_back(i * 128);
    const std::vector<float> d(static_cast<size_t>(count * kMany), 0.1f);
    const ConstTensor d_rows(d.data(), DType::f32, {count}), d_candidates(d.data(), DType::f32, {count, kMany});
    const lora::GradientRows lane{0, count, gradient.data()};
    pass.forward({.tokens = tokens, .sequence_begin = begins, .targets = targets, .candidates = candidates}, adapter,
                 {.inv_temperature = 1, .recompute = recompute, .entropy = true});
    pass.backward({.logprob_T = d_rows, .entropy_T = d_rows, .candidate_logprob_TK = d_candidates}, {&lane, 1});
  };
  for (const Recompute recompute : {Recompute::full, Recompute::selective, Recompute::norms, Recompute::none}) {
    TrainPass pass(model, stream);
    const int64_t before = live_bytes();
    for (const int64_t sequences : {4, 8, 6, 12, 2}) step(pass, sequences, recompute);
    // What is held is what the largest batch needs, not the sum of all sizes. An arena's smallest piece is 4 MiB.
    const int64_t estimate =
        TrainPass::activation_bytes(config, *adapter.layout, 12 * 128, recompute, Device::cpu, kMany);
    EXPECT_LE(live_bytes() - before, estimate + (int64_t{4} << 20)) << recompute_name(recompute);
    EXPECT_GE(live_bytes() - before, estimate / 2) << recompute_name(recompute);
  }
  const auto bytes_of = [&](Recompute recompute) {
    return TrainPass::activation_bytes(config, *adapter.layout, 4096, recompute, Device::cpu);
  };
  EXPECT_LT(bytes_of(Recompute::full), bytes_of(Recompute::selective) / 2);
  EXPECT_LT(bytes_of(Recompute::selective), bytes_of(Recompute::norms));
  EXPECT_LT(bytes_of(Recompute::norms), bytes_of(Recompute::none));
}

// Nothing is kept for a backward below the lowest adapter, so there is none.
TEST(TrainPass, LayersBelowTheLowestAdapterKeepNothing) {
  Stream stream({.threads = 1});
  Json json = tiny_json("qwen3");
  json["num_hidden_layers"] = 8;
  const ModelSpec config = parse_config(json, "config.json");
  const Model model(config, tiny_weights(config, stream));
  constexpr int64_t kTokens = 48 * 128;
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 1), targets(kTokens, -1);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= kTokens; i += 128) begins.push_back(i);
  const std::vector<float> d(kTokens, 0.0f);
  const auto held = [&](const std::vector<std::string>& adapted) {
    const lora::AdapterVersion adapter = tiny_adapter(config, lora::LoraType::canonical, 1, adapted);
    std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
    const lora::GradientRows lane{0, kTokens, gradient.data()};
    TrainPass pass(model, stream);
    const int64_t before = live_bytes();
    pass.forward({.tokens = tokens, .sequence_begin = begins, .targets = targets}, adapter, {});
    pass.backward(Packed::view(d), {}, {&lane, 1});
    return live_bytes() - before;
  };
  held({"all-linear"});  // the workers' scratch is taken here, once
  const int64_t all = held({"all-linear"}), middle = held({"layers.4.mlp.down_proj"}),
                top = held({"layers.7.mlp.down_proj"});
  // A layer is the same each time: four of them lie between all and the middle, three between the middle and the top.
  const double layer = static_cast<double>(all - middle) / 4;
  EXPECT_GT(layer, kTokens * 4 * (32 + 40 + 40));  // its input, gate and up at the least
  EXPECT_NEAR(static_cast<double>(middle - top) / layer, 3, 0.1);
  EXPECT_LT(top, all / 2);
}

TEST(TrainPass, BadCallsAreTypedErrors) {
  Stream stream({.threads = 1});
  const Model model = tiny_model("llama", stream);
  const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::fused, 1);
  const Packed packed(0, 2);
  TrainPass pass(model, stream);
  const ConstTensor d = Packed::view(packed.d_logprob), d_entropy = Packed::view(packed.d_entropy);
  std::vector<float> gradient(static_cast<size_t>(adapter.layout->num_floats));
  const lora::GradientRows lane{0, packed.size(), gradient.data()};
  EXPECT_THROW(pass.backward(d, {}, {&lane, 1}), ShapeError);
  pass.forward(packed.batch(), adapter, {});
  EXPECT_THROW(pass.backward(d, d_entropy, {&lane, 1}), ShapeError);  // entropy was not computed
  const lora::GradientRows beyond{1, packed.size(), gradient.data()};
  EXPECT_THROW(pass.backward(d, {}, {&beyond, 1}), ShapeError);
  pass.backward(d, {}, {&lane, 1});
  EXPECT_THROW(pass.backward(d, {}, {&lane, 1}), ShapeError);  // once

  Packed bad = packed;
  bad.targets[9] = 53;
  EXPECT_THROW(pass.forward(bad.batch(), adapter, {}), DataError);
  bad = packed;
  bad.tokens[0] = 99;
  EXPECT_THROW(pass.forward(bad.batch(), adapter, {}), DataError);
  EXPECT_THROW(pass.backward(d, {}, {&lane, 1}), ShapeError);  // the failed forward left nothing
  bad = packed;
  bad.begins.back() -= 1;
  EXPECT_THROW(pass.forward(bad.batch(), adapter, {}), ShapeError);
  bad = packed;
  bad.targets.pop_back();
  EXPECT_THROW(pass.forward(bad.batch(), adapter, {}), ShapeError);
}

}  // namespace
}  // namespace lockstep::model
