// Every limit of HttpOptions, against a client that breaks it; afterwards the server serves others as before.
#include <gtest/gtest.h>

#include "core/json.h"
#include "server/http_fixture.h"

namespace lockstep::server::testing {
namespace {

// The answer has this status and an error body that says so.
void expect_error(int status, const std::string& answer) {
  EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 " + std::to_string(status)) << answer.substr(0, 300);
  EXPECT_NE(answer.find("Connection: close\r\n"), answer.npos);
  const size_t body = answer.find(kEnd);
  ASSERT_NE(body, answer.npos);
  const Json error = parse_json(answer.substr(body + kEnd.size()), "answer").at("error");
  EXPECT_EQ(error.at("code"), status);
  EXPECT_TRUE(error.at("message").is_string() && error.at("type").is_string() && error.at("param").is_null());
}

void expect_serves(const Running& running) {
  EXPECT_NE(running.ask(kGetAndClose).find("GET / "), std::string::npos);
}

TEST(HttpLimits, MalformedRequestsAre400) {
  const Running running(echo);
  expect_error(400, running.ask("garbage\r\n\r\n"));
  expect_error(400, running.ask(std::string("\x16\x03\x01\x00\xff", 5)));  // TLS
  expect_error(400, running.ask("GET / HTTP/1.1\r\n\r\n"));
  Client client = running.connect();
  client.send(post("ok") + "garbage\r\n\r\n");  // a Content-Length that lies
  EXPECT_NE(client.receive_to("POST / ok").find("200 OK"), std::string::npos);
  expect_error(400, client.receive_all());
  expect_serves(running);
}

TEST(HttpLimits, HeaderBytes) {
  const Running running(echo, {.max_header_bytes = 2000});
  Client client = running.connect();
  client.send("GET / HTTP/1.1\r\nHost: a\r\n");
  const std::string line = "X-Header: " + std::string(100, 'x') + "\r\n";
  for (int i = 0; i < 10000 && client.send(line); ++i) {
  }
  expect_error(431, client.receive_all());
  expect_serves(running);
}

// The client sends all of its body before it reads: it must still find the answer.
TEST(HttpLimits, BodyBytes) {
  const Running running(echo, {.max_body_bytes = 1000});
  EXPECT_NE(running.ask(post(std::string(1000, 'x'), "Connection: close\r\n")).find("200 OK"), std::string::npos);
  expect_error(413, running.ask(post(std::string(1001, 'x'))));
  expect_error(413, running.ask(post(std::string(8 << 20, 'x'))));
  expect_error(413, running.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n"));
  expect_serves(running);
}

TEST(HttpLimits, BodyBytesOfChunks) {
  const Running running(echo, {.max_body_bytes = 1000});
  Client client = running.connect();
  client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "64\r\n" + std::string(100, 'x') + "\r\n";
  for (int i = 0; i < 10000 && client.send(chunk); ++i) {
  }
  expect_error(413, client.receive_all());
  expect_serves(running);
}

TEST(HttpLimits, BytesOfAllBodies) {
  const Running running(echo, {.max_bodies_bytes = 10'000});
  const std::string half = post(std::string(8000, 'x')).substr(0, 7000);
  {
    Client leaves = running.connect();
    leaves.send(half);
    leaves.end_sending();
    EXPECT_TRUE(leaves.ended());  // what it held is free again
  }
  Client first = running.connect(), second = running.connect();
  first.send(half);
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 2; }));
  std::this_thread::sleep_for(20ms);
  second.send(half);
  expect_error(503, second.receive_all());
  first.send(std::string(8000, 'x'));
  EXPECT_NE(first.receive_to("POST / xxx").find("200 OK"), std::string::npos);
  expect_serves(running);
}

TEST(HttpLimits, SlowHeadersAreClosed) {
  const Running running(echo, {.header_timeout = 60ms});
  Client silent = running.connect(), slow = running.connect();
  const auto start = Clock::now();
  bool alive = true;
  for (size_t i = 0; alive && i < kGet.size() * 10; ++i) {  // slow-loris: each byte comes in time, all of them do not
    slow.send(kGet.substr(i % 4, 1));
    alive = !slow.ended(10ms);
  }
  EXPECT_FALSE(alive);
  EXPECT_LT(Clock::now() - start, 500ms);
  EXPECT_TRUE(silent.ended());
  expect_serves(running);
}

TEST(HttpLimits, SlowBodiesAre408) {
  const Running running(echo, {.body_timeout = 60ms});
  Client client = running.connect();
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
  expect_error(408, client.receive_all());
  expect_serves(running);
}

TEST(HttpLimits, IdleConnectionsAreClosed) {
  const Running running(echo, {.idle_timeout = 60ms});
  Client client = running.connect();
  client.send(kGet);
  client.receive_to("GET / ");
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 0; }));
  expect_serves(running);
}

