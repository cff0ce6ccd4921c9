// The load generator of bench/ against servers that answer well and badly: what it calls an error, and what it counts.
#include "load_stream.h"

#include <gtest/gtest.h>

#include "load_report.h"
#include "server/http_fixture.h"

namespace lockstep::bench {
namespace {

using namespace server;
using server::testing::Running;
using namespace std::chrono_literals;

const std::string kToken = R"(data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]})"
                           "\n\n";
const std::string kLast = R"(data: {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})"
                          "\n\n";
const std::string kUsage = R"(data: {"choices": [], "usage": {"completion_tokens": 3}})"
                           "\n\n";
const std::string kDone = "data: [DONE]\n\n";

StreamResult run(const HttpServer::Handler& handler, bool chat = false) {
  const Running running(handler);
  boost::asio::io_context context;
  const StreamOptions options{
      .endpoint = {boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(running.server.port())},
      .chat = chat,
      .max_tokens = 3,
      .timeout = 200ms};
  std::optional<StreamResult> result;
  LoadStream::start(context, options, server::testing::post("{}"), [&](StreamResult found) {
    EXPECT_FALSE(result.has_value()) << "called twice";
    result = std::move(found);
  });
  context.run();
  return result.value_or(StreamResult{.error = "not called"});
}

// In pieces of `piece` bytes.
StreamResult stream(const std::string& events, size_t piece = 1000, bool chat = false) {
  return run(
      [&](HttpRequest, std::shared_ptr<Responder> responder) {
        responder->begin_stream({.content_type = "text/event-stream"});
        for (size_t at = 0; at < events.size(); at += piece) responder->write(events.substr(at, piece));
        responder->end_stream();
      },
      chat);
}

TEST(LoadStream, CountsTheTokensOfACompleteStream) {
  for (const size_t piece : {1, 7, 1000}) {
    const StreamResult result = stream(kToken + kToken + kLast + kUsage + kDone, piece);
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.tokens, 3);
    EXPECT_EQ(result.gaps.size(), 2u);
    EXPECT_GT(result.first_s, 0);
    EXPECT_GE(result.total_s, result.first_s);
  }
}

TEST(LoadStream, TheRoleOfAChatIsNoToken) {
  const auto event = [](const std::string& delta, const std::string& finish) {
    return R"(data: {"choices": [{"index": 0, "delta": )" + delta + R"(, "finish_reason": )" + finish + "}]}\n\n";
  };
  const StreamResult result =
      stream(event(R"({"role": "assistant", "content": ""})", "null") + event(R"({"content": "a"})", "null") +
                 event(R"({"content": "b"})", "null") + event("{}", R"("length")") + kUsage + kDone,
             1000, true);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.gaps.size(), 1u);
}

TEST(LoadStream, NamesWhatIsMissing) {
  EXPECT_EQ(stream(kToken + kLast + kUsage).error, "no [DONE]");
  EXPECT_EQ(stream(kToken + kToken + kUsage + kDone).error, "no finish_reason");
  EXPECT_EQ(stream(kToken + kLast + kDone).error, "no usage");
  EXPECT_EQ(stream(kUsage + kDone).error, "no finish_reason");
  EXPECT_EQ(
      stream(kToken + kLast + R"(data: {"choices": [], "usage": {"completion_tokens": 2}})" + "\n\n" + kDone).error,
      "2 tokens instead of 3");
  EXPECT_EQ(stream("data: nonsense\n\n").error, "an event is no JSON");
  EXPECT_EQ(stream("data: {\"choices\": [3]}\n\n").error, "a choice is no object");
  EXPECT_EQ(stream(R"(data: {"error": {"code": 500}})"
                   "\n\n" +
                   kDone)
                .error,
            "an error in the stream: {\"code\":500}");
  EXPECT_EQ(stream(kToken + kLast + kUsage + kDone + kToken).error, "an event after [DONE]");
}

TEST(LoadStream, NamesWhatTheTransportDid) {
  EXPECT_EQ(run([](HttpRequest, std::shared_ptr<Responder> responder) {
              responder->send({.status = 429, .body = "full"});
            }).error,
            "HTTP 429: full");
  const std::string cut = run([](HttpRequest, std::shared_ptr<Responder> responder) {
                            responder->begin_stream({});
                            responder->write(kToken);  // and lets go
                          }).error;
  EXPECT_TRUE(cut == "the answer was cut" || cut.starts_with("read: ")) << cut;
  std::shared_ptr<Responder> held;
  EXPECT_EQ(run([&](HttpRequest, std::shared_ptr<Responder> responder) { held = std::move(responder); }).error,
            "timeout");
}

TEST(LoadReport, TakesItsFiguresFromStreamsWithoutError) {
  LoadReport report;
  for (int i = 1; i <= 100; ++i) {
    report.add({.tokens = 10, .first_s = i * 0.001, .total_s = i * 0.1, .gaps = {0.001f * static_cast<float>(i)}});
  }
  report.add({.error = "timeout", .tokens = 1000});
  const OrderedJson json = report.json(10);
  EXPECT_EQ(json.at("requests"), 101);
  EXPECT_EQ(json.at("completed"), 100);
  EXPECT_EQ(json.at("errors"), OrderedJson({{"timeout", 1}}));
  EXPECT_EQ(json.at("tokens_per_s"), 100.0);
  EXPECT_EQ(json.at("ttft_ms").at("p50"), 50.0);
  EXPECT_EQ(json.at("inter_token_ms").at("p99"), 99.0);
  EXPECT_EQ(json.at("end_to_end_ms").at("p99"), 9900.0);
  EXPECT_NEAR(json.at("fairness").at("slowest_over_fastest_stream").get<double>(), 0.01, 1e-6);
  EXPECT_NE(report_text(json).find("1 x timeout"), std::string::npos);
  EXPECT_EQ(LoadReport().json(1).at("ttft_ms").at("p99"), 0.0);
}

}  // namespace
}  // namespace lockstep::bench
