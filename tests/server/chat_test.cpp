// POST /v1/chat/completions, /tokenize and /detokenize, through HTTP.
#include <gtest/gtest.h>

#include <future>

#include "server/block_worker.h"
#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::Served;
using namespace std::chrono_literals;

std::vector<std::string> keys(const OrderedJson& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names;
}
using Names = std::vector<std::string>;

class Chats : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = std::make_unique<Served>(); }
  static void TearDownTestSuite() { served_.reset(); }

  static OrderedJson with(OrderedJson more) {
    OrderedJson body = {
        {"messages", {{{"role", "user"}, {"content", "12+34="}}}}, {"temperature", 0}, {"max_tokens", 12}};
    if (!more.is_null()) body.update(more);
    return body;
  }
  static OrderedJson ask(const OrderedJson& more) { return served_->json("/v1/chat/completions", with(more)); }
  static std::vector<OrderedJson> stream(const OrderedJson& more) {
    return served_->stream("/v1/chat/completions", with(more));
  }
  // The prompt that the template makes.
  static std::string prompt(const OrderedJson& more) {
    OrderedJson asked = {{"return_prompt_text", true}};
    if (!more.is_null()) asked.update(more);
    return ask(asked)["prompt_text"];
  }

  static std::unique_ptr<Served> served_;
};
std::unique_ptr<Served> Chats::served_;