TEST(HttpLimits, AnAnswerThatIsBeingMadeHasNoTimeout) {
  std::shared_ptr<Responder> open;
  Signal asked;
  const Running running([&](HttpRequest, std::shared_ptr<Responder> responder) { open = responder, asked.set(); },
                        {.header_timeout = 20ms, .body_timeout = 20ms, .idle_timeout = 20ms, .write_timeout = 20ms});
  Client client = running.connect();
  client.send(post("body"));
  ASSERT_TRUE(asked.wait());
  std::this_thread::sleep_for(100ms);
  open->send({.body = "late"});
  EXPECT_NE(client.receive_to("late").find("200 OK"), std::string::npos);
}

TEST(HttpLimits, AClientThatReadsNothingIsDroppedInTime) {
  Signal gone;
  std::shared_ptr<Responder> open;
  const Running running(
      [&](HttpRequest request, std::shared_ptr<Responder> responder) {
        if (request.method == "GET") return echo(request, responder);
        responder->on_disconnect([&] { gone.set(); });
        responder->begin_stream({});
        responder->write(std::string(16 << 20, 'x'));
        open = responder;
      },
      {.write_timeout = 100ms, .max_pending_bytes = size_t{1} << 30});
  Client client = running.connect(4096);
  client.send(post(""));
  EXPECT_TRUE(gone.wait());
  expect_serves(running);
}

// The connection alone holds such an answer, which goes with it while it is being written (seen by AddressSanitizer).
TEST(HttpLimits, AClientThatResetsWithinAWholeAnswer) {
  const Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    if (request.path != "/large") return echo(request, responder);
    responder->send({.body = std::string(16 << 20, 'x')});
  });
  for (int i = 0; i < 20; ++i) {
    Client client = running.connect(4096);
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_FALSE(client.receive().empty());
    client.reset();
  }
  expect_serves(running);
}

// The time is for one piece, not for the answer; and a whole answer may be larger than max_pending_bytes.
TEST(HttpLimits, ASlowReaderIsGivenTimeWhileItReads) {
  const std::string body(12 << 20, 'x');
  const Running running([&](HttpRequest, std::shared_ptr<Responder> responder) { responder->send({.body = body}); },
                        {.write_timeout = 300ms, .max_pending_bytes = 1000});
  Client client = running.connect();
  client.send(kGetAndClose);
  size_t size = 0;
  const auto start = Clock::now();
  for (size_t piece = 1; piece > 0; size += piece) {
    piece = client.receive().size();
    if (size % (256 << 10) + piece >= 256 << 10) std::this_thread::sleep_for(12ms);
  }
  EXPECT_GT(size, body.size());
  EXPECT_GT(Clock::now() - start, 300ms);
}

// Streams 16 MB to who posts, in updates of so many bytes.
class Streaming {
 public:
  Streaming(size_t update_bytes, HttpOptions options)
      : running(
            [this, update_bytes](HttpRequest request, std::shared_ptr<Responder> responder) {
              if (request.method == "GET") return echo(request, responder);
              responder->on_disconnect([this] { gone.set(); });
              responder->begin_stream({});
              for (size_t sent = 0; sent < kBytes; sent += update_bytes)
                responder->write(std::string(update_bytes, 'x'));
              open = responder;
            },
            std::move(options)) {}

  static constexpr size_t kBytes = size_t{16} << 20;
  Signal gone;
  std::shared_ptr<Responder> open;
  Running running;
};

