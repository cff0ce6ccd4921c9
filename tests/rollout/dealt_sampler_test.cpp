// Samples that ranks draw for one another.
#include "rollout/dealt_sampler.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/stopwatch.h"
#include "parallel/ranks.h"

namespace lockstep::rollout {
namespace {

using namespace std::chrono_literals;

// Draws a token of each of its requests every 5 ms.
class SlowSampler final : public Sampler {
 public:
  explicit SlowSampler(int64_t tokens) : tokens_(tokens) {}
  Capabilities capabilities() const override { return {}; }
  Ticket submit(SampleRequest) override {
    drawn_.emplace(next_, 0);
    return next_++;
  }
  void release_memory() override {}

 private:
  std::span<const Event> next_events(Deadline) override {
    std::this_thread::sleep_for(5ms);
    events_.clear();
    for (auto& [ticket, drawn] : drawn_) {
      Token token{.token = static_cast<int32_t>(++drawn)};
      if (drawn == tokens_) token.finish = FinishReason::length;
      events_.push_back({ticket, token});
    }
    std::erase_if(drawn_, [&](const auto& one) { return one.second == tokens_; });
    return events_;
  }
  void end(Ticket ticket) override { drawn_.erase(ticket); }

  const int64_t tokens_;
  Ticket next_ = 0;
  std::map<Ticket, int64_t> drawn_;
  std::vector<Event> events_;
};

struct Drawn {
  std::map<Ticket, std::vector<int32_t>> tokens;
  int waits = 0;
};

// What a rank gets of two requests; 0 ms: each wait is for one step.
Drawn draw(parallel::Group& group, int64_t tokens, std::chrono::milliseconds patience) {
  SlowSampler own(tokens);
  DealtSampler sampler(own, group, [] { return false; });
  for (int i = 0; i < 2; ++i) sampler.submit({});
  Drawn drawn;
  for (size_t finished = 0; finished < 2; ++drawn.waits)
    for (const Event& event : sampler.wait(patience == 0ms ? kAtOnce : std::chrono::steady_clock::now() + patience)) {
      const Token& token = std::get<Token>(event.what);
      drawn.tokens[event.ticket].push_back(token.token);
      finished += token.finish ? 1 : 0;
    }
  return drawn;
}

// Callers that report progress wait 100 ms at a time. A meeting as often would cost ranks with a GPU each some percent
// of a rollout, as they wait for each other's bursts.
TEST(DealtSampler, RanksMeetEverLessOften) {
  parallel::testing::on_sound_ranks(2, [](parallel::Group& group) {
    const Stopwatch clock;
    const Drawn drawn = draw(group, 200, 100ms);
    EXPECT_LE(drawn.waits, 4 + clock.ms() / 1000);
    for (const Ticket ticket : {0, 1}) EXPECT_EQ(drawn.tokens.at(ticket).size(), 200u);
  });
}

TEST(DealtSampler, ADeadlineThatHasPassedMakesOneStep) {
  parallel::testing::on_sound_ranks(2, [](parallel::Group& group) { EXPECT_GE(draw(group, 20, 0ms).waits, 20); });
}

}  // namespace
}  // namespace lockstep::rollout