TEST_F(Chats, KeysAndTypes) {
  const OrderedJson answer = ask({{"logprobs", true}, {"top_logprobs", 2}, {"return_token_ids", true}});
  EXPECT_EQ(keys(answer), (Names{"id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
                                 "usage", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
                                 "ec_transfer_params", "metrics", "adapter_version"}));
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(answer["object"], "chat.completion");
  const OrderedJson& choice = answer["choices"][0];
  EXPECT_EQ(keys(choice),
            (Names{"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}));
  EXPECT_EQ(keys(choice["message"]),
            (Names{"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}));
  EXPECT_EQ(choice["message"]["role"], "assistant");
  const OrderedJson& token = choice["logprobs"]["content"][0];
  EXPECT_EQ(keys(token), (Names{"token", "logprob", "bytes", "top_logprobs"}));
  ASSERT_EQ(token["top_logprobs"].size(), 2u);
  EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]) << "greedy draws the most likely";
  EXPECT_TRUE(token["bytes"].is_array());
  EXPECT_EQ(answer["prompt_token_ids"].size(), answer["usage"]["prompt_tokens"]);
}

TEST_F(Chats, AStreamIsTheWholeAnswerInParts) {
  const OrderedJson more = {{"logprobs", true}, {"top_logprobs", 1}, {"return_token_ids", true}};
  const OrderedJson whole = ask(more);
  const std::vector<OrderedJson> events = stream(more);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], OrderedJson({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
  std::string text;
  OrderedJson ids = OrderedJson::array(), logprobs = ids;
  for (size_t i = 1; i < events.size(); ++i) {
    const OrderedJson& choice = events[i]["choices"][0];
    EXPECT_EQ(keys(choice["delta"]), Names{"content"});
    EXPECT_EQ(choice.contains("stop_reason"), i + 1 == events.size());
    text += choice["delta"]["content"].get<std::string>();
    ids.insert(ids.end(), choice["token_ids"].begin(), choice["token_ids"].end());
    const OrderedJson& content = choice["logprobs"]["content"];
    logprobs.insert(logprobs.end(), content.begin(), content.end());
  }
  EXPECT_EQ(whole["choices"][0]["message"]["content"], OrderedJson(text));
  EXPECT_EQ(ids, whole["choices"][0]["token_ids"]);
  EXPECT_EQ(logprobs, whole["choices"][0]["logprobs"]["content"]);
}

TEST_F(Chats, SeveralSamplesAndUsage) {
  const std::vector<OrderedJson> events =
      stream({{"n", 2}, {"temperature", 1}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(events[0]["choices"][0]["index"], 0);
  EXPECT_EQ(events[1]["choices"][0]["index"], 1);
  EXPECT_TRUE(events[1]["choices"][0]["delta"].contains("role"));
  EXPECT_EQ(events.back()["choices"].size(), 0u);
  EXPECT_GE(events.back()["usage"]["completion_tokens"], 2);
}

TEST_F(Chats, WhatTheTemplateSees) {
  EXPECT_EQ(prompt({}), "user:12+34=;assistant:");
  EXPECT_EQ(prompt({{"tools", {{{"type", "function"}}}}}), "user:12+34=;tools:1;assistant:");
  EXPECT_EQ(prompt({{"chat_template_kwargs", {{"mood", "good"}}}}), "user:12+34=;mood:good;assistant:");
  EXPECT_EQ(prompt({{"add_generation_prompt", false}}), "user:12+34=;");
}

TEST_F(Chats, GoingOnWithTheLastMessage) {
  const OrderedJson messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "12+3"}}};
  const OrderedJson more = {{"messages", messages}, {"continue_final_message", true}, {"add_generation_prompt", false}};
  EXPECT_EQ(prompt(more), "user:a;assistant:12+3");
  OrderedJson echo = more;
  echo["echo"] = true;
  const std::string text = ask(more)["choices"][0]["message"]["content"];
  EXPECT_EQ(ask(echo)["choices"][0]["message"]["content"], "12+3" + text);
}

TEST_F(Chats, TheRestOfTheContextIsTheDefault) {
  const OrderedJson answer = ask({{"max_tokens", nullptr}, {"ignore_eos", true}});
  EXPECT_EQ(answer["usage"]["total_tokens"], 512);
}

// A whole context need not fit the KV pool: a chat without max_tokens gets what does.
TEST(ChatsOfASmallPool, GetWhatFits) {
  constexpr int64_t kBlocks = 4, kTokens = kBlocks * 16 + 1;
  const recipes::Base& base = testing::Model::get().base;
  service::ServingOptions options;
  options.engine.kv_bytes =
      kBlocks * base.config.layers * base.model->kv_layer_elements() * static_cast<int64_t>(sizeof(float));
  const Served served({}, options);
  EXPECT_EQ(served.get("/v1/models").json()["data"][0]["max_model_len"], kTokens);
  const OrderedJson answer = served.json(
      "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "1+1="}}}}, {"ignore_eos", true}});
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["total_tokens"], kTokens);
}

// A request's own template may take as long as it is let, so nobody else waits for it.
TEST(ChatsWithTheirOwnTemplate, AreRenderedBesideTheServersThread) {
  ServiceOptions options;
  options.request_chat_template = true;
  options.render_timeout = 50ms;
  const Served served(std::move(options));
  const OrderedJson messages = {{{"role", "user"}, {"content", "1+1="}}};
  const OrderedJson plain = {{"messages", messages}, {"max_tokens", 3}, {"return_prompt_text", true}};
  OrderedJson own = plain, endless = plain;
  own["chat_template"] = "{{ messages[0].content }}!";
  endless["chat_template"] = "{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}";
  EXPECT_EQ(served.json("/v1/chat/completions", own)["prompt_text"], "1+1=!");
  EXPECT_GT(served.json("/tokenize", own)["count"], 0);
  for (const char* path : {"/v1/chat/completions", "/tokenize"}) {
    const testing::Reply slow = served.post(path, endless);
    EXPECT_EQ(slow.status, 400);
    EXPECT_NE(slow.body.find("too much time"), std::string::npos) << slow.body;
  }
  testing::BlockWorker block(served.service->template_worker);
  auto waiting = std::async(std::launch::async, [&] { return served.post("/v1/chat/completions", own); });
  ASSERT_TRUE(testing::eventually(
      [&] { return testing::on_server(served, [&] { return served.router->is_reading(); }); }, 30s));
  EXPECT_EQ(served.get("/health").status, 200);
  EXPECT_EQ(served.json("/v1/chat/completions", plain)["choices"].size(), 1u);
  EXPECT_GT(served.json("/tokenize", plain)["count"], 0);
  EXPECT_TRUE(testing::on_server(served, [&] { return served.router->is_reading(); })) << "it waited all the time";
  block.release();
  EXPECT_EQ(waiting.get().status, 200);
}

TEST_F(Chats, Errors) {
  const auto status = [](const OrderedJson& more) { return served_->post("/v1/chat/completions", with(more)).status; };
  EXPECT_EQ(status({{"messages", OrderedJson::array()}}), 400);
  EXPECT_EQ(status({{"chat_template", "x"}}), 400) << "not trusted";
  EXPECT_EQ(status({{"model", "nobody"}}), 404);
  EXPECT_EQ(status({{"max_tokens", 600}}), 400);
  EXPECT_EQ(status({{"messages", {{{"role", "user"}, {"content", std::string(2000, '1')}}}}}), 400);
}

TEST_F(Chats, Tokenize) {
  const OrderedJson text = served_->json("/tokenize", {{"prompt", "1+1="}, {"return_token_strs", true}});
  EXPECT_EQ(text["count"], 4);
  EXPECT_EQ(text["max_model_len"], 512);
  EXPECT_EQ(text["token_strs"], OrderedJson({"1", "+", "1", "="}));
  EXPECT_EQ(served_->json("/detokenize", {{"tokens", text["tokens"]}})["prompt"], "1+1=");
  const OrderedJson chat = served_->json("/tokenize", {{"messages", {{{"role", "user"}, {"content", "1"}}}}});
  EXPECT_EQ(served_->json("/detokenize", {{"tokens", chat["tokens"]}})["prompt"], "user:1;assistant:");
  EXPECT_EQ(served_->post("/detokenize", {{"tokens", {999999}}}).status, 400);
}

}  // namespace
}  // namespace lockstep::server
