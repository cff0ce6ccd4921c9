// What clients get: framing, order, and answers that come from other threads.
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/json.h"
#include "server/http_fixture.h"

namespace lockstep::server::testing {
namespace {

std::string status_line(const std::string& answer) {
  return answer.substr(0, answer.find("\r\n"));
}

std::string body_of(const std::string& answer) {
  return answer.substr(std::min(answer.size(), answer.find(kEnd) + kEnd.size()));
}

TEST(HttpServer, AnswersManyRequestsOfOneConnection) {
  const Running running(echo);
  Client client = running.connect();
  for (int i = 0; i < 3; ++i) {
    client.send("POST /a%20b?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    const std::string head = client.receive_to(kEnd);
    EXPECT_EQ(status_line(head), "HTTP/1.1 200 OK");
    EXPECT_NE(head.find("Content-Type: application/json\r\n"), head.npos);
    EXPECT_NE(head.find("Content-Length: 16\r\n"), head.npos);
    EXPECT_NE(head.find("\r\nDate: "), head.npos);
    EXPECT_EQ(client.receive_to("hi"), "POST /a b?x=1 hi");
  }
  EXPECT_EQ(running.server.connections(), 1u);
}

TEST(HttpServer, AnswersPipelinedRequestsInTheirOrder) {
  std::vector<std::jthread> threads;
  {
    const Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
      // Later requests would be faster.
      const auto delay = std::chrono::milliseconds(12 - 4 * (request.path[1] - '0'));
      threads.emplace_back([=] {
        std::this_thread::sleep_for(delay);
        responder->send({.body = "answer " + request.path});
      });
    });
    Client client = running.connect();
    client.send("GET /0 HTTP/1.1\r\nHost: a\r\n\r\nGET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.send("GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    const std::string all = client.receive_all();
    const size_t first = all.find("answer /0"), second = all.find("answer /1"), third = all.find("answer /2");
    EXPECT_LT(first, second);
    EXPECT_LT(second, third);
    EXPECT_NE(third, all.npos);
  }
}

TEST(HttpServer, HeadHasTheLengthButNoBody) {
  const Running running(echo);
  const std::string answer = running.ask("HEAD /path HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 11\r\n"), answer.npos);
  EXPECT_EQ(body_of(answer), "");
}

TEST(HttpServer, HeadOfAStreamHasNoChunks) {
  const Running running([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->begin_stream({});
    responder->write("chunk");
    responder->end_stream();
  });
  EXPECT_EQ(body_of(running.ask("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")), "");
}

TEST(HttpServer, SpeaksHttp10) {
  const Running running(echo);
  const std::string answer = running.ask("GET /a HTTP/1.0\r\n\r\n");
  EXPECT_NE(answer.find("Connection: close\r\n"), answer.npos);
  EXPECT_EQ(body_of(answer), "GET /a ");
  Client client = running.connect();
  for (int i = 0; i < 2; ++i) {
    client.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_NE(client.receive_to(kEnd).find("Connection: keep-alive\r\n"), std::string::npos);
    EXPECT_EQ(client.receive_to("GET /a "), "GET /a ");
  }
}

void stream(HttpRequest, std::shared_ptr<Responder> responder) {
  responder->begin_stream({.content_type = "text/event-stream"});
  responder->write("data: 1\n\n");
  responder->write("");  // would end the stream
  responder->write(std::string(20, 'x'));
  responder->end_stream();
}

TEST(HttpServer, StreamsInChunks) {
  const Running running(stream);
  Client client = running.connect();
  for (int i = 0; i < 2; ++i) {  // the connection is kept
    client.send(kGet);
    const std::string head = client.receive_to(kEnd);
    EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), head.npos);
    EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), head.npos);
    EXPECT_EQ(head.find("Content-Length"), head.npos);
    EXPECT_EQ(client.receive_to("0\r\n\r\n"), "9\r\ndata: 1\n\n\r\n14\r\n" + std::string(20, 'x') + "\r\n0\r\n\r\n");
  }
}

TEST(HttpServer, StreamsToHttp10ByClosing) {
  const Running running(stream);
  const std::string answer = running.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(answer.find("chunked"), answer.npos);
  EXPECT_NE(answer.find("Connection: close\r\n"), answer.npos);
  EXPECT_EQ(body_of(answer), "data: 1\n\n" + std::string(20, 'x'));
}

// One system call for a turn of the loop: the client's first read finds everything.
TEST(HttpServer, WhatIsWrittenAtOnceIsSentAtOnce) {
  const Running running([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->begin_stream({});
    for (int i = 0; i < 200; ++i) responder->write("token");
    responder->end_stream();
  });
  Client client = running.connect();
  client.send(kGet);
  const std::string first = client.receive();
  EXPECT_TRUE(first.ends_with("0\r\n\r\n")) << first.size();
}

