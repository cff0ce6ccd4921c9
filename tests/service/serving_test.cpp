// The engine behind many clients: threads, versions in flight, pauses, limits, the way out.
#include "service/serving.h"

#include <deque>
#include <limits>
#include <map>

#include "service/serving_fixture.h"

namespace lockstep::service {
namespace {

TEST_F(ServingTest, ManyThreadsGetWhatOneWouldGet) {
  Serving& serving = serve();
  serving.adapters().load({.name = "a", .path = first_});
  serving.adapters().load({.name = "b", .path = second_});
  const std::vector<std::string> names = {"", "a", "b"};
  std::map<int32_t, std::vector<int32_t>> wanted;
  for (int32_t i = 0; i < 24; ++i) wanted[i] = ask(request(i, 6, names[static_cast<size_t>(i % 3)]));
  std::vector<Answer> answers(24);
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int32_t i = t; i < 24; i += 4)
        serving.submit(request(i, 6, names[static_cast<size_t>(i % 3)]), answers[static_cast<size_t>(i)].sink());
    });
  for (std::thread& thread : threads) thread.join();
  for (int32_t i = 0; i < 24; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)].ids(), wanted[i]) << i;
  wait_until_idle();
  const ServingMetrics metrics = serving.metrics();
  EXPECT_EQ(metrics.finished.at("length"), 48);
  EXPECT_EQ(metrics.generation_tokens, 48 * 6);
  EXPECT_EQ(metrics.prompt_tokens, 48 * 5);
  EXPECT_EQ(metrics.time_to_first_token.counts().back(), 48);
  EXPECT_EQ(metrics.inter_token_latency.counts().back(), 48 * 5);
}

TEST_F(ServingTest, ARequestKeepsItsVersionAndAFollowerSwitches) {
  Serving& serving = serve();
  forget_version(first_), forget_version(second_);
  EXPECT_EQ(serving.adapters().load({.name = "a", .path = first_}).newest(), 1);
  const std::vector<int32_t> before = ask(request(1, 60, "a"));
  serving.pause(PauseMode::in_place);
  Answer keeps, follows, pinned;
  serving.submit(request(1, 60, "a"), keeps.sink());
  GenerationRequest follower = request(1, 60, "a");
  follower.follow_adapter = true;
  serving.submit(follower, follows.sink());
  const versions::Policy info = serving.adapters().load({.name = "a", .path = second_, .in_place = true});
  EXPECT_EQ(info.versions, (std::vector<int64_t>{1, 2}));
  GenerationRequest old = request(1, 60, "a");
  old.adapter_version = 1;
  serving.submit(old, pinned.sink());
  serving.resume();
  EXPECT_EQ(keeps.ids(), before);
  EXPECT_EQ(pinned.ids(), before);
  EXPECT_EQ(follows.ids(), ask(request(1, 60, "a"))) << "it had made no token yet";
  EXPECT_EQ(keeps.tokens().back().version, 1);
  EXPECT_EQ(follows.tokens().front().version, 2);
  serving.adapters().load({.name = "a", .path = first_, .in_place = true});
  EXPECT_THROW(serving.submit(old, [](GenerationUpdate) {}), NoSuchAdapter) << "two versions are kept";
  old.adapter_version = 3;
  EXPECT_EQ(ask(old), before) << "the first directory again";
}

// Below a root that is not there lies nothing, not everything.
// Also for versions that newer ones had pushed out before the name was unloaded.
TEST_F(ServingTest, CancelledAndAbortedRequestsSaySo) {
  Serving& serving = serve();
  Answer cancelled, aborted, kept;
  const Serving::Id id = serving.submit(request(1, 90), cancelled.sink());
  cancelled.wait_for_tokens(1);
  serving.cancel(id);
  EXPECT_TRUE(cancelled.wait().aborted || cancelled.tokens().size() == 90);
  serving.cancel(id);
  serving.pause(PauseMode::in_place);
  serving.submit(request(1, 60), aborted.sink());
  EXPECT_EQ(serving.abort_all(), 1);
  EXPECT_TRUE(aborted.wait().aborted);
  EXPECT_TRUE(aborted.tokens().empty());
  serving.submit(request(1, 60), kept.sink());
  EXPECT_TRUE(serving.paused());
  serving.pause(PauseMode::retract);
  serving.resume();
  EXPECT_EQ(kept.ids().size(), 60u);
  wait_until_idle();
  EXPECT_TRUE(serving.flush_cache());
}

