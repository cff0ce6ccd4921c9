// Who may ask, what there is, and what happens when the client or the server goes away.
#include <gtest/gtest.h>

#include <future>

#include "server/block_worker.h"
#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::Client, testing::Reply, testing::Served;
using namespace std::chrono_literals;

const OrderedJson kShort = {{"prompt", "1+1="}, {"max_tokens", 2}};

TEST(Router, WhatThereIs) {
  const Served served;
  EXPECT_EQ(served.get("/v1/nothing").status, 404);
  EXPECT_EQ(served.get("/v1/nothing").json(), OrderedJson({{"detail", "Not Found"}}));
  EXPECT_EQ(served.get("/v1/completions").status, 405);
  EXPECT_EQ(served.ask("OPTIONS", "/v1/completions").status, 405);
  EXPECT_NE(served.ask("DELETE", "/flush_cache").head.find("\r\nAllow: GET, POST"), std::string::npos);
  EXPECT_NE(served.ask("DELETE", "/health").head.find("\r\nAllow: GET, POST"), std::string::npos);
  EXPECT_EQ(served.ask("DELETE", "/v1/models").status, 405);
  EXPECT_EQ(served.ask("ET", "/flush_cache").status, 405) << "the end of a method is none";
  EXPECT_EQ(served.get("/health").status, 200);
  EXPECT_EQ(served.get("/health").body, "");
  EXPECT_EQ(served.get("/ping").status, 200);
  EXPECT_EQ(served.get("/version").json(), OrderedJson({{"version", "test"}}));
  EXPECT_EQ(served.get("/load").json(), OrderedJson({{"server_load", 0}}));
}

TEST(Router, SeveralNamesOfTheBase) {
  const Served served({.model_names = {"one", "two"}});
  for (const char* name : {"one", "two"}) {
    OrderedJson body = kShort;
    body["model"] = name;
    EXPECT_EQ(served.json("/v1/completions", body)["model"], name);
  }
  EXPECT_EQ(served.json("/v1/completions", kShort)["model"], "one");
  EXPECT_EQ(served.get("/v1/models").json()["data"].size(), 2u);
}

TEST(Router, Keys) {
  const Served served({.model_names = {"base"}, .api_keys = {"first", "second"}});
  const auto status = [&](const std::string& path, const std::string& header) {
    return served.ask("GET", path, "", header.empty() ? "" : "Authorization: " + header + "\r\n").status;
  };
  EXPECT_EQ(status("/v1/models", "Bearer first"), 200);
  EXPECT_EQ(status("/v1/models", "bearer second"), 200);
  for (const char* wrong :
       {"", "Bearer wrong", "Bearer", "Bearer ", "first", "Basic first", "Bearer firs", "Bearer firstx"})
    EXPECT_EQ(status("/v1/models", wrong), 401) << wrong;
  EXPECT_EQ(served.get("/v1/models").body, R"({"error":"Unauthorized"})");
  for (const char* guarded : {"/is_paused", "/flush_cache", "/load", "/get_model_info", "/v1/nothing"})
    EXPECT_EQ(status(guarded, ""), 401) << guarded;
  EXPECT_EQ(served.post("/generate", {{"text", "x"}}).status, 401);
  EXPECT_EQ(served.post("/load_lora_adapter", {{"lora_name", "x"}}).status, 401);
  for (const char* open : {"/health", "/ping", "/version", "/metrics"}) EXPECT_EQ(status(open, ""), 200) << open;
}

TEST(Router, AClientThatGoesAwayIsCancelled) {
  const Served served;
  for (const bool stream : {true, false}) {
    Client client = served.connect();
    const OrderedJson body = {
        {"prompt", "1+1="}, {"max_tokens", 500}, {"ignore_eos", true}, {"n", 4}, {"stream", stream}};
    served.serving->pause(service::PauseMode::in_place);
    client.send(testing::request_text("POST", "/v1/completions", body.dump(), ""));
    ASSERT_TRUE(testing::eventually([&] { return !served.serving->idle(); }, 30s));
    client.reset();
    EXPECT_TRUE(testing::eventually(
        [&] { return testing::on_server(served, [&] { return served.service->answers.size(); }) == 0; }, 30s));
    served.serving->resume();
    EXPECT_TRUE(testing::eventually([&] { return served.serving->idle(); }, 30s));
  }
  EXPECT_EQ(served.serving->metrics().finished["abort"], 8);
  EXPECT_LT(served.serving->metrics().generation_tokens, 500);
}

