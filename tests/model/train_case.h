// Six sequences in two lanes (0-3, 4-5), trained in micro-batches, on either device.
#pragma once

#include <functional>
#include <vector>

#include "model/fixture.h"

namespace lockstep::model {

inline const std::vector<int64_t> kLengths = {19, 5, 33, 16, 2, 8};
inline constexpr int kSequences = 6;
inline constexpr int64_t kCandidates = 3;  // tokens of a row beside its target

struct TrainResult {
  std::vector<float> logprob, entropy;        // by sequence, in order
  std::vector<float> candidate_logprob;       // the same, kCandidates a row
  std::vector<std::vector<float>> gradients;  // by lane
  bool operator==(const TrainResult&) const = default;
};

struct TrainCase {
  Json json = tiny_json("llama");
  lora::LoraType type = lora::LoraType::fused;
  std::vector<std::string> targets = {"all-linear"};
  std::vector<int> micro_batches = {kSequences};  // numbers of sequences
  StreamOptions stream = {.threads = 2};
  int64_t logits_bytes = Model::kLogitsBytes;
  Recompute recompute = Recompute::selective;
  float dropout = 0;
  std::vector<int64_t> lengths = kLengths;
  DType dtype = DType::f32;  // of the model file
  bool candidates = false;
  // In place of the tiny one.
  std::function<lora::AdapterVersion(const Model&, Stream&)> adapter = {};
};

struct Packed {
  std::vector<int32_t> tokens, targets, sample, position;
  std::vector<int64_t> begins = {0};
  std::vector<float> d_logprob, d_entropy;
  std::vector<int32_t> candidates;  // the target among them now and then, one twice, none at all
  std::vector<float> d_candidates;

  Packed(int first, int count, const std::vector<int64_t>& lengths = kLengths) {
    for (int s = first; s < first + count; ++s) {
      const int64_t length = lengths[static_cast<size_t>(s)];
      const std::vector<int32_t> sequence = tiny_tokens(length + 1, static_cast<uint32_t>(s));
      for (int64_t t = 0; t < length; ++t) {
        tokens.push_back(sequence[static_cast<size_t>(t)]);
        const bool none = t < length / 3;  // a prompt
        targets.push_back(none ? -1 : sequence[static_cast<size_t>(t) + 1]);
        sample.push_back(s);
        position.push_back(static_cast<int32_t>(t));
        d_logprob.push_back(drawn(70 + static_cast<uint32_t>(s), static_cast<uint32_t>(t)));
        d_entropy.push_back(drawn(80 + static_cast<uint32_t>(s), static_cast<uint32_t>(t)));
        add_candidates(s, t, sequence[static_cast<size_t>(t) + 1]);
      }
      begins.push_back(static_cast<int64_t>(tokens.size()));
    }
  }
  void add_candidates(int s, int64_t t, int32_t target) {
    const int32_t other = (target + 7) % 53, third = t % 4 == 0 ? other : t % 4 == 1 ? -1 : (target + 20) % 53;
    for (const int32_t token : {t % 2 == 0 ? target : (target + 1) % 53, other, third}) candidates.push_back(token);
    for (int64_t i = 0; i < kCandidates; ++i)
      d_candidates.push_back(drawn(90 + static_cast<uint32_t>(s), static_cast<uint32_t>(t * kCandidates + i)));
  }
  TrainBatch batch(bool with_candidates = false) const {
    return {.tokens = tokens,
            .sequence_begin = begins,
            .targets = targets,
            .candidates = with_candidates ? std::span<const int32_t>(candidates) : std::span<const int32_t>()};
  }
  HeadGradients gradients(bool with_candidates = false) const {
    HeadGradients d{.logprob_T = view(d_logprob), .entropy_T = view(d_entropy)};
    if (with_candidates) d.candidate_logprob_TK = ConstTensor(d_candidates.data(), DType::f32, {size(), kCandidates});
    return d;
  }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  static ConstTensor view(const std::vector<float>& values) {
    return ConstTensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
  }
};

// A gradient buffer of the stream's device, 0 at first.
inline Buffer zero_gradient(const lora::AdapterLayout& layout, Stream& stream) {
  return Buffer(static_cast<size_t>(layout.num_floats) * sizeof(float), Buffer::Fill::zero, stream.device());
}
inline std::vector<float> gradient_values(const Buffer& gradient, const lora::AdapterLayout& layout, Stream& stream) {
  return testing::values_of(ConstTensor(gradient.data(), DType::f32, {layout.num_floats}), stream);
}

inline TrainResult train(const TrainCase& run, Stream& stream) {
  const ModelSpec config = parse_config(run.json, "config.json");
  const Model model(config, tiny_weights(config, stream, run.dtype), run.logits_bytes);
  const lora::AdapterVersion adapter =
      run.adapter ? run.adapter(model, stream)
                  : testing::placed(testing::rounded(tiny_adapter(config, run.type, 1, run.targets)), stream);
  Buffer gradients[2];
  for (Buffer& gradient : gradients) gradient = zero_gradient(*adapter.layout, stream);
  TrainResult result;
  TrainPass pass(model, stream);
  int first = 0;
  for (const int count : run.micro_batches) {
    const Packed packed(first, count, run.lengths);
    Arena counters(stream.device());
    kernels::LoraDropout dropout;
    if (run.dropout > 0)
      dropout = {.p = run.dropout,
                 .key = 4,
                 .step = 2,
                 .sample = upload(std::span<const int32_t>(packed.sample), counters, stream),
                 .position = upload(std::span<const int32_t>(packed.position), counters, stream)};
    const HeadOutputs heads =
        pass.forward(packed.batch(run.candidates), adapter,
                     {.inv_temperature = 1.25f, .recompute = run.recompute, .entropy = true}, dropout);
    result.logprob.insert(result.logprob.end(), heads.logprob_T.f32(), heads.logprob_T.f32() + packed.size());
    result.entropy.insert(result.entropy.end(), heads.entropy_T.f32(), heads.entropy_T.f32() + packed.size());
    if (run.candidates)
      result.candidate_logprob.insert(result.candidate_logprob.end(), heads.candidate_logprob_TK.f32(),
                                      heads.candidate_logprob_TK.f32() + packed.size() * kCandidates);
    std::vector<lora::GradientRows> lanes;
    for (int i = 0; i < count; ++i) {
      const int64_t begin = packed.begins[static_cast<size_t>(i)], end = packed.begins[static_cast<size_t>(i) + 1];
      lanes.push_back({begin, end - begin, gradients[first + i < 4 ? 0 : 1].f32()});
    }
    pass.backward(packed.gradients(run.candidates), lanes);
    stream.synchronize();
    first += count;
  }
  EXPECT_EQ(first, kSequences);
  for (const Buffer& gradient : gradients)
    result.gradients.push_back(gradient_values(gradient, *adapter.layout, stream));
  return result;
}

inline TrainResult train(const TrainCase& run) {
  Stream stream(run.stream);
  return train(run, stream);
}

}  // namespace lockstep::model
