// Large bodies are read beside the server's thread: nobody waits for them, and they are answered like small ones.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "server/block_worker.h"
#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::Client, testing::eventually, testing::on_server, testing::Reply, testing::request_text, testing::Served;
using namespace std::chrono_literals;

const OrderedJson kShort = {{"prompt", "1+1="}, {"max_tokens", 2}, {"temperature", 0}};

// Of an unknown field, which is read and ignored.
OrderedJson padded(OrderedJson body, size_t bytes = size_t{4} << 20) {
  body["padding"] = std::string(bytes, 'x');
  return body;
}

bool is_reading(const Served& served) {
  return on_server(served, [&] { return served.router->is_reading(); });
}

// Holds the worker that reads.
class Block : public testing::BlockWorker {
 public:
  explicit Block(const Served& served) : BlockWorker(served.service->prompt_worker) {}
};

Client sent(const Served& served, const std::string& path, const OrderedJson& body) {
  Client client = served.connect();
  client.send(request_text("POST", path, body.dump(), "Connection: close\r\n"));
  return client;
}

Reply answer_of(Client& client) {
  std::string all;
  for (std::string bytes = client.receive(60s); !bytes.empty(); bytes = client.receive(60s)) all += bytes;
  return testing::parsed_reply(all);
}

TEST(LargeRequests, NobodyWaitsForThem) {
  const Served served;
  Block block(served);
  Client large = sent(served, "/v1/completions", padded(kShort));
  ASSERT_TRUE(eventually([&] { return is_reading(served); }, 30s));
  EXPECT_EQ(served.get("/health").status, 200);
  EXPECT_EQ(served.json("/v1/completions", kShort)["choices"].size(), 1u);
  EXPECT_EQ(served.json("/tokenize", {{"prompt", "1+1="}})["count"], 4);
  EXPECT_TRUE(is_reading(served)) << "it waited all the time";
  block.release();
  EXPECT_EQ(answer_of(large).status, 200);
  EXPECT_FALSE(is_reading(served));
}