TEST(Router, AFullQueueIs429) {
  service::ServingOptions options;
  options.max_queue = 2;
  const Served served({}, options);
  OrderedJson body = kShort;
  body["n"] = 2;
  served.serving->pause(service::PauseMode::in_place);
  auto first = std::async(std::launch::async, [&] { return served.post("/v1/completions", body); });
  ASSERT_TRUE(testing::eventually([&] { return served.serving->metrics().waiting == 2; }, 30s));
  EXPECT_EQ(served.post("/v1/completions", kShort).status, 429);
  OrderedJson two = kShort;
  two["prompt"] = {"1+1=", "2+2="};
  EXPECT_EQ(served.post("/v1/completions", two).status, 429);
  served.serving->resume();
  EXPECT_EQ(first.get().status, 200);
  EXPECT_EQ(served.post("/v1/completions", kShort).status, 200);
}

TEST(Router, AbortByAnIdWithOrWithoutItsPrefix) {
  const Served served;
  served.serving->pause(service::PauseMode::in_place);
  const auto asked = [&](const std::string& path, OrderedJson body, const std::string& id) {
    body["request_id"] = body["rid"] = id;
    return std::async(std::launch::async, [&served, path, body] { return served.post(path, body).status; });
  };
  const OrderedJson ids = {{"token_ids", {1}}, {"sampling_params", {{"max_tokens", 4}}}};
  auto bare = asked("/inference/v1/generate", ids, "a-1"), full = asked("/inference/v1/generate", ids, "a-2");
  auto other = asked("/generate", {{"text", "1+1="}, {"sampling_params", {{"max_new_tokens", 4}}}}, "b-1");
  ASSERT_TRUE(testing::eventually([&] { return served.serving->metrics().waiting == 3; }, 30s));
  const auto aborted = [&](const char* id) {
    return served.json("/abort_requests", {{"request_ids", {id}}})["aborted"];
  };
  EXPECT_EQ(aborted("1"), 0) << "a part of an id is none";
  EXPECT_EQ(aborted("tokens-a-1"), 0);
  EXPECT_EQ(aborted("a-1"), 1);
  EXPECT_EQ(aborted("generate-tokens-a-2"), 1);
  EXPECT_EQ(bare.get(), 200);
  EXPECT_EQ(full.get(), 200);
  served.serving->resume();
  EXPECT_EQ(other.get(), 200);
  EXPECT_EQ(served.serving->metrics().finished["abort"], 2);
}

TEST(Router, Draining) {
  const Served served;
  served.serving->pause(service::PauseMode::in_place);
  auto running = std::async(std::launch::async, [&] { return served.post("/v1/completions", kShort); });
  ASSERT_TRUE(testing::eventually([&] { return !served.serving->idle(); }, 30s));
  served.serving->drain();
  served.router->set_draining();
  EXPECT_EQ(served.post("/v1/completions", kShort).status, 503);
  EXPECT_EQ(
      served.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"max_tokens", 1}})
          .status,
      503);
  EXPECT_EQ(served.get("/health").status, 503);
  EXPECT_EQ(served.get("/metrics").status, 200);
  served.serving->resume();
  EXPECT_EQ(running.get().status, 200);
}

TEST(Router, AStreamThatIsAbortedEnds) {
  const Served served;
  const OrderedJson body = {{"prompt", "1+1="}, {"max_tokens", 400}, {"ignore_eos", true}, {"stream", true}};
  Client client = served.connect();
  client.send(testing::request_text("POST", "/v1/completions", body.dump(), "Connection: close\r\n"));
  std::string bytes = client.receive_to("\n\n");
  served.serving->abort_all();
  bytes += client.receive_all();
  const std::vector<OrderedJson> events = Served::events(testing::parsed_reply(bytes).body);
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "abort");
}

}  // namespace
}  // namespace lockstep::server
