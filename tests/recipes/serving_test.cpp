// The engine behind many clients: threads, versions, limits, the way out.
#include "recipes/serving.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "recipes/commands_fixture.h"

namespace lockstep::recipes {
namespace {

// What came back for one request; waits for its end.
class Answer {
 public:
  Serving::OnUpdate sink() {
    return [this](GenerationUpdate update) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(last_.done) << "an update after the last one";
      tokens_.insert(tokens_.end(), update.tokens.begin(), update.tokens.end());
      cached_ = std::max(cached_, update.cached_tokens);
      last_ = std::move(update);
      changed_.notify_all();
    };
  }
  const GenerationUpdate& wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [this] { return last_.done; }));
    return last_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return tokens_.size() >= count || last_.done; }));
  }
  std::vector<int32_t> ids() {
    wait();
    std::vector<int32_t> all;
    for (const GeneratedToken& token : tokens_) all.push_back(token.token);
    return all;
  }
  const std::vector<GeneratedToken>& tokens() const { return tokens_; }
  int64_t cached() const { return cached_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GeneratedToken> tokens_;
  int64_t cached_ = 0;
  GenerationUpdate last_;
};

class ServingTest : public Commands {
 protected:
  Serving& serve(ServingOptions options = {}) {
    options.engine.prefix_cache = true;
    serving_ = std::make_unique<Serving>(base_, options);
    return *serving_;
  }
  GenerationRequest request(int32_t first, int64_t max_tokens = 8, const std::string& adapter = "") {
    GenerationRequest r{.tokens = {first, 2, 3, 4, 5}, .adapter = adapter};
    r.sampling.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    return r;
  }
  std::vector<int32_t> ask(const GenerationRequest& r) {
    Answer answer;
    serving_->submit(r, answer.sink());
    return answer.ids();
  }
  void wait_until_idle() {
    while (!serving_->idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void forget_version(const std::string& adapter) {
    std::filesystem::remove(fs::Path(adapter).parent_path() / "vime_lora_metadata.json");
  }

  Stream stream_{{.threads = 2}};
  Base base_ = load_base({.hf_checkpoint = kTiny}, stream_, control_);
  std::string first_ = adapter_of(kTiny, lora::LoraType::canonical, 4),
              second_ = adapter_of(kTiny, lora::LoraType::fused, 2);
  std::unique_ptr<Serving> serving_;
};

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
  EXPECT_EQ(serving.adapters().load({.name = "a", .path = first_}).version, 1);
  const std::vector<int32_t> before = ask(request(1, 60, "a"));
  serving.pause(PauseMode::in_place);
  Answer keeps, follows, pinned;
  serving.submit(request(1, 60, "a"), keeps.sink());
  GenerationRequest follower = request(1, 60, "a");
  follower.follow_adapter = true;
  serving.submit(follower, follows.sink());
  const AdapterInfo info = serving.adapters().load({.name = "a", .path = second_, .in_place = true});
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

TEST_F(ServingTest, WhatCannotBeLoadedChangesNothing) {
  ServingOptions options;
  options.adapters = {.base_names = {"base"}, .max_loras = 2, .max_lora_rank = 4};
  Serving& serving = serve(options);
  AdapterRegistry& adapters = serving.adapters();
  EXPECT_EQ(adapters.load({.name = "a", .path = first_}).version, 7) << "what its directory says";
  const std::vector<int32_t> before = ask(request(1, 8, "a"));
  EXPECT_THROW(adapters.load({.name = "a", .path = first_}), ConfigError) << "not in place";
  EXPECT_THROW(adapters.load({.name = "base", .path = first_}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "", .path = first_}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "b", .path = path("nowhere")}), Error);
  EXPECT_THROW(adapters.load({.name = "b", .path = adapter_of(kTiny, lora::LoraType::canonical, 5)}), ShapeError)
      << "rank";
  EXPECT_THROW(adapters.load({.name = "b", .path = adapter_of(kArith, lora::LoraType::canonical, 4)}), Error)
      << "another base";
  EXPECT_THROW(adapters.load({.name = "a", .path = second_, .in_place = true, .version = 7}), ConfigError)
      << "not newer";
  EXPECT_THROW(adapters.load({.name = "a", .path = second_, .in_place = true, .sha256 = std::string(64, '0')}),
               DataError);
  const std::string torn = adapter_of(kTiny, lora::LoraType::canonical, 4);
  std::filesystem::resize_file(fs::Path(torn) / "adapter_model.safetensors", 2000);
  EXPECT_THROW(adapters.load({.name = "a", .path = torn, .in_place = true}), FormatError);
  EXPECT_EQ(adapters.info("a").version, 7);
  EXPECT_EQ(ask(request(1, 8, "a")), before);
  adapters.load({.name = "b", .path = second_});
  EXPECT_THROW(adapters.load({.name = "c", .path = second_}), ConfigError) << "two names at most";
  adapters.unload("b");
  EXPECT_THROW(adapters.unload("b"), NoSuchAdapter);
  EXPECT_NO_THROW(adapters.load({.name = "c", .path = second_}));
  EXPECT_EQ(adapters.list().size(), 2u);
}

