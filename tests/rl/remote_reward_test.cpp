// Rewards over HTTP, against a server that does as it is told.
#include "rl/remote_reward.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "rl/mixed_reward.h"
#include "rl/objectives.h"
#include "rl/reward_queue.h"
#include "rl/rule_reward.h"
#include "rl/score_json.h"
#include "server/http/http.h"

namespace lockstep::rl {
namespace {

using namespace std::chrono_literals;

class Service {
 public:
  using Answer = std::function<server::HttpResponse(const server::HttpRequest&, int number)>;

  explicit Service(Answer answer) : answer_(std::move(answer)) { start(); }
  ~Service() { stop(); }
  void start() {
    server_ = std::make_unique<server::HttpServer>(
        server::HttpOptions{.port = port_},
        [this](const server::HttpRequest& request, const std::shared_ptr<server::Responder>& reply) {
          {
            const std::lock_guard lock(mutex_);
            requests_.push_back(request);
          }
          reply->send(answer_(request, ++count));
        });
    port_ = server_->port();
    thread_ = std::thread([server = server_.get()] { server->run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }
  HttpRewardOptions options(std::string path, std::chrono::milliseconds timeout = 20s) const {
    return {.address = {.host = "127.0.0.1", .port = port_}, .path = std::move(path), .timeout = timeout};
  }
  std::vector<server::HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::atomic<int> count = 0;

 private:
  Answer answer_;
  int port_ = 0;
  std::unique_ptr<server::HttpServer> server_;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<server::HttpRequest> requests_;
};

RewardSample sample(const std::string& response, const std::string& label = "7") {
  return {.row = std::make_shared<RewardRow>(RewardRow{.prompt = "say", .label = label}), .response = response};
}

TEST(Remote, AsksAsSlimeDoes) {
  Service service([](const server::HttpRequest& request, int) {
    const Json body = Json::parse(request.body);
    return server::HttpResponse{.body = std::to_string(body["response"].get<std::string>().size())};
  });
  RemoteReward reward(service.options("/score?x=1"), "");
  std::vector<RewardSample> samples;
  for (size_t i = 0; i < 200; ++i) samples.push_back(sample(std::string(i, 'x')));
  const auto scores = grade_all(reward, samples, 1);
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(scores[i].value, static_cast<float>(i));
  const auto first = service.requests().front();
  EXPECT_EQ(first.method + " " + first.path + "?" + first.query, "POST /score?x=1");
  EXPECT_EQ(Json::parse(first.body),
            (Json{{"prompt", "say"}, {"response", Json::parse(first.body)["response"]}, {"label", "7"}}));
  RemoteReward keyed(service.options("/"), "a");
  EXPECT_FALSE(grade_all(keyed, {sample("x")}, 1)[0].value == std::nullopt) << "a bare number needs no key";
}

TEST(Remote, TriesAgainWhatMayPass) {
  Service service([](const server::HttpRequest&, int number) {
    return number % 3 != 0 ? server::HttpResponse{.status = number % 2 ? 503 : 429}
                           : server::HttpResponse{.body = "0.5"};
  });
  RemoteReward reward(service.options("/"), "");
  for (const Score& score : grade_all(reward, {sample("a"), sample("b"), sample("c")}, 1)) EXPECT_EQ(score.value, 0.5f);
}

// As during training: the time in which nobody could ask again is not the service's.
TEST(Remote, TimeInWhichNobodyPollsDoesNotCount) {
  Service service([](const server::HttpRequest&, int number) {
    return number == 1 ? server::HttpResponse{.status = 503} : server::HttpResponse{.body = "0.5"};
  });
  RemoteReward reward(service.options("/", 700ms), "");
  reward.submit({sample("a")});
  std::this_thread::sleep_for(1500ms);
  std::vector<Reward::Graded> graded = reward.poll(std::chrono::steady_clock::now() + 10s);
  ASSERT_EQ(graded.size(), 1u);
  EXPECT_EQ(graded[0].scores[0].value, 0.5f) << graded[0].scores[0].failure;
  EXPECT_EQ(service.count, 2);
}

TEST(Remote, AnswersMakeRoomForTheNextQuestionsWhileNobodyPolls) {
  constexpr int kSamples = 30;
  Service service([](const server::HttpRequest&, int) { return server::HttpResponse{.body = "0.5"}; });
  HttpRewardOptions options = service.options("/");
  options.max_in_flight = 4;
  RemoteReward reward(options, "");
  for (int i = 0; i < kSamples; ++i) reward.submit({sample("a")});
  for (int i = 0; i < 2000 && service.count < kSamples; ++i) std::this_thread::sleep_for(5ms);
  ASSERT_EQ(service.count, kSamples);
  std::this_thread::sleep_for(50ms);  // the last answer is on its way
  size_t graded = 0;
  for (const Reward::Graded& one : reward.poll(std::chrono::steady_clock::now())) {
    EXPECT_EQ(one.scores[0].value, 0.5f);
    ++graded;
  }
  EXPECT_GE(graded, static_cast<size_t>(kSamples - 4));
}

// It sends nothing any more, although questions are waiting and answers come.
TEST(Remote, MayEndWhileQuestionsWait) {
  for (int i = 0; i < 20; ++i) {
    Service service([](const server::HttpRequest&, int) { return server::HttpResponse{.body = "0.5"}; });
    HttpRewardOptions options = service.options("/");
    options.max_in_flight = 2;
    RemoteReward reward(options, "");
    for (int sent = 0; sent < 200; ++sent) reward.submit({sample("a")});
    for (int waits = 0; waits < 2000 && service.count < 4 + i; ++waits) std::this_thread::sleep_for(1ms);
  }
}

TEST(Remote, WhatWillNotPassIsUnknownAtOnce) {
  const std::vector<std::pair<server::HttpResponse, std::string>> cases = {
      {{.status = 404, .body = "not here"}, "answered 404: not here"},
      {{.body = "rubbish"}, "no JSON"},
      {{.body = "null"}, "null"},
      {{.body = "{\"x\": 1}"}, "without \"score\""},
      {{.body = "1e999"}, ""}};
  for (const auto& [answer, why] : cases) {
    Service service([&](const server::HttpRequest&, int) { return answer; });
    RemoteReward reward(service.options("/"), "");
    const auto score = grade_all(reward, {sample("a")}, 1)[0];
    EXPECT_FALSE(score.value.has_value()) << answer.body;
    EXPECT_NE(score.failure.find(why), std::string::npos) << score.failure;
    EXPECT_EQ(service.count, 1);
  }
}

TEST(Remote, AServiceThatRepeatsASecretShowsItInNoFailure) {
  Service service([](const server::HttpRequest& request, int) {
    return server::HttpResponse{.status = 403,
                                .body = std::string(request.header("authorization")) + " of " + request.query};
  });
  const auto failure = [&](const char* user, const char* path, const char* key) {
    HttpRewardOptions options = service.options(path);
    options.address.user = user;
    options.api_key = key;
    RemoteReward reward(options, "");
    return grade_all(reward, {sample("a")}, 1)[0].failure;
  };
  EXPECT_NE(failure("", "/", "hunter2").find("answered 403: Bearer *** of"), std::string::npos);
  EXPECT_NE(failure("u:hunter2", "/", "").find("answered 403: Basic *** of"), std::string::npos);
  EXPECT_NE(failure("", "/?api_key=hunter2&n=1", "").find("of api_key=***&n=1"), std::string::npos);
}

TEST(Remote, ADeadServiceIsUnknownWhenTheTimeIsUp) {
  Service service([](const server::HttpRequest&, int) { return server::HttpResponse{}; });
  const auto options = service.options("/", 700ms);
  service.stop();
  RemoteReward reward(options, "");
  const auto begin = std::chrono::steady_clock::now();
  const auto scores = grade_all(reward, {sample("a"), sample("b")}, 1);
  for (const Score& score : scores) {
    EXPECT_FALSE(score.value.has_value());
    EXPECT_NE(score.failure.find("no answer in 700 ms"), std::string::npos) << score.failure;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(Judge, IsWaitedForWhileItIsDown) {
  Service service([](const server::HttpRequest& request, int) {
    const Json body = Json::parse(request.body);
    const std::string text = body["messages"][0]["content"];
    EXPECT_EQ(body["model"], "m");
    EXPECT_EQ(body["temperature"], 0);
    EXPECT_EQ(request.header("authorization"), "Bearer secret");
    const std::string score =
        text.find("splendid") != std::string::npos ? "so <score>0.1</score>, no, <score> 0.75 </score>" : "bad";
    return server::HttpResponse{.body = Json{{"choices", Json::array({{{"message", {{"content", score}}}}})}}.dump()};
  });
  auto options = service.options("/v1/chat/completions");
  options.api_key = "secret";
  service.stop();
  JudgeReward reward(options, {.model = "m"});
  std::thread later([&] {
    std::this_thread::sleep_for(600ms);
    service.start();
  });
  const auto scores = grade_all(reward, {sample("splendid"), sample("other")}, 1);
  later.join();
  EXPECT_EQ(scores[0].value, 0.75f);
  EXPECT_FALSE(scores[1].value.has_value()) << "a failure is not a 0";
  EXPECT_NE(scores[1].failure.find("no <score>"), std::string::npos);
}

TEST(SandboxFusion, TheShareOfCasesThatPass) {
  Service service([](const server::HttpRequest& request, int) {
    const Json body = Json::parse(request.body);
    EXPECT_EQ(request.path, "/run_code");
    EXPECT_EQ(body["language"], "python");
    EXPECT_EQ(body["run_timeout"], 10);
    const std::string input = body["stdin"];
    if (input == "break") return server::HttpResponse{.body = R"({"status": "SandboxError"})"};
    const bool ran = body["code"].get<std::string>().starts_with("print");
    return server::HttpResponse{
        .body = Json{{"status", ran ? "Success" : "Failed"},
                     {"run_result", {{"status", "Finished"}, {"return_code", ran ? 0 : 1}, {"stdout", input + " \n"}}}}
                    .dump()};
  });
  SandboxFusionReward reward(service.options("/run_code"), {});
  const std::string echo = "Here:\n```python\nprint(input())\n```",
                    cases = R"({"inputs": ["1", "2"], "outputs": ["1", "3\n"]})";
  const auto scores = grade_all(reward,
                                {sample(echo, cases), sample("raise", cases), sample(echo, R"(["assert True"])"),
                                 sample(echo, R"({"inputs": ["break"], "outputs": [""]})"), sample(echo, "nope")},
                                1);
  EXPECT_EQ(scores[0].value, 0.5f);
  EXPECT_EQ(scores[1].value, 0.0f);
  EXPECT_EQ(scores[2].value, 1.0f);
  EXPECT_FALSE(scores[3].value.has_value()) << "the sandbox failed, not the code";
  EXPECT_FALSE(scores[4].value.has_value());
  EXPECT_NE(scores[4].failure.find("inputs"), std::string::npos);
}

TEST(Mixed, SumsWhatIsKnown) {
  std::vector<RewardTerm> terms;
  terms.push_back({.name = "number",
                   .weight = 0.5,
                   .reward = std::make_unique<RuleReward>(RewardRule{.type = RewardType::number})});
  terms.push_back(
      {.name = "format", .weight = 2, .reward = std::make_unique<RuleReward>(RewardRule{.type = RewardType::format})});
  MixedReward reward(std::move(terms));
  const auto scores = grade_all(reward, {sample("7"), sample("<think></think>7"), sample("7", "")}, 1);
  EXPECT_EQ(scores[0].value, 0.5f);
  EXPECT_EQ(scores[1].value, 2.5f);
  ASSERT_EQ(scores[1].parts.size(), 2u);
  EXPECT_EQ(scores[1].parts[0].name, "number");
  EXPECT_EQ(scores[1].parts[1].value, 1.0f);
  EXPECT_FALSE(scores[2].value.has_value()) << "one term is unknown, and so is the sum";
  EXPECT_NE(scores[2].failure.find("number: "), std::string::npos);
  EXPECT_EQ(scores[2].parts[1].value, 0.0f);
}

TEST(Objectives, AreNormalizedBeforeTheyAreSummed) {
  std::vector<Trajectory> trajectories(6);
  const std::vector<float> a = {1, 0, 1, 0, 0, 9}, b = {100, 300, 200, 5, 5, 9};
  for (size_t i = 0; i < 6; ++i) {
    trajectories[i].group = i < 3 ? 0 : 1;
    if (i < 5) trajectories[i].reward = 0.0f;
    trajectories[i].reward_parts = {{.name = "a", .value = a[i]}, {.name = "b", .value = b[i]}};
  }
  const std::vector<Objective> objectives = {{.name = "a", .weight = 1}, {.name = "b", .weight = 0.5}};
  const auto sums = normalized_sum(trajectories, objectives, {});
  const auto group_a = group_advantages(std::vector<float>{1, 0, 1}, {}),
             group_b = group_advantages(std::vector<float>{100, 300, 200}, {});
  std::vector<double> plain(5);  // the second group's known rewards are equal
  double mean = 0, squares = 0;
  for (size_t i = 0; i < 3; ++i) plain[i] = group_a[i] + 0.5 * group_b[i];
  for (const double value : plain) mean += value / 5;
  for (const double value : plain) squares += (value - mean) * (value - mean);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(sums[i], (plain[i] - mean) / (std::sqrt(squares / 4) + 1e-6), 1e-6) << i;
  EXPECT_EQ(sums[5], 0);
  trajectories[0].reward_parts.pop_back();
  EXPECT_THROW(normalized_sum(trajectories, objectives, {}), DataError);
}

}  // namespace
}  // namespace lockstep::rl
