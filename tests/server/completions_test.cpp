// POST /v1/completions of the embedded model, through HTTP.
#include <gtest/gtest.h>

#include <numeric>

#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::Reply, testing::Served;

std::vector<std::string> keys(const OrderedJson& object) {
  std::vector<std::string> names;
  for (const auto& item : object.items()) names.push_back(item.key());
  return names;
}

using Names = std::vector<std::string>;

class Completions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = std::make_unique<Served>(); }
  static void TearDownTestSuite() { served_.reset(); }

  static OrderedJson with(OrderedJson more) {
    OrderedJson body = {{"prompt", "12+34="}, {"temperature", 0}, {"max_tokens", 20}};
    if (!more.is_null()) body.update(more);
    return body;
  }
  static OrderedJson ask(const OrderedJson& more) { return served_->json("/v1/completions", with(more)); }
  static OrderedJson first(const OrderedJson& more) { return ask(more)["choices"][0]; }
  static std::vector<OrderedJson> stream(const OrderedJson& more) {
    return served_->stream("/v1/completions", with(more));
  }
  static int status(const OrderedJson& more) { return served_->post("/v1/completions", with(more)).status; }

  static std::unique_ptr<Served> served_;
};
std::unique_ptr<Served> Completions::served_;

TEST_F(Completions, KeysAndTypes) {
  const OrderedJson answer = ask({{"model", "base"}});
  EXPECT_EQ(keys(answer), (Names{"id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
                                 "usage", "kv_transfer_params", "ec_transfer_params", "metrics", "adapter_version"}));
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "base");
  EXPECT_TRUE(answer["adapter_version"].is_null());
  const OrderedJson& choice = answer["choices"][0];
  EXPECT_EQ(keys(choice), (Names{"index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
                                 "prompt_logprobs", "prompt_token_ids", "routed_experts"}));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null()) << "the end token";
  EXPECT_EQ(keys(answer["usage"]), (Names{"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details",
                                          "completion_tokens_details"}));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(answer["usage"]["total_tokens"].get<int>(), 6 + answer["usage"]["completion_tokens"].get<int>());
}

TEST_F(Completions, TheEndTokenIsATokenWithoutText) {
  const OrderedJson answer = ask({{"return_token_ids", true}, {"logprobs", 0}});
  const OrderedJson& choice = answer["choices"][0];
  EXPECT_EQ(choice["token_ids"].back(), 0);
  EXPECT_EQ(choice["token_ids"].size(), answer["usage"]["completion_tokens"]);
  EXPECT_EQ(choice["logprobs"]["tokens"].back(), "<|endoftext|>");
  EXPECT_EQ(choice["text"].get<std::string>().find("<|"), std::string::npos);
  EXPECT_EQ(choice["prompt_token_ids"].size(), 6u);
  const OrderedJson shown = first({{"skip_special_tokens", false}, {"include_stop_str_in_output", true}});
  EXPECT_TRUE(shown["text"].get<std::string>().ends_with("<|endoftext|>"));
}

TEST_F(Completions, AStreamIsTheWholeAnswerInParts) {
  const OrderedJson more = {{"logprobs", 2}, {"return_token_ids", true}, {"return_token_versions", true}};
  const OrderedJson whole = first(more);
  const std::vector<OrderedJson> events = stream(more);
  ASSERT_GT(events.size(), 2u);
  OrderedJson ids = OrderedJson::array(), versions = ids;
  OrderedJson logprobs = {{"text_offset", ids}, {"token_logprobs", ids}, {"tokens", ids}, {"top_logprobs", ids}};
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    const OrderedJson& choice = events[i]["choices"][0];
    EXPECT_EQ(keys(choice), (Names{"index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids",
                                   "token_ids", "token_versions"}));
    EXPECT_EQ(choice["prompt_token_ids"].is_null(), i > 0);
    EXPECT_EQ(choice["finish_reason"].is_null(), i + 1 < events.size());
    text += choice["text"].get<std::string>();
    ids.insert(ids.end(), choice["token_ids"].begin(), choice["token_ids"].end());
    versions.insert(versions.end(), choice["token_versions"].begin(), choice["token_versions"].end());
    for (auto& [key, list] : logprobs.items())
      list.insert(list.end(), choice["logprobs"][key].begin(), choice["logprobs"][key].end());
  }
  EXPECT_EQ(whole["text"], OrderedJson(text));
  EXPECT_EQ(ids, whole["token_ids"]);
  EXPECT_EQ(versions, whole["token_versions"]);
  EXPECT_EQ(logprobs, whole["logprobs"]);
}

