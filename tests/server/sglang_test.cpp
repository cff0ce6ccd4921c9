// SGLang's /generate and the routes that steer the engine, through HTTP.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <thread>

#include "rl/teacher_dialect.h"
#include "server/block_worker.h"
#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::Client, testing::Reply, testing::Served;
using namespace std::chrono_literals;

class SglangRoutes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = std::make_unique<Served>(); }
  static void TearDownTestSuite() { served_.reset(); }

  static OrderedJson with(OrderedJson more) {
    OrderedJson body = {{"text", "12+34="}, {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 20}}}};
    if (!more.is_null()) body.update(more);
    return body;
  }
  static OrderedJson ask(const OrderedJson& more) { return served_->json("/generate", with(more)); }

  static std::unique_ptr<Served> served_;
};
std::unique_ptr<Served> SglangRoutes::served_;

TEST_F(SglangRoutes, KeysAndTypes) {
  const OrderedJson answer = ask({{"rid", "mine"}});
  const OrderedJson& meta = answer["meta_info"];
  EXPECT_EQ(meta["id"], "mine");
  EXPECT_EQ(meta["finish_reason"], OrderedJson({{"type", "stop"}, {"matched", 0}}));
  EXPECT_EQ(meta["prompt_tokens"], 6);
  EXPECT_EQ(meta["completion_tokens"], answer["output_ids"].size());
  EXPECT_EQ(meta["weight_version"], "default");
  EXPECT_TRUE(meta["e2e_latency"].is_number_float());
  EXPECT_FALSE(meta.contains("output_token_logprobs"));
  EXPECT_TRUE(answer["adapter_version"].is_null());
  const OrderedJson completion =
      served_->json("/v1/completions", {{"prompt", "12+34="}, {"temperature", 0}, {"max_tokens", 20}});
  EXPECT_EQ(answer["text"], completion["choices"][0]["text"]);
}

TEST_F(SglangRoutes, LengthAndStopStrings) {
  const OrderedJson cut = ask({{"sampling_params", {{"temperature", 0}, {"max_new_tokens", 2}}}});
  EXPECT_EQ(cut["meta_info"]["finish_reason"], OrderedJson({{"type", "length"}, {"length", 2}}));
  const std::string text = ask({})["text"];
  const OrderedJson stopped =
      ask({{"sampling_params", {{"temperature", 0}, {"max_new_tokens", 20}, {"stop", text.substr(2, 1)}}}});
  EXPECT_EQ(stopped["meta_info"]["finish_reason"]["matched"], text.substr(2, 1));
}

TEST_F(SglangRoutes, OnlyAMissingMaxNewTokensMeans128) {
  const OrderedJson usual = ask({{"sampling_params", {{"temperature", 0}, {"ignore_eos", true}}}});
  EXPECT_EQ(usual["meta_info"]["completion_tokens"], 128);
  const OrderedJson all =
      ask({{"sampling_params", {{"temperature", 0}, {"ignore_eos", true}, {"max_new_tokens", nullptr}}}});
  EXPECT_EQ(all["meta_info"]["completion_tokens"].get<int64_t>() + all["meta_info"]["prompt_tokens"].get<int64_t>(),
            served_->serving->max_model_len());
}

TEST_F(SglangRoutes, EachPromptOfABatchHasItsOwnSeed) {
  const auto params = [](int seed) {
    return OrderedJson{{"temperature", 2}, {"max_new_tokens", 12}, {"sampling_seed", seed}, {"ignore_eos", true}};
  };
  const OrderedJson batch = served_->json(
      "/generate", {{"text", {"12+34=", "12+34=", "12+34="}}, {"sampling_params", {params(3), params(4), params(3)}}});
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(batch[0]["output_ids"], batch[2]["output_ids"]);
  EXPECT_NE(batch[0]["output_ids"], batch[1]["output_ids"]);
  EXPECT_EQ(batch[1]["output_ids"], ask({{"sampling_params", params(4)}})["output_ids"]) << "as alone";
}

