#include "rollout/local/live_request.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <map>
#include <numeric>

namespace lockstep::rollout {
namespace {

std::map<int32_t, kernels::LogitEdit> edits_of(const LiveRequest& request, size_t sample) {
  std::vector<kernels::LogitEdit> edits;
  request.draw_of(request.sequences[sample], 0).changes->append(7, edits);
  std::map<int32_t, kernels::LogitEdit> by_token;
  for (const kernels::LogitEdit& edit : edits) {
    EXPECT_EQ(edit.row, 7);
    EXPECT_TRUE(by_token.emplace(edit.token, edit).second) << "token " << edit.token << " twice";
  }
  return by_token;
}

TEST(LiveRequest, EverySampleHasItsOwnChanges) {
  SampleRequest asked{.tokens = {4, 9, 4}, .n = 2};
  asked.sampling.logit_bias = {{2, 1.5f}, {9, -1}};
  asked.sampling.repetition_penalty = 2;
  asked.sampling.frequency_penalty = 0.5f;
  asked.sampling.min_tokens = 3;
  asked.sampling.stop_token_ids = {9, 1, 9};
  LiveRequest request(1, asked, {}, 10, nullptr, 0);
  for (Sequence& sequence : request.sequences) sequence.group = &request;  // as the scheduler does
  EXPECT_EQ(request.request.sampling.stop_token_ids, (std::vector<int32_t>{1, 9}));
  for (const int32_t token : {2, 5, 2}) request.take(request.sequences[0], {.token = token, .logprob = -1});

  const auto other = edits_of(request, 1);
  ASSERT_EQ(other.size(), 4u);
  EXPECT_EQ(other.at(2).add, 1.5f);
  EXPECT_EQ(other.at(2).divide, 1);
  EXPECT_EQ(other.at(4).divide, 2);
  for (const int32_t stop : {1, 9}) EXPECT_TRUE(std::isinf(other.at(stop).add)) << "too short yet";

  const auto own = edits_of(request, 0);
  ASSERT_EQ(own.size(), 4u);
  EXPECT_EQ(own.at(2).add, 1.5f);
  EXPECT_EQ(own.at(2).divide, 2);
  EXPECT_EQ(own.at(2).subtract, 1);
  EXPECT_EQ(own.at(4).subtract, 0);
  EXPECT_EQ(own.at(5).subtract, 0.5f);
  EXPECT_EQ(own.at(9).add, -1);
  EXPECT_EQ(request.take(request.sequences[0], {.token = 9, .logprob = -1}).finish, FinishReason::stop);
}

// One request may ask for as many samples as may wait, of a prompt as long as the context.
TEST(LiveRequest, SamplesShareWhatThePromptChanges) {
  SampleRequest asked{.tokens = std::vector<int32_t>(4000), .n = 500};
  std::iota(asked.tokens.begin(), asked.tokens.end(), 0);
  asked.sampling.repetition_penalty = 1.1f;
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  const LiveRequest request(1, asked, {}, 10, nullptr, 0);
  const size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
  EXPECT_LT(after - before, size_t{4} << 20);
}

}  // namespace
}  // namespace lockstep::rollout
