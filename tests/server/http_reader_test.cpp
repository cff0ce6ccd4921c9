// Bytes to requests, without a socket.
#include <gtest/gtest.h>

#include "core/json.h"
#include "server/http/reader.h"

namespace lockstep::server {
namespace {

using Status = RequestReader::Status;
constexpr size_t kHeaderBytes = 1000, kBodyBytes = 5000;

struct Outcome {
  std::vector<HttpRequest> requests;
  int refused = 0;
};

// `piece` bytes at a time.
Outcome read(std::string_view bytes, size_t piece) {
  RequestReader reader(kHeaderBytes, kBodyBytes);
  Outcome outcome;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.append(bytes.substr(at, piece));
    Status status;
    while ((status = reader.parse()) == Status::request) outcome.requests.push_back(reader.take());
    if (status == Status::refused) return outcome.refused = reader.refusal().status, outcome;
  }
  return outcome;
}

void expect_refused(int status, const std::string& bytes) {
  for (const size_t piece : {bytes.size(), size_t{1}, size_t{7}})
    EXPECT_EQ(read(bytes, piece).refused, status) << bytes.substr(0, 200) << " in pieces of " << piece;
}

// A client that was refused may take its time to read why: until then its body would be memory that nobody counts.
TEST(RequestReader, WhatIsRefusedIsNotKept) {
  RequestReader reader(kHeaderBytes, kBodyBytes);
  reader.append("PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + std::string(0x1000, 'x'));
  EXPECT_EQ(reader.parse(), Status::more);
  EXPECT_EQ(reader.body_bytes(), 0x1000u);
  reader.append("\r\n1000\r\n" + std::string(0x1000, 'x'));
  EXPECT_EQ(reader.parse(), Status::refused);
  EXPECT_EQ(reader.refusal().status, 413);
  EXPECT_EQ(reader.body_bytes() + reader.waiting_bytes(), 0u);
  EXPECT_EQ(reader.parse(), Status::refused) << "and for good";

  RequestReader other(kHeaderBytes, kBodyBytes);  // which the session refuses
  other.append("PUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n" + std::string(3000, 'x'));
  EXPECT_EQ(other.parse(), Status::more);
  EXPECT_EQ(other.body_bytes(), 3000u);
  other.drop();
  EXPECT_EQ(other.body_bytes() + other.waiting_bytes(), 0u);
}

HttpRequest only(const std::string& bytes) {
  const Outcome outcome = read(bytes, bytes.size());
  EXPECT_EQ(outcome.refused, 0) << bytes;
  EXPECT_EQ(outcome.requests.size(), 1u) << bytes;
  return outcome.requests.empty() ? HttpRequest{} : outcome.requests[0];
}

HttpRequest get(const std::string& target) {
  return only("GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n");
}

TEST(RequestReader, AnyCutOfTheBytesGivesTheSameRequests) {
  const std::string bytes =
      "POST /v1/a%20b?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Y:  z \r\n\r\nhello"
      "\r\nGET /b HTTP/1.0\r\n\r\n"
      "PUT /c HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;name=\"v\"\r\nabc\r\n0002\r\nde\r\n0\r\nHost: b\r\nX-Trailer: t\r\n\r\n"
      "PUT /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
      "GET /d HTTP/1.1\r\nHost:\r\n\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    const Outcome outcome = read(bytes, piece);
    ASSERT_EQ(outcome.refused, 0);
    ASSERT_EQ(outcome.requests.size(), 5u) << piece;
    const auto& [a, b, c, d] =
        std::tie(outcome.requests[0], outcome.requests[1], outcome.requests[2], outcome.requests[4]);
    EXPECT_EQ(a.method + a.path + a.query + a.body, "POST/v1/a bx=1hello");
    EXPECT_EQ(a.header("x-y"), "z");
    EXPECT_EQ(b.path, "/b");
    EXPECT_EQ(c.body, "abcde");
    EXPECT_EQ(c.headers.size(), 2u) << "trailers are no headers";
    EXPECT_EQ(d.path, "/d");
  }
}

TEST(RequestReader, ReadsTargetsAndQueries) {
  EXPECT_EQ(get("/").path, "/");
  EXPECT_EQ(get("/a%2Fb+c%C3%A4").path, "/a/b+c\u00e4");
  EXPECT_EQ(get("http://host:80/p?q").path, "/p");
  EXPECT_EQ(get("http://host:80/p?q").query, "q");
  EXPECT_EQ(get("HTTP://host").path, "/");
  EXPECT_EQ(only("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").path, "*");
  const HttpRequest request = get("/?mode=abort&clear_cache=true&empty=&bare&s=a+b%26c&bad=%zz&mode=keep");
  EXPECT_EQ(request.parameter("mode"), "abort");
  EXPECT_EQ(request.parameter("clear_cache"), "true");
  EXPECT_EQ(request.parameter("empty"), "");
  EXPECT_EQ(request.parameter("bare"), "");
  EXPECT_EQ(request.parameter("s"), "a b&c");
  EXPECT_EQ(request.parameter("bad"), std::nullopt);
  EXPECT_EQ(request.parameter("absent"), std::nullopt);
}

TEST(RequestReader, HeadersAreFoundWithoutCase) {
  const HttpRequest request = only("GET / HTTP/1.1\r\nHost: a\r\nAUTHORIZATION: Bearer K\r\n\r\n");
  EXPECT_EQ(request.header("Authorization"), "Bearer K");
  EXPECT_EQ(request.header("authorization"), "Bearer K");
  EXPECT_EQ(request.header("absent"), "");
}

TEST(RequestReader, RefusesWhatIsNotHttp) {
  for (const char* bytes : {
           "garbage\r\n\r\n",
           "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  // TLS
           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
           "GET / HTTP/3.7\r\nHost: a\r\n\r\n",
           "GET /\r\n\r\n",
           "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET / HTTP/1.1\r\n\r\n",  // no Host
           "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
           "GET / HTTP/1.1\nHost: a\n\n\r\n\r\n",  // bare line feeds
           "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n",
           "GET host:80 HTTP/1.1\r\nHost: a\r\n\r\n",
           "CONNECT host:80 HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /a%4 HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /a%ff HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
       })
    expect_refused(400, bytes);
}

// What two servers of a chain could read differently is no request.
TEST(RequestReader, RefusesBodiesOfTwoMeanings) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\n";
  for (const char* fields : {
           "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
           "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
           "Content-Length: -1\r\n\r\n",
           "Content-Length: 3x\r\n\r\nabc",
           "Content-Length: 99999999999999999999\r\n\r\n",
           "Transfer-Encoding: gzip\r\n\r\n",
           "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
           "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n",
           "Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\nabc\r\n",
       })
    expect_refused(400, head + fields);
  expect_refused(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  expect_refused(417, head + "Content-Length: 3\r\nExpect: a miracle\r\n\r\nabc");
}

TEST(RequestReader, HeadersHaveALimitHoweverTheyCome) {
  const std::string line = "X-Long: " + std::string(60, 'x') + "\r\n";
  std::string many = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 5; ++i) many += line;
  EXPECT_EQ(read(many + "\r\n", 1).requests.size(), 1u);
  EXPECT_EQ(read(many + "\r\n", 7).requests.size(), 1u);
  for (int i = 0; i < 15; ++i) many += line;
  expect_refused(431, many + "\r\n");
  expect_refused(431, "GET /" + std::string(2000, 'a') + " HTTP/1.1\r\n");
  expect_refused(431, "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(2000, 'a'));
  expect_refused(431, std::string(2000, 'G'));
}

TEST(RequestReader, LinesOfAChunkedBodyHaveALimit) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  expect_refused(431, head + "3;" + std::string(2000, 'e'));
  expect_refused(431, head + "3\r\nabc\r\n0\r\nX: " + std::string(2000, 't'));
}