TEST_F(SglangRoutes, LogprobsAreAfterTheTemperature) {
  const OrderedJson params = {{"temperature", 0.5}, {"max_new_tokens", 6}, {"sampling_seed", 3}, {"ignore_eos", true}};
  const OrderedJson answer =
      ask({{"sampling_params", params}, {"return_logprob", true}, {"logprob_start_len", 0}, {"top_logprobs_num", 2}});
  const OrderedJson& meta = answer["meta_info"];
  ASSERT_EQ(meta["output_token_logprobs"].size(), 6u);
  EXPECT_EQ(meta["output_token_logprobs_length"], 6);
  ASSERT_EQ(meta["input_token_logprobs"].size(), 6u);
  EXPECT_TRUE(meta["input_token_logprobs"][0][0].is_null());
  EXPECT_EQ(meta["output_top_logprobs"][0].size(), 2u);
  EXPECT_TRUE(meta["output_token_logprobs"][0][2].is_null()) << "no text unless asked for";
  // The same tokens at temperature 1: log p' = 2 log p - log sum p^2, so differences double.
  const OrderedJson plain = served_->json("/v1/completions", {{"prompt", "12+34="},
                                                              {"temperature", 0.5},
                                                              {"seed", 3},
                                                              {"max_tokens", 6},
                                                              {"ignore_eos", true},
                                                              {"logprobs", 2},
                                                              {"return_token_ids", true}});
  const OrderedJson& choice = plain["choices"][0];
  EXPECT_EQ(choice["token_ids"], answer["output_ids"]);
  std::vector<double> tops;
  for (const auto& [key, value] : choice["logprobs"]["top_logprobs"][0].items()) tops.push_back(value);
  std::ranges::sort(tops, std::greater<>());
  const OrderedJson& scaled = meta["output_top_logprobs"][0];
  EXPECT_NEAR(scaled[0][0].get<double>() - scaled[1][0].get<double>(), 2 * (tops[0] - tops[1]), 1e-4);
}

