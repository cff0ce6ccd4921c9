#include "server/access_log.h"

#include <gtest/gtest.h>

namespace lockstep::server {
namespace {

class Nobody : public Responder {
 public:
  void send(HttpResponse) override {}
  void begin_stream(HttpResponse) override {}
  void write(std::string) override {}
  void end_stream() override {}
  void on_disconnect(std::function<void()>) override {}
};

// A path is decoded: %0A must not begin a line of its own.
TEST(AccessLog, ARequestIsOneLine) {
  std::string told;
  const auto responder = logged({.method = "GET", .path = "/a\nGET /forged 200"}, std::make_shared<Nobody>(),
                                [&](std::string line) { told = std::move(line); });
  responder->send({.status = 404});
  EXPECT_TRUE(told.starts_with(R"(GET /a\nGET /forged 200 404 )")) << told;
}

}  // namespace
}  // namespace lockstep::server
