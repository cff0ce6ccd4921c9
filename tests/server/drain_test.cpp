// The end of a server comes in time, whatever its threads do.
#include "server/drain.h"

#include <gtest/gtest.h>

#include "server/block_worker.h"

namespace lockstep::server {
namespace {

using testing::BlockWorker, testing::eventually, testing::on_server, testing::Served;
using namespace std::chrono_literals;

// A server that is asked to end.
class Draining {
 public:
  explicit Draining(Drain::Timeouts timeouts = {.end = 50ms, .abort = 50ms})
      : drain(*served.service, *served.router, timeouts, [this](const std::string& line) { notes += line + "\n"; }) {}
  void begin() {
    on_server(served, [&] { return drain.begin(), true; });
  }
  bool is_over() {
    return on_server(served, [&] { return drain.is_over(); });
  }

  Served served;
  std::string notes;  // the server's thread's
  Drain drain;
};

TEST(DrainTest, NothingInFlightIsOverAtOnce) {
  Draining draining({.end = 60s});
  EXPECT_FALSE(draining.drain.begun());
  draining.begin();
  EXPECT_TRUE(draining.is_over());
  EXPECT_FALSE(draining.drain.leaves_threads());
  EXPECT_EQ(draining.served.post("/v1/completions", {{"prompt", "x"}}).status, 503);
}

TEST(DrainTest, WhatIsInFlightMayEnd) {
  Draining draining({.end = 60s});
  draining.served.serving->pause(service::PauseMode::in_place);
  auto answer = std::async(std::launch::async, [&] {
    return draining.served.json("/v1/completions", {{"prompt", "1+1="}, {"max_tokens", 5}, {"ignore_eos", true}});
  });
  ASSERT_TRUE(eventually([&] { return !draining.served.serving->idle(); }, 30s));
  draining.begin();
  EXPECT_FALSE(draining.is_over());
  draining.served.serving->resume();
  EXPECT_EQ(answer.get()["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(eventually([&] { return draining.is_over(); }, 30s));
}

TEST(DrainTest, WhatDoesNotEndIsAborted) {
  Draining draining({.end = 50ms, .abort = 30s});
  draining.served.serving->pause(service::PauseMode::in_place);
  auto answer = std::async(std::launch::async, [&] {
    return draining.served.json("/v1/completions", {{"prompt", "1+1="}, {"max_tokens", 5}});
  });
  ASSERT_TRUE(eventually([&] { return !draining.served.serving->idle(); }, 30s));
  draining.begin();
  EXPECT_TRUE(eventually([&] { return draining.is_over(); }, 30s));
  EXPECT_EQ(answer.get()["choices"][0]["finish_reason"], "abort");
  EXPECT_FALSE(draining.drain.leaves_threads());
}

// A file system that hangs, an expression that is matched for ever.
TEST(DrainTest, ALoaderThatHangsIsLeft) {
  Draining draining;
  BlockWorker block(draining.served.service->adapter_worker);
  draining.begin();
  EXPECT_FALSE(draining.is_over());
  EXPECT_TRUE(eventually([&] { return draining.is_over(); }, 30s));
  EXPECT_TRUE(draining.drain.leaves_threads());
  EXPECT_NE(on_server(draining.served, [&] { return draining.notes; }).find("it is left"), std::string::npos);
}

TEST(DrainTest, AnEngineThatHangsIsLeft) {
  Draining draining;
  std::promise<void> released;
  service::GenerationRequest request{.tokens = {1, 2, 3}};
  request.sampling.max_tokens = 2;
  testing::Signal reached;
  bool first = true;  // the engine's thread's
  draining.served.serving->submit(request, [&, release = released.get_future().share()](service::GenerationUpdate) {
    if (std::exchange(first, false)) reached.set();
    release.wait_for(60s);
  });
  ASSERT_TRUE(reached.wait(30s));
  draining.served.service->control_worker.post([&] { draining.served.serving->abort_all(); });  // as a route does
  draining.begin();
  EXPECT_TRUE(eventually([&] { return draining.is_over(); }, 30s));
  EXPECT_TRUE(draining.drain.leaves_threads());
  released.set_value();
  EXPECT_TRUE(eventually([&] { return draining.served.serving->idle(); }, 30s));
}

}  // namespace
}  // namespace lockstep::server