TEST_F(Completions, UsageOfAStream) {
  const std::vector<OrderedJson> events =
      stream({{"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  const int64_t total = ask({})["usage"]["completion_tokens"];
  EXPECT_EQ(events.back()["choices"], OrderedJson::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], total);
  int64_t before = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const int64_t now = events[i]["usage"]["completion_tokens"];
    EXPECT_GT(now, before);
    before = now;
  }
  EXPECT_EQ(before, total);
  for (const OrderedJson& event : stream({})) EXPECT_FALSE(event.contains("usage"));
}

TEST_F(Completions, ChoicesArePromptMajor) {
  const OrderedJson answer = ask({{"prompt", {"12+34=", "1+1="}}, {"n", 2}, {"temperature", 1}, {"seed", 5}});
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(answer["choices"][i]["index"], i);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 10);
  const OrderedJson second = ask({{"prompt", "1+1="}, {"n", 2}, {"temperature", 1}, {"seed", 5}});
  EXPECT_EQ(second["choices"][0]["text"], answer["choices"][2]["text"]);
  EXPECT_EQ(second["choices"][1]["text"], answer["choices"][3]["text"]);
  std::vector<std::string> texts(4);
  for (const OrderedJson& event : stream({{"prompt", {"12+34=", "1+1="}}, {"n", 2}, {"temperature", 1}, {"seed", 5}}))
    texts[event["choices"][0]["index"]] += event["choices"][0]["text"].get<std::string>();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(answer["choices"][i]["text"], OrderedJson(texts[i]));
}

TEST_F(Completions, IdsAreTheTextsTokens) {
  const std::vector<int32_t> ids = testing::Model::get().tokenizer.encode("12+34=");
  EXPECT_EQ(first({{"prompt", ids}})["text"], first({})["text"]);
  EXPECT_EQ(first({{"prompt", {ids, ids}}})["text"], first({})["text"]);
}

TEST_F(Completions, SeedsRepeatAndOthersDoNot) {
  const OrderedJson seeded = {{"temperature", 1}, {"seed", 11}, {"n", 4}};
  EXPECT_EQ(ask(seeded)["choices"], ask(seeded)["choices"]);
  const OrderedJson fresh = {{"temperature", 2}, {"n", 4}, {"ignore_eos", true}};
  EXPECT_NE(ask(fresh)["choices"], ask(fresh)["choices"]) << "80 tokens at temperature 2 alike";
}

TEST_F(Completions, Echo) {
  const std::string answer = first({})["text"];
  EXPECT_EQ(first({{"echo", true}})["text"], "12+34=" + answer);
  std::string streamed;
  for (const OrderedJson& event : stream({{"echo", true}})) streamed += event["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, "12+34=" + answer);
  const OrderedJson logprobs = first({{"echo", true}, {"logprobs", 1}})["logprobs"];
  std::string text;
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], text.size());
    text += logprobs["tokens"][i].get<std::string>();
  }
  EXPECT_EQ(text, "12+34=" + answer + "<|endoftext|>");
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["token_logprobs"][1].is_number_float());
  EXPECT_GE(logprobs["top_logprobs"][1].size(), 1u);
  EXPECT_LE(logprobs["top_logprobs"][1].size(), 2u);
}

TEST_F(Completions, EchoAloneScoresThePrompt) {
  const OrderedJson answer = ask({{"echo", true}, {"logprobs", 0}, {"max_tokens", 0}});
  const OrderedJson& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "12+34=");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 6u);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  const OrderedJson longer = first({{"echo", true}, {"logprobs", 0}});
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(choice["logprobs"]["token_logprobs"][i], longer["logprobs"]["token_logprobs"][i]);
}

TEST_F(Completions, PromptLogprobs) {
  const OrderedJson list = first({{"prompt_logprobs", 2}})["prompt_logprobs"];
  ASSERT_EQ(list.size(), 6u);
  EXPECT_TRUE(list[0].is_null());
  const std::vector<int32_t> ids = testing::Model::get().tokenizer.encode("12+34=");
  for (size_t i = 1; i < 6; ++i) {
    const OrderedJson& own = list[i].at(std::to_string(ids[i]));
    EXPECT_EQ(keys(own), (Names{"logprob", "rank", "decoded_token"}));
    EXPECT_GE(own["rank"], 1);
    EXPECT_GE(list[i].size(), 2u);
    EXPECT_LE(list[i].size(), 3u);
  }
  EXPECT_TRUE(first({})["prompt_logprobs"].is_null());
}