TEST(HttpServer, OtherThreadsStreamAtOnceToManyClients) {
  constexpr int kClients = 8, kChunks = 200;
  std::vector<std::jthread> threads;
  const Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    threads.emplace_back([=] {
      responder->begin_stream({});
      for (int i = 0; i < kChunks; ++i) responder->write(request.path + ",");
      responder->end_stream();
    });
  });
  std::vector<Client> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(running.connect());
    clients.back().send("GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  for (int i = 0; i < kClients; ++i) {
    clients[i].receive_to(kEnd);
    const std::string chunk = "3\r\n/" + std::to_string(i) + ",\r\n";
    const std::string body = clients[i].receive_to("0\r\n\r\n");
    EXPECT_EQ(body.size(), kChunks * chunk.size() + 5);
    EXPECT_EQ(body.substr(0, chunk.size()), chunk);
  }
}

TEST(HttpServer, TellsAClientThatAsksToSendItsBody) {
  const Running running(echo);
  Client client = running.connect();
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive_to(kEnd), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("hello");
  EXPECT_EQ(status_line(client.receive_to(kEnd)), "HTTP/1.1 200 OK");
  EXPECT_EQ(client.receive_to("hello"), "POST / hello");
}

TEST(HttpServer, DoesNotAskForABodyThatIsTooLarge) {
  const Running running(echo, {.max_body_bytes = 10});
  Client client = running.connect();
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(status_line(client.receive_all()), "HTTP/1.1 413 Payload Too Large");
}

TEST(HttpServer, AnswersWithoutABodyHaveNoLength) {
  const Running running([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->send({.status = 204, .body = "ignored", .content_type = "", .headers = {{"X-Version", "7"}}});
  });
  Client client = running.connect();
  for (int i = 0; i < 2; ++i) {
    client.send(kGet);
    const std::string head = client.receive_to(kEnd);
    EXPECT_EQ(status_line(head), "HTTP/1.1 204 No Content");
    EXPECT_EQ(head.find("Content-"), head.npos);
    EXPECT_NE(head.find("X-Version: 7\r\n"), head.npos);
  }
}

TEST(HttpServer, HeadersCannotBeSmuggledIntoAnAnswer) {
  const Running running([](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->send({.body = "{}", .headers = {{"X-Name", "a\r\nX-Evil: 1\r\n\r\nbody"}}});
  });
  const std::string answer = running.ask(kGetAndClose);
  EXPECT_NE(answer.find("X-Name: a  X-Evil: 1    body\r\n"), answer.npos);
  EXPECT_EQ(body_of(answer), "{}");
}

Json error_of(const std::string& answer) {
  return parse_json(body_of(answer), "answer").at("error");
}

