// Addresses of servers, and that no message shows a secret in them.
#include <gtest/gtest.h>

#include "core/error.h"
#include "net/http_client.h"

namespace lockstep::net {
namespace {

std::string refused(const std::string& text) {
  try {
    parse_address(text, "--rm-url");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Addresses, AreReadAsTheyAreWritten) {
  EXPECT_EQ(parse_address("h:80", "x"), (Address{.host = "h", .port = 80}));
  EXPECT_EQ(parse_address("http://[::1]:8000/engine/", "x"),
            (Address{.host = "::1", .port = 8000, .prefix = "/engine"}));
  EXPECT_EQ(parse_address("http://[::1]:8000/engine/", "x").authority(), "[::1]:8000");
  EXPECT_EQ(parse_address("http://[::1]:8000/engine/", "x").text(), "[::1]:8000/engine");
  EXPECT_EQ(parse_address("http://h:80/engine/?a=1/2&b=x@y", "x"),
            (Address{.host = "h", .port = 80, .prefix = "/engine", .query = "a=1/2&b=x@y"}));
  EXPECT_EQ(parse_address("h:80?a=1/2@c", "x"), (Address{.host = "h", .port = 80, .query = "a=1/2@c"}));
  for (const char* text : {"h", ":80", "h:0", "h:65536", "h:80x", "h :80", "https://h:80"})
    EXPECT_NE(refused(text).find("--rm-url"), std::string::npos) << text;
}

TEST(Addresses, HaveAQueryBehindEachPath) {
  const Address address = parse_address("http://h:80/engine?key=hunter2&n=1", "x");
  EXPECT_EQ(address.target("/v1/models"), "/engine/v1/models?key=hunter2&n=1");
  EXPECT_EQ(address.target("/x?y=2"), "/engine/x?y=2&key=hunter2&n=1");
  EXPECT_EQ(address.target(""), "/engine?key=hunter2&n=1");
  EXPECT_EQ(address.text("/v1/models"), "h:80/engine/v1/models?key=***&n=1");
  EXPECT_EQ(parse_address("h:80", "x").target("/v1/models"), "/v1/models");
}

TEST(Addresses, HaveAUserAndAPassword) {
  EXPECT_EQ(parse_address("http://u:hunter2@h:80/x", "x"),
            (Address{.host = "h", .port = 80, .prefix = "/x", .user = "u:hunter2"}));
  EXPECT_EQ(parse_address("http://u%40home:a%3Ab%2f@h:80", "x").user, "u@home:a:b/");
  EXPECT_EQ(parse_address("http://token@h:80", "x").user, "token:");
  EXPECT_EQ(parse_address("h:80/a@b", "x").user, "");
  EXPECT_NE(refused("u:hunter2@h:80").find("http://USER:PASSWORD@HOST:PORT"), std::string::npos);
  EXPECT_NE(refused("http://u:%zz@h:80").find("hexadecimal"), std::string::npos);
  const Address address = parse_address("http://u:hunter2@h:80", "x");
  EXPECT_NO_THROW(require_one_authorization(address, "", "x"));
  EXPECT_NO_THROW(require_one_authorization({.host = "h"}, "key", "x"));
  EXPECT_THROW(require_one_authorization(address, "key", "x"), ConfigError);
}

TEST(Addresses, ShowNoSecret) {
  EXPECT_EQ(parse_address("http://u:hunter2@h:80/x?key=hunter2&n=1", "x").text(), "h:80/x?key=***&n=1");
  for (const char* text : {"http://u:hunter2@h", "http://u:hunter2@h:x", "u:hunter2@h:80", "https://u:hunter2@h:80",
                           "http://u:hunter2%@h:80", "http://h:x/?api_key=hunter2"})
    EXPECT_EQ(refused(text).find("hunter2"), std::string::npos) << refused(text);
}

}  // namespace
}  // namespace lockstep::net
