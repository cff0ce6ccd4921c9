// What the client of servers costs this process, of which training wants the processor.
#include <gtest/gtest.h>

#include "rollout/remote/remote_sampler.h"
#include "rollout/sample_groups.h"
#include "support/fake_engine.h"

namespace lockstep::rollout {
namespace {

using testing::FakeEngine;

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// 256 samples at once, each of 50 tokens a second.
TEST(ClientCost, Of256StreamsIsAtMostATwentiethOfACore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "of what a sanitizer adds nothing is said";
#endif
  constexpr int kStreams = 256, kTokens = 100;
  FakeEngine server(EngineKind::vllm,
                    [](const std::string&, const std::vector<int32_t>& prompt, int64_t, const OrderedJson&) {
                      FakeEngine::Drawn drawn;
                      for (int t = 0; t < kTokens; ++t) {
                        drawn.tokens.push_back(100'000 + prompt.front() + t);
                        drawn.logprobs.push_back(-0.123456789F * static_cast<float>(t + 1));
                      }
                      return drawn;
                    });
  Fleet fleet({.kind = EngineKind::vllm, .addresses = {server.address()}, .max_samples = kStreams});
  fleet.connect();
  RemoteSampler sampler(fleet, {});
  server.token_ms = 20;
  std::vector<Prompt> prompts;
  for (int i = 0; i < kStreams; ++i) prompts.push_back({.tokens = std::vector<int32_t>(64, i + 1)});
  const auto begin = std::chrono::steady_clock::now();
  const double client = process_seconds() - server.cpu_seconds();
  const auto samples =
      sample_groups(sampler, prompts, {.sampling = {.temperature = 0.7F, .max_tokens = kTokens}, .n = 1}, {});
  const double spent = process_seconds() - server.cpu_seconds() - client;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(samples.size(), size_t{kStreams});
  RecordProperty("client_seconds", std::to_string(spent));
  // A slower machine takes longer in all; a server that is slower makes it easier, so the tokens' own time counts.
  EXPECT_LE(spent, 0.05 * kTokens * 0.020) << spent << " s of processor time in " << took.count() << " s";
}

}  // namespace
}  // namespace lockstep::rollout