TEST(HttpServer, AHandlerThatThrowsIsA500AndTheServerGoesOn) {
  const Running running([](HttpRequest request, std::shared_ptr<Responder> responder) {
    if (request.path == "/int") throw 7;
    if (request.path == "/bad") throw std::runtime_error("it broke");
    if (request.path == "/drop") return;
    echo(request, responder);
  });
  const auto ask = [&](const std::string& path) {
    return running.ask("GET " + path + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  };
  EXPECT_EQ(status_line(ask("/bad")), "HTTP/1.1 500 Internal Server Error");
  EXPECT_EQ(error_of(ask("/bad")),
            parse_json(R"({"message":"it broke","type":"InternalServerError","param":null,"code":500})", "wanted"));
  EXPECT_EQ(error_of(ask("/int")).at("code"), 500);
  EXPECT_EQ(error_of(ask("/drop")).at("message"), "the request was not answered");
  EXPECT_EQ(body_of(ask("/good")), "GET /good ");
  Client client = running.connect();  // a 500 does not cost the connection
  client.send("GET /bad HTTP/1.1\r\nHost: a\r\n\r\nGET /good HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.receive_to("GET /good ").find("HTTP/1.1 500"), 0u);
}

TEST(HttpServer, AStreamThatFailsIsCut) {
  const Running running([](HttpRequest request, std::shared_ptr<Responder> responder) {
    responder->begin_stream({});
    responder->write("half");
    if (request.path == "/throw") throw std::runtime_error("it broke");
  });  // or lets go of the responder
  for (const std::string path : {"/throw", "/drop"}) {
    for (const std::string version : {"1.1", "1.0"}) {
      const std::string answer = running.ask("GET " + path + " HTTP/" + version + "\r\nHost: a\r\n\r\n");
      EXPECT_EQ(answer.find("0\r\n\r\n"), answer.npos) << "looks complete";
    }
  }
}

TEST(HttpServer, RespondersAreUsedInOrder) {
  int num_errors = 0;
  const Running running([&](HttpRequest, std::shared_ptr<Responder> responder) {
    const auto fails = [&](const auto& call) {
      try {
        call();
      } catch (const std::logic_error&) {
        ++num_errors;
      }
    };
    fails([&] { responder->write("early"); });
    fails([&] { responder->end_stream(); });
    fails([&] { responder->begin_stream({.body = "body"}); });
    responder->begin_stream({});
    fails([&] { responder->begin_stream({}); });
    fails([&] { responder->send({}); });
    responder->end_stream();
    responder->write("late");  // the answer is complete: nothing happens
    responder->end_stream();
    responder->send({});
  });
  EXPECT_EQ(body_of(running.ask(kGetAndClose)), "0\r\n\r\n");
  EXPECT_EQ(num_errors, 5);
}

TEST(HttpServer, RunsTasksOnItsThread) {
  Signal ran, ran_later;
  std::set<std::thread::id> ids;
  Running running(echo);
  const auto start = Clock::now();
  running.server.post_after(20ms, [&] {
    ids.insert(std::this_thread::get_id());
    ran_later.set();
  });
  running.server.post([&] {
    ids.insert(std::this_thread::get_id());
    ran.set();
  });
  EXPECT_TRUE(ran.wait());
  EXPECT_TRUE(ran_later.wait());
  EXPECT_GE(Clock::now() - start, 20ms);
  running.server.post_after(1h, [] {});  // not waited for
  running.stop();
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_FALSE(ids.contains(std::this_thread::get_id()));
}

TEST(HttpServer, AnAddressThatCannotBeUsedIsAConfigError) {
  const Running running(echo);
  EXPECT_THROW(HttpServer({.port = running.server.port()}, echo), ConfigError);
  EXPECT_THROW(HttpServer({.port = 70000}, echo), ConfigError);
  EXPECT_THROW(HttpServer({.host = "192.0.2.1", .port = 0}, echo), ConfigError);
  EXPECT_THROW(HttpServer({.host = "not an address", .port = 0}, echo), ConfigError);
  EXPECT_GT(HttpServer({.host = "localhost", .port = 0}, echo).port(), 0);
}

TEST(HttpServer, ClosesItsListenerAndFinishesWhatIsOpen) {
  std::shared_ptr<Responder> open;
  Signal asked;
  Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    if (request.path == "/later") return open = responder, asked.set();
    echo(request, responder);
  });
  Client client = running.connect();
  client.send("GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(asked.wait());
  running.server.close_listener();
  EXPECT_TRUE(eventually([&] { return !running.connect().connected(); }));
  open->send({.body = "late"});
  EXPECT_NE(client.receive_to("late").find("200 OK"), std::string::npos);
  client.send(kGet);
  EXPECT_NE(client.receive_to("GET / ").find("200 OK"), std::string::npos);
}

TEST(HttpServer, StopTellsOpenAnswersThatTheirClientsAreGone) {
  std::shared_ptr<Responder> open;
  Signal asked, gone;
  Running running([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&] { gone.set(); });
    responder->begin_stream({});
    open = responder;
    asked.set();
  });
  Client client = running.connect();
  client.send(kGet);
  ASSERT_TRUE(asked.wait());
  running.stop();
  EXPECT_TRUE(gone.wait(0ms));
  EXPECT_TRUE(client.ended());
  open->write("nobody");
  open->end_stream();
}

TEST(HttpServer, RespondersOutliveTheServer) {
  std::vector<std::shared_ptr<Responder>> open;
  Signal asked;
  {
    const Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
      if (request.path == "/stream") responder->begin_stream({});
      // A callback that owns its own responder must not keep it for ever.
      responder->on_disconnect([responder] {});
      open.push_back(responder);
      if (open.size() == 2) asked.set();
    });
    Client first = running.connect(), second = running.connect();
    first.send(kGet);
    second.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    ASSERT_TRUE(asked.wait());
  }
  open[0]->send({});
  open[1]->write("nobody");
  open[1]->on_disconnect([] { FAIL() << "there is no thread to call this"; });
  open[1]->end_stream();
}

TEST(HttpServer, MayBeDestroyedWithoutHavingRun) {
  HttpServer server({.port = 0}, echo);
  Client client(server.port());
  EXPECT_TRUE(client.connected());
  server.post([] { FAIL(); });
}

}  // namespace
}  // namespace lockstep::server::testing
