// Sequences of a training batch that compute their first rows once, beside the same ones that each compute all.
#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "model/train_case.h"
#include "support/tolerance.h"

namespace lockstep::model {
namespace {

// Two sequences that begin alike in kLong rows and two in kShort, in two lanes, between others.
constexpr int64_t kLong = 48, kShort = 16;
const std::vector<int64_t> kRows = {9, 70, 61, 49, 30, 17, 90, 5};
const std::vector<int64_t> kShared = {0, 0, kLong, kLong, 0, kShort, kShort, 0};
const std::vector<size_t> kLeader = {0, 1, 1, 1, 4, 4, 4, 7};

struct Alike {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> begins = {0};
  std::vector<float> d_logprob, d_entropy;

  Alike() {
    std::vector<std::vector<int32_t>> all;
    for (size_t s = 0; s < kRows.size(); ++s) {
      all.push_back(tiny_tokens(kRows[s] + 1, static_cast<uint32_t>(s)));
      std::copy_n(all[kLeader[s]].begin(), kShared[s], all[s].begin());
      const int64_t prompt = s == kLeader[s] ? kRows[s] / 4 : kShared[s];  // the first one learns what others only read
      for (int64_t t = 0; t < kRows[s]; ++t) {
        tokens.push_back(all[s][static_cast<size_t>(t)]);
        targets.push_back(t < prompt ? -1 : all[s][static_cast<size_t>(t) + 1]);
        d_logprob.push_back(drawn(70 + static_cast<uint32_t>(s), static_cast<uint32_t>(t)));
        d_entropy.push_back(drawn(80 + static_cast<uint32_t>(s), static_cast<uint32_t>(t)));
      }
      begins.push_back(static_cast<int64_t>(tokens.size()));
    }
  }
  TrainBatch batch(bool shares) const {
    return {.tokens = tokens,
            .sequence_begin = begins,
            .targets = targets,
            .shared = shares ? std::span<const int64_t>(kShared) : std::span<const int64_t>()};
  }
};

TrainResult train_alike(const Json& json, bool shares, Recompute recompute, Stream& stream, DType dtype,
                        int64_t logits_bytes = Model::kLogitsBytes) {
  const ModelSpec config = parse_config(json, "config.json");
  const Model model(config, tiny_weights(config, stream, dtype), logits_bytes);
  const lora::AdapterVersion adapter =
      testing::placed(testing::rounded(tiny_adapter(config, lora::LoraType::canonical, 1)), stream);
  const Alike alike;
  TrainPass pass(model, stream);
  const HeadOutputs heads =
      pass.forward(alike.batch(shares), adapter, {.inv_temperature = 1.25f, .recompute = recompute, .entropy = true});
  TrainResult result;
  result.logprob.assign(heads.logprob_T.f32(), heads.logprob_T.f32() + alike.tokens.size());
  result.entropy.assign(heads.entropy_T.f32(), heads.entropy_T.f32() + alike.tokens.size());
  Buffer gradients[2];
  for (Buffer& gradient : gradients) gradient = zero_gradient(*adapter.layout, stream);
  std::vector<lora::GradientRows> lanes;
  for (size_t s = 0; s < kRows.size(); ++s)
    lanes.push_back({alike.begins[s], kRows[s], gradients[s < 4 ? 0 : 1].f32()});
  pass.backward({.logprob_T = Packed::view(alike.d_logprob), .entropy_T = Packed::view(alike.d_entropy)}, lanes);
  stream.synchronize();
  for (const Buffer& gradient : gradients)
    result.gradients.push_back(gradient_values(gradient, *adapter.layout, stream));
  return result;
}

void expect_alike(const TrainResult& got, const TrainResult& wanted, double tolerance, const std::string& what) {
  EXPECT_EQ(got.logprob, wanted.logprob) << what;
  EXPECT_EQ(got.entropy, wanted.entropy) << what;
  for (size_t lane = 0; lane < 2; ++lane) {
    EXPECT_NE(got.gradients[lane], wanted.gradients[lane]) << what << ": nothing was shared";
    EXPECT_LE(testing::difference(got.gradients[lane], wanted.gradients[lane]).of_norm, tolerance) << what;
  }
}

TEST(SharedRows, GiveTheLogprobsAndTheGradientsOfWholeSequences) {
  Stream stream({.threads = 2}), one({.threads = 1});
  for (const std::string& family : family_names()) {
    const Json json = tiny_json(family);
    const TrainResult whole = train_alike(json, false, Recompute::selective, stream, DType::f32);
    const TrainResult shared = train_alike(json, true, Recompute::selective, stream, DType::f32);
    expect_alike(shared, whole, 1e-5, family);
    EXPECT_EQ(shared, train_alike(json, true, Recompute::selective, one, DType::f32)) << family;
    EXPECT_EQ(shared, train_alike(json, true, Recompute::selective, one, DType::f32, 7 * 53 * 4)) << family;
    for (const Recompute recompute : {Recompute::none, Recompute::full})
      EXPECT_EQ(shared, train_alike(json, true, recompute, stream, DType::f32)) << family << recompute_name(recompute);
  }
}

TEST(SharedRows, WhatCannotBeSharedIsRefused) {
  Stream stream({.threads = 1});
  const Model model = tiny_model("llama", stream);
  const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::canonical, 1);
  TrainPass pass(model, stream);
  const Alike alike;
  const auto refused = [&](const TrainBatch& batch) { EXPECT_THROW(pass.forward(batch, adapter, {}), ShapeError); };
  for (const auto& [sequence, rows] :
       {std::pair<size_t, int64_t>{0, kShort}, {2, 20}, {3, kShort}, {3, -16}, {7, 16}}) {
    std::vector<int64_t> shared = kShared;
    shared[sequence] = rows;
    TrainBatch batch = alike.batch(true);
    batch.shared = shared;
    refused(batch);
  }
  Alike other = alike;
  other.tokens[static_cast<size_t>(alike.begins[2]) + 3] =
      (other.tokens[static_cast<size_t>(alike.begins[2]) + 3] + 1) % 53;
  refused(other.batch(true));
  other = alike;
  other.targets[static_cast<size_t>(alike.begins[2]) + 3] = 1;
  refused(other.batch(true));
  EXPECT_THROW(pass.score(alike.batch(true), &adapter, {}), ShapeError);
  std::vector<const lora::AdapterVersion*> adapters(kRows.size(), &adapter);
  const lora::AdapterVersion second = tiny_adapter(model.config(), lora::LoraType::canonical, 2);
  adapters[2] = &second;
  EXPECT_THROW(pass.forward(alike.batch(true), adapters, {}), ShapeError);
}

class SharedRowsCuda : public testing::OnGpu<::testing::TestWithParam<std::string>> {};

TEST_P(SharedRowsCuda, GiveTheLogprobsAndTheGradientsOfWholeSequences) {
  const Json json = gpu_json(GetParam());
  const TrainResult whole = train_alike(json, false, Recompute::selective, gpu(), DType::bf16);
  const TrainResult shared = train_alike(json, true, Recompute::selective, gpu(), DType::bf16);
  expect_alike(shared, whole, testing::kRounded.whole_gradient, GetParam());
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(shared, train_alike(json, true, Recompute::selective, gpu(), DType::bf16)) << "again";
  for (const Recompute recompute : {Recompute::none, Recompute::full})
    EXPECT_EQ(shared, train_alike(json, true, recompute, gpu(), DType::bf16)) << recompute_name(recompute);
  const TrainResult on_cpu = train_alike(json, true, Recompute::selective, cpu(), DType::bf16);
  EXPECT_LE(testing::difference(shared.logprob, on_cpu.logprob).root_mean_square, testing::kRounded.logprob);
  for (size_t lane = 0; lane < 2; ++lane)
    EXPECT_LE(testing::difference(shared.gradients[lane], on_cpu.gradients[lane]).of_norm,
              testing::kRounded.whole_gradient);
}

INSTANTIATE_TEST_SUITE_P(Families, SharedRowsCuda, ::testing::ValuesIn(gpu_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::model
