// Adapters of the embedding and the head, with magnitudes, biases, whole weights, first values that are subtracted, on
// a GPU: what must not change a bit, and how close they are to the CPU.
#include <gtest/gtest.h>

#include "model/own_tensors.h"
#include "support/tolerance.h"

namespace lockstep::model {
namespace {

class OwnTensorsCuda : public testing::OnGpu<::testing::TestWithParam<size_t>> {
 protected:
  const OwnCase case_ = own_cases()[GetParam()];

  TrainCase run(const char* family) const {
    TrainCase run{.json = gpu_json(family), .lengths = {300, 5, 70, 16, 2, 257}, .dtype = DType::bf16};
    run.adapter = [config = case_.config](const Model& model, Stream& stream) {
      const lora::AdapterVersion values = testing::rounded(own_adapter(model.config(), config, 1));
      return with_extras(testing::placed(values, stream), model.weights(), stream);
    };
    return run;
  }
};

TEST_P(OwnTensorsCuda, MicroBatchesRecomputingAndChunksChangeNoBit) {
  for (const char* family : {"llama", "qwen3"})
    for (const float dropout : {0.0f, 0.25f}) {
      TrainCase other = run(family);
      other.dropout = dropout;
      const TrainResult whole = train(other, gpu());
      EXPECT_NE(whole.gradients[0], whole.gradients[1]);
      for (const auto& gradient : whole.gradients)
        for (const float value : gradient) ASSERT_TRUE(std::isfinite(value));
      other.micro_batches = {1, 1, 1, 1, 1, 1};
      EXPECT_EQ(whole, train(other, gpu())) << case_.name << " " << family << " one by one";
      other.micro_batches = {2, 3, 1};
      other.recompute = Recompute::none;
      EXPECT_EQ(whole, train(other, gpu())) << case_.name << " " << family << " none";
      other.recompute = Recompute::full;
      other.logits_bytes = 260 * 56 * 4;
      EXPECT_EQ(whole, train(other, gpu())) << case_.name << " " << family << " full, chunks of 260";
    }
}

TEST_P(OwnTensorsCuda, AgreesWithTheCpu) {
  for (const char* family : {"llama", "qwen3"})
    for (const float dropout : {0.0f, 0.25f}) {
      TrainCase both = run(family);
      both.dropout = dropout;
      const TrainResult got = train(both, gpu()), wanted = train(both, cpu());
      const std::string what = std::string(case_.name) + " " + family;
      EXPECT_LE(testing::difference(got.logprob, wanted.logprob).root_mean_square, testing::kRounded.logprob) << what;
      for (size_t lane = 0; lane < 2; ++lane)
        EXPECT_LE(testing::difference(got.gradients[lane], wanted.gradients[lane]).of_norm, testing::kRounded.gradient)
            << what << ", lane " << lane;
    }
}

TEST_P(OwnTensorsCuda, ScoreIsForward) {
  const Model model = gpu_model("qwen3", gpu());
  const lora::AdapterVersion adapter = run("qwen3").adapter(model, gpu());
  const Packed packed(0, kSequences, run("qwen3").lengths);
  TrainPass pass(model, gpu());
  const HeadOutputs forward = pass.forward(packed.batch(), adapter, {});
  const std::vector<float> kept(forward.logprob_T.f32(), forward.logprob_T.f32() + packed.size());
  const HeadOutputs score = pass.score(packed.batch(), &adapter, {});
  EXPECT_EQ(kept, std::vector<float>(score.logprob_T.f32(), score.logprob_T.f32() + packed.size()));
}

INSTANTIATE_TEST_SUITE_P(Cases, OwnTensorsCuda, ::testing::Range<size_t>(0, own_cases().size()));

}  // namespace
}  // namespace lockstep::model
