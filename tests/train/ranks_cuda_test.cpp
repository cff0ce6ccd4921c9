// Ranks that share one GPU, as threads: the bits of one rank, whatever their number.
#include "support/gpu.h"
#include "ways.h"

namespace lockstep::train {
namespace {

using namespace testing;

class RanksCuda : public lockstep::testing::OnGpu<> {
 protected:
  static Way way() { return {.stream = {.threads = 1, .device = Device::cuda}, .samples = 24}; }
};

TEST_F(RanksCuda, VirtualRanksHaveTheBitsOfOne) {
  for (const bool per_token : {false, true}) {
    Way split = way();
    split.per_token = per_token;
    split.clip_grad = 1e-3;
    const Outcome alone = train_on(1, split, full_policy_loss());
    EXPECT_GT(alone.reports[0].grad_norm, 0);
    for (const int ranks : {2, 4, 8})
      expect_same(alone, train_on(ranks, split, full_policy_loss()), std::to_string(ranks) + " ranks on a GPU");
  }
}

TEST_F(RanksCuda, WithDropoutOddBatchesAndSmallMicroBatches) {
  Way split = way();
  split.dropout = 0.25f;
  split.samples = 7;
  const Outcome alone = train_on(1, split, SftLoss{});
  split.max_tokens = 33;
  for (const int ranks : {4, 8})
    expect_same(alone, train_on(ranks, split, SftLoss{}), std::to_string(ranks) + " ranks");
}

}  // namespace
}  // namespace lockstep::train