TEST_F(ServingTest, AdaptersAreReadBelowTheRootOnly) {
  ServingOptions options;
  options.adapters.lora_root = fs::Path(first_).parent_path().string();
  AdapterRegistry& adapters = serve(options).adapters();
  const std::string name = fs::Path(first_).filename().string();
  EXPECT_NO_THROW(adapters.load({.name = "absolute", .path = first_}));
  EXPECT_NO_THROW(adapters.load({.name = "relative", .path = name}));
  EXPECT_THROW(adapters.load({.name = "b", .path = second_}), ConfigError);
  EXPECT_THROW(
      adapters.load(
          {.name = "b", .path = first_ + "/../../" + fs::Path(second_).parent_path().filename().string() + "/" + name}),
      ConfigError);
  std::filesystem::create_directory_symlink(second_, fs::Path(first_).parent_path() / "link");
  EXPECT_THROW(adapters.load({.name = "b", .path = "link"}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "b", .path = "/"}), ConfigError);
}

// Below a root that is not there lies nothing, not everything.
TEST_F(ServingTest, WithoutTheRootNothingIsRead) {
  ServingOptions options;
  options.adapters.lora_root = path("gone");
  AdapterRegistry& adapters = serve(options).adapters();
  EXPECT_THROW(adapters.load({.name = "a", .path = first_}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "a", .path = "relative"}), ConfigError);
}

TEST_F(ServingTest, EveryVersionHasANextOne) {
  AdapterRegistry& adapters = serve().adapters();
  for (const int64_t version : {int64_t{-1}, (int64_t{1} << 53) - 1, std::numeric_limits<int64_t>::max()})
    EXPECT_THROW(adapters.load({.name = "a", .path = first_, .version = version}), ConfigError) << version;
  EXPECT_EQ(adapters.load({.name = "a", .path = first_, .version = (int64_t{1} << 53) - 2}).version,
            (int64_t{1} << 53) - 2);
}

TEST_F(ServingTest, UnloadedAdaptersServeWhatIsInFlight) {
  Serving& serving = serve();
  serving.adapters().load({.name = "a", .path = first_});
  const std::vector<int32_t> wanted = ask(request(1, 60, "a"));
  serving.pause(PauseMode::in_place);
  Answer answer;
  serving.submit(request(1, 60, "a"), answer.sink());
  serving.adapters().unload("a");
  EXPECT_THROW(serving.submit(request(1, 8, "a"), [](GenerationUpdate) {}), NoSuchAdapter);
  EXPECT_FALSE(serving.adapters().wait_unused("a", std::chrono::milliseconds(20)));
  serving.resume();
  EXPECT_EQ(answer.ids(), wanted);
  EXPECT_TRUE(serving.adapters().wait_unused("a", std::chrono::seconds(10)));
  EXPECT_TRUE(serving.adapters().wait_unused("never there", std::chrono::milliseconds(1)));
}

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
TEST_F(ServingTest, ReloadingDoesNotGrow) {
  AdapterRegistry& adapters = serve().adapters();
  adapters.load({.name = "a", .path = first_});
  // The pool's first slab and the step's scratch memory stay.
  for (int i = 0; i < 3; ++i) {
    adapters.load({.name = "a", .path = first_, .in_place = true});
    ask(request(i, 2, "a"));
  }
  wait_until_idle();
  serving_->flush_cache();
  const int64_t before = live_bytes(Device::cpu);
  for (int i = 0; i < 50; ++i) {
    adapters.load({.name = "a", .path = i % 2 ? first_ : second_, .in_place = true});
    if (i % 5 == 0) ask(request(i, 2, "a"));
  }
  for (int i = 0; i < 2; ++i) adapters.load({.name = "a", .path = first_, .in_place = true});
  wait_until_idle();
  serving_->flush_cache();
  EXPECT_LE(live_bytes(Device::cpu), before + (int64_t{1} << 16));
}

}  // namespace
}  // namespace lockstep::recipes