TEST(LargeRequests, AreAnsweredLikeSmallOnes) {
  const Served served;
  const OrderedJson chat = {{"role", "user"}, {"content", "1+1="}};
  const std::vector<std::pair<std::string, OrderedJson>> requests = {
      {"/v1/completions", {{"prompt", {"1+1=", "2+2="}}, {"max_tokens", 3}, {"n", 2}, {"seed", 7}, {"logprobs", 1}}},
      {"/v1/chat/completions", {{"messages", {chat}}, {"max_tokens", 3}, {"temperature", 0}}},
      {"/generate", {{"text", "1+1="}, {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 3}}}}},
      {"/inference/v1/generate",
       {{"token_ids", {1, 2, 3}}, {"sampling_params", {{"temperature", 0}, {"max_tokens", 3}}}}},
      {"/tokenize", {{"messages", {chat}}, {"return_token_strs", true}}},
      {"/detokenize", {{"tokens", {1, 2, 3}}}},
      {"/pause_generation", {{"mode", "in_place"}}},
      {"/continue_generation", OrderedJson::object()},
      {"/abort_request", {{"rid", "nobody"}}},
      {"/abort_requests", {{"request_ids", {"nobody"}}}},
      {"/v1/completions", {{"prompt", ""}}},
      {"/v1/completions", {{"prompt", "x"}, {"model", "nobody"}}},
      {"/generate", {{"text", "x"}, {"lora_path", "nobody"}}},
      {"/v1/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "/nowhere"}}},
      {"/v1/unload_lora_adapter", {{"lora_name", "a"}}},
      {"/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", "/nowhere"}}},
      {"/unload_lora_adapter", {{"lora_name", "a"}}}};
  // What differs from request to request.
  const auto plain = [](const Reply& reply) {
    OrderedJson body = OrderedJson::parse(reply.body, nullptr, false);
    if (!body.is_object()) return reply.body;
    for (const char* key : {"id", "created", "request_id"}) body.erase(key);
    if (body.contains("meta_info"))
      for (const char* key : {"id", "e2e_latency", "cached_tokens"}) body["meta_info"].erase(key);
    return body.dump();
  };
  for (const auto& [path, body] : requests) {
    const Reply small = served.post(path, body), large = served.post(path, padded(body, 100'000));
    EXPECT_NE(small.status, 0) << path;
    EXPECT_EQ(large.status, small.status) << path;
    EXPECT_EQ(large.type(), small.type()) << path;
    EXPECT_EQ(plain(large), plain(small)) << path;
  }
  OrderedJson body = padded(kShort, 100'000);
  EXPECT_EQ(served.stream("/v1/completions", body).size(), 2u);
  EXPECT_EQ(served.ask("POST", "/v1/completions", body.dump() + "}").status, 400) << "no JSON";
  EXPECT_EQ(served.ask("POST", "/v1/completions", std::string(300'000, '[')).status, 400);
}

TEST(LargeRequests, KeepTheOrderOfTheirConnection) {
  const Served served;
  Block block(served);
  Client client = served.connect();
  OrderedJson first = padded(kShort), second = kShort;
  first["request_id"] = "first";
  second["request_id"] = "second";
  client.send(request_text("POST", "/v1/completions", first.dump(), "") +
              request_text("POST", "/v1/completions", second.dump(), "Connection: close\r\n"));
  ASSERT_TRUE(eventually([&] { return is_reading(served); }, 30s));
  block.release();
  std::string all;
  for (std::string bytes = client.receive(60s); !bytes.empty(); bytes = client.receive(60s)) all += bytes;
  const size_t one = all.find("cmpl-first"), two = all.find("cmpl-second");
  EXPECT_NE(two, std::string::npos);
  EXPECT_LT(one, two);
}

TEST(LargeRequests, AClientThatGoesAwayIsForgotten) {
  const Served served;
  Block block(served);
  Client client = sent(served, "/v1/completions", padded(kShort));
  ASSERT_TRUE(eventually([&] { return is_reading(served); }, 30s));
  client.reset();
  ASSERT_TRUE(eventually([&] { return served.connections() == 0; }, 30s));
  block.release();
  ASSERT_TRUE(eventually([&] { return !is_reading(served); }, 30s));
  EXPECT_EQ(served.json("/v1/completions", kShort)["choices"].size(), 1u);
  service::ServingMetrics metrics = served.serving->metrics();
  EXPECT_EQ(metrics.prompt_tokens, 4) << "of the small one";
  EXPECT_EQ(metrics.finished["abort"], 0);
}

TEST(LargeRequests, TooManyBytesAre503) {
  ServiceOptions options;
  options.max_held_bytes = 300'000;
  const Served served(std::move(options));
  Block block(served);
  Client first = sent(served, "/v1/completions", padded(kShort, 100'000));
  ASSERT_TRUE(eventually([&] { return is_reading(served); }, 30s));
  EXPECT_EQ(served.post("/v1/completions", padded(kShort, 100'000)).status, 503);
  const Reply sglang = served.post("/generate", padded({{"text", "1+1="}}, 100'000));
  EXPECT_EQ(sglang.status, 503);
  EXPECT_EQ(sglang.json()["error"].size(), 1u) << "SGLang's shape";
  EXPECT_EQ(served.post("/v1/completions", kShort).status, 200);
  block.release();
  EXPECT_EQ(answer_of(first).status, 200);
  // The body goes when its reader has ended, which may be after its answer has arrived.
  const auto has_room = [&] { return served.post("/v1/completions", padded(kShort, 100'000)).status == 200; };
  EXPECT_TRUE(eventually(has_room, 30s)) << "there is room again";
}

TEST(LargeRequests, WhatIsBeingReadWhenDrainingBeginsIsAnswered) {
  const Served served;
  Block block(served);
  Client first = sent(served, "/v1/completions", padded(kShort));
  ASSERT_TRUE(eventually([&] { return is_reading(served); }, 30s));
  on_server(served, [&] { return served.router->set_draining(), true; });
  EXPECT_EQ(served.post("/v1/completions", padded(kShort)).status, 503);
  EXPECT_EQ(served.post("/v1/completions", kShort).status, 503);
  EXPECT_EQ(served.post("/generate", {{"text", "1+1="}}).status, 503);
  EXPECT_EQ(served.get("/v1/models").status, 200);
  EXPECT_TRUE(is_reading(served));
  block.release();
  EXPECT_EQ(answer_of(first).status, 200);
  EXPECT_FALSE(is_reading(served));
}

std::string empty_objects(size_t count) {
  std::string list = "[";
  for (size_t i = 0; i < count; ++i) list += "{},";
  return R"({"prompt":)" + list + "{}]}";
}

// Three bytes of text become sixteen times as much memory.
TEST(LargeRequests, TooManyValuesAre400) {
  const Served served;
  const Reply many = served.ask("POST", "/v1/completions", empty_objects(size_t{1} << 22));
  EXPECT_EQ(many.status, 400);
  EXPECT_NE(many.body.find("too many values"), std::string::npos) << many.body;
  OrderedJson call = {{"type", "function"},
                      {"function", {{"name", "f"}, {"arguments", empty_objects(size_t{1} << 21)}}}};
  const OrderedJson message = {{"role", "assistant"}, {"tool_calls", {call, call}}};
  const Reply calls = served.post("/v1/chat/completions", {{"messages", {message}}});
  EXPECT_EQ(calls.status, 400);
  EXPECT_NE(calls.body.find("too many values"), std::string::npos) << calls.body.substr(0, 500);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(LargeRequests, TheirMemoryGoesBackToTheSystem) {
  const Served served;
  EXPECT_EQ(served.post("/v1/completions", kShort).status, 200);
  // Its values take 300 MB; what threads keep of their own is a part of that.
  std::string body = empty_objects(3'000'000);
  const int64_t before = resident_bytes();
  EXPECT_EQ(served.ask("POST", "/v1/completions", body).status, 400);
  constexpr int64_t kMegabyte = 1 << 20;
  EXPECT_TRUE(eventually([&] { return resident_bytes() < before + 80 * kMegabyte; }, 10s))
      << (resident_bytes() - before) / kMegabyte << " MB stay";
}
#endif

TEST(LargeRequests, TheServiceEndsWhileTheyWait) {
  Client client = [] {
    const Served served;
    served.service->prompt_worker.post([] { std::this_thread::sleep_for(50ms); });
    Client one = sent(served, "/v1/completions", padded(kShort));
    EXPECT_TRUE(eventually([&] { return is_reading(served); }, 30s));
    return one;
  }();
  EXPECT_TRUE(client.ended(30s));
}

}  // namespace
}  // namespace lockstep::server