// However many come meanwhile, those that were there end and the pause begins.
TEST_F(ServingTest, PausingWaitsForWhatIsInFlightOnly) {
  Serving& serving = serve();
  const std::vector<int32_t> wanted = ask(request(2, 8));
  serving.pause(PauseMode::in_place);
  Answer before, after, cancelled, aborted;
  serving.submit(request(1, 90), before.sink());
  serving.resume();
  serving.pause(PauseMode::wait);
  EXPECT_TRUE(serving.pausing() || serving.paused());
  serving.submit(request(2, 8), after.sink());
  const Serving::Id id = serving.submit(request(2, 8), cancelled.sink());
  EXPECT_EQ(before.ids().size(), 90u);
  while (!serving.paused()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(serving.pausing());
  serving.cancel(id);
  EXPECT_TRUE(cancelled.wait().aborted);
  EXPECT_TRUE(after.tokens().empty());
  EXPECT_TRUE(serving.flush_cache()) << "those that are kept have no keys";
  serving.resume();
  EXPECT_EQ(after.ids(), wanted);
  wait_until_idle();

  serving.pause(PauseMode::in_place);
  Answer running;
  serving.submit(request(1, 90), running.sink());
  serving.resume();
  serving.pause(PauseMode::wait);
  const Serving::Id kept = serving.submit(request(2, 8), aborted.sink());
  serving.cancel(kept);
  EXPECT_TRUE(aborted.wait().aborted) << "also while it is kept";
  Answer last;
  serving.submit(request(2, 8), last.sink());
  EXPECT_GE(serving.abort_all(), 1);
  EXPECT_TRUE(last.wait().aborted);
  running.wait();
  wait_until_idle();
  serving.resume();
  EXPECT_EQ(ask(request(2, 8)), wanted) << "no count is left behind";
}

// A request that a pause keeps from starting has the version of its adapter that is the newest when it starts.
TEST_F(ServingTest, AFollowerThatWasKeptFollowsToo) {
  Serving& serving = serve();
  forget_version(first_), forget_version(second_);
  bool was_kept = false;
  for (int tries = 0; tries < 50 && !was_kept; ++tries) {
    const int64_t before = serving.adapters().load({.name = "a", .path = first_, .in_place = true}).newest();
    Answer running, follows;
    serving.submit(request(1, 90), [sink = running.sink()](GenerationUpdate update) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      sink(std::move(update));
    });
    running.wait_for_tokens(1);
    serving.pause(PauseMode::wait);
    GenerationRequest follower = request(1, 8, "a");
    follower.follow_adapter = true;
    serving.submit(follower, follows.sink());
    serving.adapters().load({.name = "a", .path = second_, .in_place = true});
    const int64_t steps = serving.metrics().generation_tokens;
    while (serving.pausing() && serving.metrics().generation_tokens < steps + 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    was_kept = serving.pausing();
    serving.resume();
    running.wait();
    follows.wait();
    EXPECT_EQ(follows.tokens().front().version, before + 1);
  }
  EXPECT_TRUE(was_kept);
}

TEST_F(ServingTest, RetractedRequestsDoNotKeepTheCache) {
  Serving& serving = serve();
  const std::vector<int32_t> wanted = ask(request(1, 90));
  std::deque<Answer> answers;
  for (int tries = 0; serving.idle() && tries < 100; ++tries) {  // until one is caught before its end
    serving.resume();
    wait_until_idle();
    serving.submit(request(1, 90), answers.emplace_back().sink());
    answers.back().wait_for_tokens(1);
    serving.pause(PauseMode::in_place);
  }
  ASSERT_FALSE(serving.idle());
  EXPECT_FALSE(serving.flush_cache()) << "its keys are in use";
  serving.pause(PauseMode::retract);
  EXPECT_TRUE(serving.flush_cache());
  serving.resume();
  EXPECT_EQ(answers.back().ids(), wanted);
}

// A request that says nothing of its length gets what fits, so what fits is what is served.
TEST_F(ServingTest, TheKvPoolBoundsTheContext) {
  constexpr int64_t kBlock = 16;
  const int64_t context = serve().max_model_len();
  const int64_t block_bytes =
      base_.config.layers * base_.model->kv_layer_elements() * static_cast<int64_t>(sizeof(float));
  ServingOptions options;
  options.engine.kv_bytes = 3 * block_bytes;
  EXPECT_EQ(serve(options).max_model_len(), 3 * kBlock + 1) << "the last token has no keys";
  ASSERT_LT(3 * kBlock + 1, context);
  EXPECT_EQ(ask(request(1, 3 * kBlock + 1 - 5)).size(), static_cast<size_t>(3 * kBlock + 1 - 5));
  EXPECT_THROW(ask(request(1, 3 * kBlock + 2 - 5)), DataError);
  options.max_model_len = 20;
  EXPECT_EQ(serve(options).max_model_len(), 20);
  options.max_model_len = 2000000;
  EXPECT_EQ(serve(options).max_model_len(), 3 * kBlock + 1);
}

// Between two submissions of one client a name may be reloaded as often as one likes.
TEST_F(ServingTest, AVersionThatIsHeldCanBeAskedFor) {
  ServingOptions options;
  options.adapters.keep_versions = 1;
  Serving& serving = serve(options);
  serving.adapters().load({.name = "a", .path = first_, .version = 1});
  const std::vector<int32_t> wanted = ask(request(1, 8, "a"));
  GenerationRequest held = request(1, 8, "a");
  held.pinned_adapter = serving.adapters().get("a", std::nullopt);
  serving.adapters().load({.name = "a", .path = second_, .in_place = true, .version = 2});
  Answer answer;
  serving.submit(held, answer.sink());
  EXPECT_EQ(answer.ids(), wanted);
  EXPECT_EQ(answer.tokens().front().version, 1);
}

TEST_F(ServingTest, LimitsAreToldAtOnce) {
  ServingOptions options;
  options.max_queue = 3;
  options.max_model_len = 40;
  Serving& serving = serve(options);
  serving.pause(PauseMode::in_place);
  std::vector<Answer> answers(3);
  for (Answer& answer : answers) serving.submit(request(1), answer.sink());
  EXPECT_THROW(serving.submit(request(1), [](GenerationUpdate) {}), QueueFull);
  serving.resume();
  for (Answer& answer : answers) EXPECT_EQ(answer.ids().size(), 8u);
  EXPECT_EQ(ask(request(1)).size(), 8u) << "there is room again";
  EXPECT_EQ(ask(request(1, 35)).size(), 35u);
  EXPECT_THROW(ask(request(1, 36)), DataError) << "5 + 36 > 40";
  EXPECT_THROW(ask(request(1, std::numeric_limits<int64_t>::max())), DataError);
  EXPECT_THROW(ask(request(100000)), DataError);
  GenerationRequest none = request(1);
  none.tokens.clear();
  EXPECT_THROW(ask(none), DataError);
  GenerationRequest hot = request(1);
  hot.sampling.top_p = 2;
  EXPECT_THROW(ask(hot), ConfigError);
  serving.drain();
  EXPECT_THROW(ask(request(1)), Draining);
}

TEST_F(ServingTest, ThePrefixIsReusedAndGoneWithTheVersion) {
  Serving& serving = serve();
  serving.adapters().load({.name = "a", .path = first_});
  GenerationRequest r = request(1, 2, "a");
  for (int32_t t = 0; t < 40; ++t) r.tokens.push_back(t);
  Answer cold, warm, reloaded;
  serving.submit(r, cold.sink());
  cold.wait();
  serving.submit(r, warm.sink());
  EXPECT_EQ(warm.ids(), cold.ids());
  EXPECT_EQ(cold.cached(), 0);
  EXPECT_EQ(warm.cached(), 32);
  serving.adapters().load({.name = "a", .path = first_, .in_place = true});
  serving.submit(r, reloaded.sink());
  EXPECT_EQ(reloaded.ids(), cold.ids());
  EXPECT_EQ(reloaded.cached(), 0);
}

// All that ran before the samples with numbers that are not finite goes on.
TEST_F(ServingTest, RequestsThatWaitedThroughAFlushFillTheCache) {
  Serving& serving = serve();
  serving.adapters().load({.name = "a", .path = first_});
  GenerationRequest r = request(1, 2, "a");
  for (int32_t t = 0; t < 40; ++t) r.tokens.push_back(t);
  serving.pause(PauseMode::in_place);
  Answer waited, warm;
  serving.submit(r, waited.sink());
  EXPECT_TRUE(serving.flush_cache());
  serving.resume();
  waited.wait();
  serving.submit(r, warm.sink());
  EXPECT_EQ(warm.ids(), waited.ids());
  EXPECT_EQ(warm.cached(), 32);
}

TEST_F(ServingTest, ADivergedAdapterFailsItsOwnRequestsOnly) {
  Serving& serving = serve();
  const std::string broken = adapter_of(kTiny, lora::LoraType::canonical, 2);
  const fs::Path file = fs::Path(broken) / "adapter_model.safetensors";
  std::string bytes = fs::read_file(file);
  std::fill(bytes.end() - 4096, bytes.end(), '\xff');
  fs::write_file_atomic(file, bytes);
  serving.adapters().load({.name = "good", .path = first_});
  serving.adapters().load({.name = "bad", .path = broken});
  const std::vector<int32_t> wanted = ask(request(1, 20, "good"));
  std::vector<Answer> lost(6);
  Answer kept;
  serving.pause(PauseMode::in_place);
  serving.submit(request(1, 20, "good"), kept.sink());
  for (Answer& answer : lost) {
    GenerationRequest r = request(2, 20, "bad");
    r.n = 2;
    serving.submit(r, answer.sink());
  }
  serving.resume();
  EXPECT_EQ(kept.ids(), wanted);
  for (Answer& answer : lost) {
    const GenerationUpdate& last = answer.wait();
    ASSERT_TRUE(last.error.has_value());
    EXPECT_NE(last.error->what.find("not finite"), std::string::npos);
    EXPECT_TRUE(answer.tokens().empty());
  }
  wait_until_idle();
  EXPECT_EQ(serving.metrics().finished.at("error"), 12);
}

TEST_F(ServingTest, ShuttingDownEndsWhatIsInFlight) {
  Answer answer;
  serve().submit(request(1, 90), answer.sink());
  serving_.reset();
  EXPECT_TRUE(answer.wait().done);
}

// Loading again and again gives back what it took.

}  // namespace
}  // namespace lockstep::service