TEST(HttpLimits, PendingBytesOfASlowReader) {
  Streaming streaming(16 << 10, {.max_pending_bytes = 100'000, .pending_timeout = 50ms});
  Client client = streaming.running.connect(4096);
  client.send(post(""));
  EXPECT_TRUE(streaming.gone.wait());
  streaming.open->write("nobody");
  EXPECT_EQ(client.receive_all().find("0\r\n\r\n"), std::string::npos);
  expect_serves(streaming.running);
}

// However large an update is, who takes it in time is no slow reader.
TEST(HttpLimits, AnUpdateLargerThanThePendingBytes) {
  const Streaming streaming(Streaming::kBytes,
                            {.write_timeout = 60s, .max_pending_bytes = 1000, .pending_timeout = 30s});
  Client client = streaming.running.connect();
  client.send(post("", "Connection: close\r\n"));
  size_t received = 0;
  for (std::string bytes = client.receive(); received < Streaming::kBytes && !bytes.empty(); bytes = client.receive())
    received += bytes.size();
  EXPECT_GE(received, Streaming::kBytes);
  EXPECT_FALSE(client.was_reset);
  streaming.open->end_stream();
  EXPECT_TRUE(client.receive_all().ends_with("0\r\n\r\n"));
}

// What counts is what was there to take: reading a little is not enough.
TEST(HttpLimits, AReaderThatTakesTooLittle) {
  Streaming streaming(Streaming::kBytes, {.write_timeout = 60s, .max_pending_bytes = 1000, .pending_timeout = 200ms});
  Client client = streaming.running.connect(4096);
  client.send(post(""));
  bool gone = false;
  for (int i = 0; i < 200 && !gone; ++i) {
    client.receive(1ms);
    gone = streaming.gone.wait(20ms);
  }
  EXPECT_TRUE(gone);
  expect_serves(streaming.running);
}

TEST(HttpLimits, PendingBytesOfAllStreams) {
  const HttpOptions options{
      .write_timeout = 60s, .max_pending_bytes = 100'000, .pending_timeout = 60s, .max_unsent_bytes = 1'000'000};
  Streaming streaming(16 << 10, options);
  Client client = streaming.running.connect(4096);
  client.send(post(""));
  EXPECT_TRUE(streaming.gone.wait());
  expect_serves(streaming.running);
}

TEST(HttpLimits, WhatAnAnswerHoldsIsLetGoOfWhenItIsTaken) {
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> seen = held;
  std::shared_ptr<Responder> open;
  const Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    if (request.method == "GET") return echo(request, responder);
    responder->send({.body = std::string(16 << 20, 'x'), .held = std::move(held)});
    open = responder;
  });
  Client client = running.connect();
  client.send(post(""));
  EXPECT_NE(client.receive_to("xxx"), "");
  EXPECT_EQ(seen.use_count(), 1) << "most of it waits";
  size_t received = 3;
  while (received < size_t{16} << 20) {
    const std::string bytes = client.receive();
    if (bytes.empty()) break;
    received += bytes.size();
  }
  EXPECT_TRUE(eventually([&] { return seen.expired(); })) << received;
  expect_serves(running);
}

TEST(HttpLimits, Connections) {
  const Running running(echo, {.linger_timeout = 200ms, .max_connections = 3});
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(running.connect());
    clients.back().send(kGet);
    EXPECT_NE(clients.back().receive_to("GET / "), "");
  }
  expect_error(503, running.ask(kGet));
  expect_error(503, running.ask(""));
  for (Client& client : clients) {
    client.send(kGet);
    EXPECT_NE(client.receive_to("GET / "), "") << "those that are open go on";
  }
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return running.ask(kGetAndClose).find("200 OK") != std::string::npos; }));
}

TEST(HttpLimits, LingeringEnds) {
  const Running running(echo, {.linger_timeout = 60ms});
  Client client = running.connect();  // reads its answer, and does not close
  client.send(kGetAndClose);
  EXPECT_NE(client.receive_all(), "");
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 0; }));
}

}  // namespace
}  // namespace lockstep::server::testing