TEST_F(Completions, StopStringsCrossTokens) {
  const std::string plain = first({})["text"];
  ASSERT_GE(plain.size(), 4u);
  const std::string stop = plain.substr(1, 2);
  const size_t at = plain.find(stop);
  const OrderedJson cut = first({{"stop", stop}});
  EXPECT_EQ(cut["text"], plain.substr(0, at));
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(cut["stop_reason"], stop);
  EXPECT_EQ(first({{"stop", {stop}}, {"include_stop_str_in_output", true}})["text"], plain.substr(0, at + 2));
  std::string streamed;
  for (const OrderedJson& event : stream({{"stop", stop}})) streamed += event["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, plain.substr(0, at)) << "nothing of a stop string is shown";
}

TEST_F(Completions, StopTokensAndMinTokens) {
  const OrderedJson plain = first({{"return_token_ids", true}});
  const int32_t second = plain["token_ids"][1];
  const OrderedJson cut = first({{"stop_token_ids", {second}}, {"return_token_ids", true}});
  EXPECT_EQ(cut["stop_reason"], second);
  EXPECT_LE(cut["token_ids"].size(), 2u);
  EXPECT_EQ(first({{"ignore_eos", true}})["finish_reason"], "length");
  const OrderedJson longer = first({{"min_tokens", 20}, {"return_token_ids", true}});
  EXPECT_EQ(longer["token_ids"].size(), 20u);
  for (size_t i = 0; i + 1 < 20; ++i) EXPECT_NE(longer["token_ids"][i], 0);
}

TEST_F(Completions, TokensAsIds) {
  const OrderedJson logprobs = first({{"logprobs", 1}, {"return_tokens_as_token_ids", true}})["logprobs"];
  EXPECT_TRUE(logprobs["tokens"][0].get<std::string>().starts_with("token_id:"));
  EXPECT_TRUE(logprobs["top_logprobs"][0].begin().key().starts_with("token_id:"));
}

TEST_F(Completions, LogitBias) {
  EXPECT_EQ(first({{"logit_bias", {{"5", 100}}}, {"max_tokens", 2}, {"return_token_ids", true}})["token_ids"],
            OrderedJson({5, 5}));
}

TEST_F(Completions, Errors) {
  const Reply unknown = served_->post("/v1/completions", with({{"model", "nobody"}}));
  EXPECT_EQ(unknown.status, 404);
  const OrderedJson error = unknown.json()["error"];
  EXPECT_EQ(keys(error), (Names{"message", "type", "param", "code"}));
  EXPECT_EQ(error["type"], "NotFoundError");
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["code"], 404);
  EXPECT_EQ(status({{"prompt", {1000000}}}), 400);
  EXPECT_EQ(status({{"prompt", std::vector<int>(600, 5)}}), 400);
  EXPECT_EQ(status({{"max_tokens", 507}}), 400) << "6 + 507 > 512";
  EXPECT_EQ(status({{"max_tokens", 506}, {"temperature", 1}}), 200);
  EXPECT_EQ(status({{"min_tokens", 30}}), 400);
  EXPECT_EQ(status({{"prompt", std::string(1 << 20, '1')}}), 400);
  EXPECT_EQ(status({{"n", 5000}, {"temperature", 1}}), 400) << "more than may wait";
  EXPECT_EQ(status({{"adapter_version", 1}}), 400) << "the base has no versions";
  EXPECT_EQ(status({{"temperature", -1}, {"stream", true}}), 400) << "before the stream begins";
  EXPECT_EQ(status({{"prompt", std::vector<int>(500, 1)},
                    {"n", 2000},
                    {"temperature", 1},
                    {"max_tokens", 1},
                    {"prompt_logprobs", 20}}),
            400)
      << "each of the choices would repeat them";
  EXPECT_EQ(served_->ask("POST", "/v1/completions", "{\"model\": ").status, 400);
  EXPECT_EQ(served_->ask("POST", "/v1/completions", "").status, 400);
  EXPECT_EQ(status({}), 200) << "and it goes on serving";
}

}  // namespace
}  // namespace lockstep::server