// As a teacher is asked for top-k distillation: the prompt alone, and tokens that somebody else found likely.
TEST_F(SglangRoutes, LogprobsOfGivenTokens) {
  const OrderedJson prompt_only = {{"temperature", 0}, {"max_new_tokens", 0}};
  const OrderedJson tops = ask(
      {{"sampling_params", prompt_only}, {"return_logprob", true}, {"logprob_start_len", 0}, {"top_logprobs_num", 3}});
  EXPECT_EQ(tops["text"], "");
  EXPECT_EQ(tops["output_ids"], OrderedJson::array());
  EXPECT_EQ(tops["meta_info"]["completion_tokens"], 0);
  EXPECT_EQ(tops["meta_info"]["finish_reason"], OrderedJson({{"type", "length"}, {"length", 0}}));
  const OrderedJson& likeliest = tops["meta_info"]["input_top_logprobs"];
  ASSERT_EQ(likeliest.size(), 6u);
  const OrderedJson ids = {likeliest[1][0][1], likeliest[1][2][1], 5};
  OrderedJson body = {
      {"sampling_params", prompt_only}, {"return_logprob", true}, {"logprob_start_len", 0}, {"token_ids_logprob", ids}};
  const OrderedJson meta = ask(body)["meta_info"];
  const OrderedJson& said = meta["input_token_ids_logprobs"];
  ASSERT_EQ(said.size(), 6u);
  EXPECT_TRUE(said[0].is_null());
  EXPECT_EQ(said[1][0], likeliest[1][0]) << "bit for bit";
  EXPECT_EQ(said[1][1], likeliest[1][2]);
  for (size_t place = 1; place < 6; ++place)
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(said[place][i][1], ids[i]);
  EXPECT_EQ(meta["output_token_ids_logprobs"], OrderedJson::array());
  body["text"] = {"12+34=", "1+1="};
  const OrderedJson batch = ask(body);
  EXPECT_EQ(batch[0]["meta_info"]["input_token_ids_logprobs"], said);
  EXPECT_EQ(batch[1]["meta_info"]["input_token_ids_logprobs"].size(), 4u);
  body["token_ids_logprob"] = {ids, ids};
  EXPECT_EQ(ask(body)[0]["meta_info"]["input_token_ids_logprobs"], said);
  const auto refused = [&](const OrderedJson& change, const std::string& words) {
    OrderedJson wrong = body;
    wrong.update(change);
    const Reply reply = served_->post("/generate", with(wrong));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_NE(reply.body.find(words), std::string::npos) << reply.body;
  };
  refused({{"token_ids_logprob", {ids, {1}}}}, "must be the same for all prompts");
  refused({{"token_ids_logprob", {100'000}}}, "token_ids_logprob");
  refused({{"logprob_start_len", -1}}, "logprob_start_len");
  refused({{"sampling_params", {{"max_new_tokens", 2}}}}, "max_new_tokens");
}

// What our own client of teachers asks and reads, in both directions of the divergence.
TEST_F(SglangRoutes, AreATeacherForTopKDistillation) {
  const train::Datum datum{.tokens = {1, 2, 3, 4}, .targets = {-1, 3, 4, 5}, .weights = {0, 1, 1, 1}};
  const auto ask_teacher = [&](const rl::SequenceQuestion& question) {
    const Reply reply =
        served_->post("/generate", OrderedJson::parse(rl::request_of(rl::TeacherDialect::generate, "", question)));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return rl::read_answer(rl::TeacherDialect::generate, reply.body, question, "the server");
  };
  const train::RowOutputs likeliest = ask_teacher({.datum = datum, .top = 2});
  const train::RowOutputs given = ask_teacher({.datum = datum, .candidates = likeliest.top});
  EXPECT_EQ(given.candidate_logprob, likeliest.top_logprob);
  EXPECT_EQ(given.logprob, likeliest.logprob);
}

TEST_F(SglangRoutes, StreamsAreCumulative) {
  const OrderedJson whole = ask({{"return_logprob", true}});
  const std::vector<OrderedJson> events = served_->stream("/generate", with({{"return_logprob", true}}));
  ASSERT_GT(events.size(), 1u);
  std::string before;
  for (const OrderedJson& event : events) {
    const std::string text = event["text"];
    EXPECT_TRUE(text.starts_with(before));
    EXPECT_EQ(event["meta_info"]["output_token_logprobs"].size(), event["output_ids"].size());
    before = text;
  }
  EXPECT_EQ(whole["text"], OrderedJson(before));
  EXPECT_EQ(events.back()["output_ids"], whole["output_ids"]);
  EXPECT_TRUE(events[0]["meta_info"]["finish_reason"].is_null());
}

TEST_F(SglangRoutes, BatchesAreLists) {
  const OrderedJson texts = ask({{"text", {"12+34=", "1+1="}}, {"rid", {"x", "y"}}});
  ASSERT_TRUE(texts.is_array());
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0]["text"], ask({})["text"]);
  EXPECT_EQ(texts[1]["meta_info"]["id"], "y");
  OrderedJson body = with({{"input_ids", {1, 2, 3}}});
  body.erase("text");
  EXPECT_TRUE(served_->json("/generate", body).is_object());
  EXPECT_TRUE(ask({{"text", {"1+1="}}}).is_array()) << "a batch of one";
}

TEST_F(SglangRoutes, Errors) {
  const Reply both = served_->post("/generate", with({{"input_ids", {1}}}));
  EXPECT_EQ(both.status, 400);
  EXPECT_TRUE(both.json()["error"]["message"].is_string());
  EXPECT_EQ(served_->post("/generate", with({{"lora_path", "nobody"}})).status, 400);
  EXPECT_EQ(served_->post("/generate", with({{"sampling_params", {{"max_new_tokens", 600}}}})).status, 400);
  EXPECT_EQ(served_->ask("POST", "/generate", "{").status, 400);
}

TEST_F(SglangRoutes, PauseContinueAndFlush) {
  EXPECT_EQ(served_->post("/pause_generation", {{"mode", "in_place"}}).json()["status"], "ok");
  EXPECT_EQ(served_->get("/is_paused").json()["is_paused"], true);
  auto answer = std::async(std::launch::async, [] { return ask({}); });
  ASSERT_TRUE(testing::eventually([] { return !served_->serving->idle(); }, 30s));
  EXPECT_EQ(answer.wait_for(100ms), std::future_status::timeout);
  EXPECT_EQ(served_->ask("POST", "/continue_generation").status, 200);
  EXPECT_EQ(answer.get()["text"], ask({})["text"]);
  EXPECT_EQ(served_->get("/flush_cache").status, 200);
  EXPECT_EQ(served_->post("/pause_generation", {{"mode", "sideways"}}).status, 400);
}

TEST_F(SglangRoutes, VllmsPauseAbortsByDefault) {
  served_->serving->pause(service::PauseMode::in_place);
  auto answer = std::async(std::launch::async, [] {
    return served_->json("/v1/completions", {{"prompt", "1+1="}, {"max_tokens", 5}});
  });
  ASSERT_TRUE(testing::eventually([] { return !served_->serving->idle(); }, 30s));
  EXPECT_EQ(served_->ask("POST", "/pause").json()["status"], "paused");
  EXPECT_EQ(answer.get()["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(served_->ask("POST", "/pause?mode=sideways").status, 400);
  EXPECT_EQ(served_->ask("POST", "/resume").json()["status"], "resumed");
  EXPECT_EQ(served_->ask("POST", "/pause?mode=wait").json()["status"], "paused");
  EXPECT_EQ(served_->ask("POST", "/resume").status, 200);
  EXPECT_EQ(served_->ask("POST", "/reset_prefix_cache").json()["success"], true);
}

// A trainer pauses while its clients go on asking.
TEST_F(SglangRoutes, VllmsPauseWaitsForWhatIsInFlightOnly) {
  service::Serving& serving = *served_->serving;
  serving.pause(service::PauseMode::in_place);
  const auto complete = [] { return served_->json("/v1/completions", {{"prompt", "1+1="}, {"max_tokens", 5}}); };
  auto before = std::async(std::launch::async, complete);
  ASSERT_TRUE(testing::eventually([] { return served_->serving->metrics().waiting == 1; }, 30s));
  std::atomic<bool> stop = false;
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&] {
      while (!stop) complete();
    });
  serving.resume();
  EXPECT_EQ(served_->ask("POST", "/pause?mode=wait").json()["status"], "paused");
  EXPECT_TRUE(serving.paused());
  EXPECT_EQ(before.get()["choices"].size(), 1u);
  stop = true;
  EXPECT_EQ(served_->ask("POST", "/resume").status, 200);
  for (std::thread& client : clients) client.join();
}

TEST_F(SglangRoutes, VllmsResetTakesTheKeysOfRunningRequestsToo) {
  auto answer = std::async(std::launch::async, [] {
    return ask({{"sampling_params", {{"max_new_tokens", 400}, {"temperature", 0}, {"ignore_eos", true}}}});
  });
  ASSERT_TRUE(testing::eventually([] { return !served_->serving->idle(); }, 30s));
  EXPECT_EQ(served_->ask("POST", "/reset_prefix_cache?reset_running_requests=true").json()["success"], true);
  EXPECT_EQ(answer.get()["meta_info"]["completion_tokens"], 400);
}

TEST_F(SglangRoutes, VllmsResetLeavesAPauseThatWaitsAlone) {
  service::Serving& serving = *served_->serving;
  bool was_pausing = false;
  for (int tries = 0; tries < 50 && !was_pausing; ++tries) {
    auto answer = std::async(std::launch::async, [] {
      return ask({{"sampling_params", {{"max_new_tokens", 400}, {"temperature", 0}, {"ignore_eos", true}}}});
    });
    ASSERT_TRUE(testing::eventually([&] { return !serving.idle(); }, 30s));
    auto paused = std::async(std::launch::async, [] { return served_->ask("POST", "/pause?mode=wait").json(); });
    ASSERT_TRUE(testing::eventually([&] { return serving.pausing() || serving.paused(); }, 30s));
    was_pausing = serving.pausing();
    EXPECT_EQ(served_->ask("POST", "/reset_prefix_cache?reset_running_requests=true").json()["success"], true);
    EXPECT_EQ(paused.get()["status"], "paused");
    EXPECT_TRUE(serving.paused());
    EXPECT_EQ(answer.get()["meta_info"]["completion_tokens"], 400);
    serving.resume();
  }
  EXPECT_TRUE(was_pausing);
}

TEST_F(SglangRoutes, AbortById) {
  served_->serving->pause(service::PauseMode::in_place);
  auto sglang = std::async(std::launch::async, [] { return ask({{"rid", "one"}}); });
  auto vllm = std::async(std::launch::async, [] {
    return served_->json("/v1/completions", {{"prompt", "1+1="}, {"max_tokens", 5}, {"request_id", "two"}});
  });
  ASSERT_TRUE(testing::eventually([] { return served_->serving->metrics().waiting == 2; }, 30s));
  EXPECT_EQ(served_->post("/abort_request", {{"rid", "one"}}).status, 200);
  EXPECT_EQ(served_->post("/abort_requests", {{"request_ids", {"two"}}}).json()["aborted"], 1);
  EXPECT_EQ(served_->post("/abort_request", OrderedJson::object()).status, 400);
  EXPECT_EQ(sglang.get()["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(vllm.get()["choices"][0]["finish_reason"], "abort");
  served_->serving->resume();
}

TEST_F(SglangRoutes, ModelInfoAndHealth) {
  const OrderedJson info = served_->get("/get_model_info").json();
  EXPECT_EQ(info["model_path"], testing::kModel);
  EXPECT_EQ(info["is_generation"], true);
  EXPECT_EQ(served_->get("/health_generate").status, 200);
}

// A probe must not wait for as long as a trainer pauses.
TEST(HealthGenerate, IsAnsweredInTime) {
  ServiceOptions options;
  options.health_timeout = 50ms;
  const Served served(std::move(options));
  served.serving->pause(service::PauseMode::in_place);
  const Reply paused = served.get("/health_generate");
  EXPECT_EQ(paused.status, 503);
  EXPECT_NE(paused.json()["error"]["message"].get<std::string>().find("50 ms"), std::string::npos) << paused.body;
  EXPECT_EQ(testing::on_server(served, [&] { return served.service->answers.size(); }), 0u);
  served.serving->resume();
  EXPECT_TRUE(testing::eventually([&] { return served.serving->idle(); }, 30s)) << "it was cancelled";
}

TEST_F(SglangRoutes, TokensInTokensOut) {
  const OrderedJson body = {
      {"token_ids", {1, 2, 3}},
      {"sampling_params", {{"temperature", 0}, {"max_tokens", 4}, {"logprobs", 2}, {"ignore_eos", true}}}};
  const OrderedJson answer = served_->json("/inference/v1/generate", body);
  EXPECT_TRUE(answer["request_id"].get<std::string>().starts_with("generate-tokens-"));
  const OrderedJson& choice = answer["choices"][0];
  EXPECT_EQ(choice["token_ids"].size(), 4u);
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  EXPECT_TRUE(choice["logprobs"]["content"][0]["bytes"].is_null());
  OrderedJson ids = OrderedJson::array();
  for (const OrderedJson& event : served_->stream("/inference/v1/generate", body)) {
    const OrderedJson& part = event["choices"][0]["token_ids"];
    ids.insert(ids.end(), part.begin(), part.end());
  }
  EXPECT_EQ(ids, choice["token_ids"]);
}

}  // namespace
}  // namespace lockstep::server
