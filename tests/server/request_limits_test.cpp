// What one request may make the server hold: a 400 that names the field, before anything is queued.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::Client, testing::Reply, testing::Served;
using namespace std::chrono_literals;

class RequestLimits : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    served_ = std::make_unique<Served>();
    served_->serving->pause(service::PauseMode::in_place);
  }
  static void TearDownTestSuite() { served_.reset(); }
  // Nothing may be left: what is accepted is cancelled with its client.
  void TearDown() override {
    EXPECT_TRUE(testing::eventually([] { return served_->serving->idle(); }, 30s));
  }

  static std::string refused(const std::string& path, const OrderedJson& body, const std::string& limit,
                             const std::string& headers = "") {
    const Reply reply = served_->ask("POST", path, body.dump(), headers);
    EXPECT_EQ(reply.status, 400) << reply.body.substr(0, 1000);
    if (reply.status != 400) return "";
    const OrderedJson error = reply.json()["error"];
    EXPECT_NE(error["message"].get<std::string>().find(limit), std::string::npos) << error;
    const auto param = error.find("param");  // SGLang's errors have none
    return param != error.end() && param->is_string() ? param->get<std::string>() : "";
  }
  // Whether the samples of `body` are queued.
  static bool accepted(const std::string& path, const OrderedJson& body, int64_t samples) {
    Client client = served_->connect();
    client.send(testing::request_text("POST", path, body.dump(), ""));
    return testing::eventually([&] { return served_->serving->metrics().waiting == samples; }, 30s);
  }
  static OrderedJson completion(const OrderedJson& more) {
    OrderedJson body = {{"prompt", "1+1="}, {"max_tokens", 4}};
    body.update(more);
    return body;
  }

  static std::unique_ptr<Served> served_;
};
std::unique_ptr<Served> RequestLimits::served_;

TEST_F(RequestLimits, LogprobsOfTokens) {
  const std::string limit = "16777216";
  OrderedJson body = {{"prompt", "1+1="}, {"n", 4096}, {"max_tokens", 256}, {"logprobs", 16}};
  EXPECT_EQ(refused("/v1/completions", body, limit), "logprobs");
  const OrderedJson chat = {
      {"messages", {{{"role", "user"}, {"content", "x"}}}}, {"n", 4000}, {"logprobs", true}, {"top_logprobs", 20}};
  EXPECT_EQ(refused("/v1/chat/completions", chat, limit), "top_logprobs") << "of what is left of the context";
  const OrderedJson ids = {{"token_ids", {1}},
                           {"sampling_params", {{"n", 4096}, {"max_tokens", 400}, {"logprobs", 20}}}};
  EXPECT_EQ(refused("/inference/v1/generate", ids, limit), "sampling_params.logprobs");
  const OrderedJson sglang = {{"text", "1+1="},
                              {"return_logprob", true},
                              {"top_logprobs_num", 20},
                              {"sampling_params", {{"n", 4000}, {"max_new_tokens", 300}}}};
  refused("/generate", sglang, "`top_logprobs_num`");
  refused("/generate", sglang, limit);
  body["logprobs"] = 15;
  EXPECT_TRUE(accepted("/v1/completions", body, 4096)) << "just as many";
}

TEST_F(RequestLimits, LogprobsOfPrompts) {
  const OrderedJson prompt = OrderedJson(std::vector<int>(400, 1));
  EXPECT_EQ(refused("/v1/completions", {{"prompt", prompt}, {"n", 4000}, {"prompt_logprobs", 20}}, "8388608"),
            "prompt_logprobs");
  refused("/generate",
          {{"input_ids", prompt},
           {"return_logprob", true},
           {"logprob_start_len", 0},
           {"top_logprobs_num", 20},
           {"sampling_params", {{"n", 4000}, {"max_new_tokens", 1}}}},
          "`logprob_start_len`");
}

// An update with all that its choices repeat of their prompt is made on the server's thread.
TEST_F(RequestLimits, WhatAStreamRepeats) {
  const OrderedJson prompt = OrderedJson(std::vector<int>(400, 1));
  OrderedJson body = {{"prompt", prompt}, {"n", 32}, {"echo", true}, {"logprobs", 20}, {"max_tokens", 4}};
  EXPECT_TRUE(accepted("/v1/completions", body, 32));
  body["stream"] = true;
  EXPECT_EQ(refused("/v1/completions", body, "262144"), "prompt_logprobs");
  const OrderedJson chat = {
      {"messages", {{{"role", "user"}, {"content", "x"}}}}, {"n", 2}, {"return_prompt_text", true}};
  EXPECT_TRUE(accepted("/v1/chat/completions", chat, 2));
  OrderedJson sglang = {{"text", "1+1="},
                        {"stream", true},
                        {"return_logprob", true},
                        {"top_logprobs_num", 20},
                        {"sampling_params", {{"n", 200}, {"max_new_tokens", 400}, {"temperature", 1}}}};
  refused("/generate", sglang, "33554432");
  sglang["stream"] = false;
  EXPECT_TRUE(accepted("/generate", sglang, 200));
}

// A stop string has a matcher in every sample.
TEST_F(RequestLimits, StopsAndBiases) {
  const std::string longest(1024, 's');
  EXPECT_EQ(refused("/v1/completions", completion({{"stop", {"a", longest + "s"}}}), "1024"), "stop");
  EXPECT_TRUE(accepted("/v1/completions", completion({{"stop", {"a", longest}}}), 1));
  EXPECT_EQ(refused("/v1/completions", completion({{"stop_token_ids", std::vector<int>(16385, 1)}}), "16384"),
            "stop_token_ids");
  EXPECT_TRUE(accepted("/v1/completions", completion({{"stop_token_ids", std::vector<int>(16384, 1)}}), 1));
  OrderedJson bias = OrderedJson::object();
  for (int i = 0; i < 16385; ++i) bias.get_ref<OrderedJson::object_t&>().emplace_back(fmt::format("{:06}", i), 1);
  EXPECT_EQ(refused("/v1/completions", completion({{"logit_bias", std::move(bias)}}), "16384"), "logit_bias");
}

TEST_F(RequestLimits, WhatEveryChoiceRepeats) {
  const std::string longest(1024, 'i');
  const std::string limit = "1024";
  EXPECT_EQ(refused("/v1/completions", completion({{"request_id", longest + "i"}}), limit), "request_id");
  EXPECT_TRUE(accepted("/v1/completions", completion({{"request_id", longest}}), 1));
  EXPECT_EQ(refused("/v1/completions", completion(OrderedJson::object()), limit, "X-Request-Id: " + longest + "i\r\n"),
            "X-Request-Id");
  refused("/generate", {{"text", "1+1="}, {"rid", longest + "i"}}, limit);
  EXPECT_EQ(refused("/v1/chat/completions", {{"messages", {{{"role", longest + "i"}, {"content", "x"}}}}}, limit),
            "messages.0.role");
  const OrderedJson prompt = OrderedJson(std::vector<int>(50'000, 1));
  for (const char* field : {"echo", "return_token_ids"})
    EXPECT_EQ(refused("/v1/completions", {{"prompt", prompt}, {"n", 4096}, {field, true}}, "1073741824"), field);
}

}  // namespace
}  // namespace lockstep::server