TEST(RequestReader, BodiesHaveALimitBeforeTheyAreRead) {
  expect_refused(413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5001\r\n\r\n");
  expect_refused(413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n");
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  expect_refused(413, head + "1389\r\n");
  std::string chunks = head;
  for (int i = 0; i < 6; ++i) chunks += "3e8\r\n" + std::string(1000, 'x') + "\r\n";
  expect_refused(413, chunks);
  EXPECT_EQ(only("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + std::string(5000, 'x')).body.size(),
            5000u);
}

TEST(RequestReader, KnowsWhenAConnectionMayBeKept) {
  const auto framing = [](const std::string& bytes) {
    RequestReader reader(kHeaderBytes, kBodyBytes);
    reader.append(bytes);
    EXPECT_EQ(reader.parse(), Status::request);
    return reader.framing();
  };
  EXPECT_TRUE(framing("GET / HTTP/1.1\r\nHost: a\r\n\r\n").keep_alive);
  EXPECT_FALSE(framing("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n").keep_alive);
  EXPECT_FALSE(framing("GET / HTTP/1.0\r\n\r\n").keep_alive);
  EXPECT_TRUE(framing("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive);
  EXPECT_TRUE(framing("HEAD / HTTP/1.0\r\n\r\n").head);
}

TEST(Refusal, HasTheShapeOfOpenAi) {
  const auto error = [](HttpRefusal refusal) { return parse_json(refusal_response(refusal).body, "body").at("error"); };
  EXPECT_EQ(error({400, "no"}),
            parse_json(R"({"message":"no","type":"BadRequestError","param":null,"code":400})", "w"));
  EXPECT_EQ(error({500, "no"}).at("type"), "InternalServerError");
  EXPECT_EQ(error({413, "no"}).at("type"), "Payload Too Large");
  EXPECT_EQ(error({503, "no"}).at("code"), 503);
  EXPECT_EQ(error({500, "\xff\xfe"}).at("message"), "\ufffd\ufffd") << "an exception may say anything";
}

}  // namespace
}  // namespace lockstep::server
