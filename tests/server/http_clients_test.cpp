// Clients that leave, clients that send nonsense, and many at once.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "server/http_fixture.h"

namespace lockstep::server::testing {
namespace {

// Handlers keep their responder open and count who leaves.
struct Held {
  std::vector<std::shared_ptr<Responder>> open;  // on the server's thread
  std::atomic<int> num_open = 0, num_gone = 0;

  HttpServer::Handler handler(bool stream) {
    return [this, stream](HttpRequest, std::shared_ptr<Responder> responder) {
      if (stream) responder->begin_stream({});
      responder->on_disconnect([this] { ++num_gone; });
      open.push_back(std::move(responder));
      ++num_open;
    };
  }
};

TEST(HttpClients, WhoLeavesWhileNothingIsWrittenIsNoticed) {
  for (const bool stream : {false, true}) {
    Held held;
    const Running running(held.handler(stream));
    Client closes = running.connect(), resets = running.connect(), half = running.connect(), stays = running.connect();
    for (Client* client : {&closes, &resets, &half, &stays}) client->send(post("body"));
    ASSERT_TRUE(eventually([&] { return held.num_open == 4; }));
    closes.close();
    resets.reset();
    half.end_sending();
    EXPECT_TRUE(eventually([&] { return held.num_gone == 3; }));
    EXPECT_TRUE(eventually([&] { return running.server.connections() == 1; }));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(held.num_gone, 3) << "once each";
  }
}

TEST(HttpClients, WhoLeavesInMidStreamIsNoticed) {
  Held held;
  const Running running(held.handler(true));
  Client client = running.connect();
  client.send(kGet);
  ASSERT_TRUE(eventually([&] { return held.num_open == 1; }));
  held.open[0]->write("token");
  EXPECT_NE(client.receive_to("token"), "");
  client.reset();
  for (int i = 0; i < 1000 && held.num_gone == 0; ++i) {  // writing into a closed socket kills nobody
    held.open[0]->write("token");
    std::this_thread::sleep_for(100us);
  }
  EXPECT_EQ(held.num_gone, 1);
  held.open[0]->end_stream();
}

TEST(HttpClients, WhoHasLeftAlreadyIsToldLate) {
  Held held;
  const Running running([&](HttpRequest, std::shared_ptr<Responder> responder) {
    held.open.push_back(std::move(responder));
    ++held.num_open;
  });
  {
    Client client = running.connect();
    client.send(kGet);
    ASSERT_TRUE(eventually([&] { return held.num_open == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 0; }));
  Signal gone;
  std::thread::id id;
  held.open[0]->on_disconnect([&] { id = std::this_thread::get_id(), gone.set(); });
  ASSERT_TRUE(gone.wait());
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(HttpClients, WhoLeavesAfterTheAnswerIsCompleteIsNoNews) {
  Held held;
  const Running running([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->on_disconnect([&] { ++held.num_gone; });
    responder->send({.body = "done"});
    responder->on_disconnect([&] { ++held.num_gone; });
    held.open.push_back(responder);
  });
  Client client = running.connect();
  client.send(kGet);
  client.receive_to("done");
  client.close();
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 0; }));
  EXPECT_EQ(held.num_gone, 0);
}

TEST(HttpClients, WhoEndsSendingWithTheRequestGetsItsAnswer) {
  const Running running(echo);
  Client client = running.connect();
  client.send(kGet);
  client.end_sending();
  EXPECT_NE(client.receive_all().find("GET / "), std::string::npos);
}

TEST(HttpClients, SendByteByByte) {
  const Running running(echo);
  Client client = running.connect();
  for (const char byte : post("hello")) ASSERT_TRUE(client.send({&byte, 1}));
  EXPECT_NE(client.receive_to("POST / hello").find("200 OK"), std::string::npos);
}

TEST(HttpClients, LeaveAtEveryByteOfARequest) {
  std::atomic<int> num_requests = 0;
  const Running running([&](HttpRequest request, std::shared_ptr<Responder> responder) {
    ++num_requests;
    echo(std::move(request), std::move(responder));
  });
  const std::string request = post("hello");
  for (size_t size = 0; size < request.size(); ++size) {
    Client client = running.connect();
    client.send(request.substr(0, size));
    size % 2 == 0 ? client.close() : client.reset();
  }
  EXPECT_NE(running.ask(kGetAndClose), "");
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 0; }));
  EXPECT_EQ(num_requests, 1) << "half a request reached the handler";
}

TEST(HttpClients, SendNonsense) {
  const Running running(echo);
  std::mt19937 random(1);
  std::vector<Client> clients;
  for (int i = 0; i < 100; ++i) {
    std::string bytes(random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    clients.push_back(running.connect());
    clients.back().send(i % 2 == 0 ? bytes : kGet + bytes);
  }
  EXPECT_NE(running.ask(kGetAndClose).find("GET / "), std::string::npos);
}

// The client sends on while its answer is made: the server does not gather what it sends.
TEST(HttpClients, FloodsWhileWaitingWaitInTheKernel) {
  Held held;
  const Running running(held.handler(false), {.max_header_bytes = 4096});
  Client client = running.connect();
  client.send(kGet);
  ASSERT_TRUE(eventually([&] { return held.num_open == 1; }));
  const timeval patience{.tv_sec = 0, .tv_usec = 50'000};
  setsockopt(client.socket(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const std::string flood(1 << 20, 'x');
  int num_taken = 0;
  while (num_taken < 64 && client.send(flood)) ++num_taken;
  EXPECT_LT(num_taken, 64);
  held.open[0]->send({.body = "answer"});
  EXPECT_NE(client.receive_to("answer").find("200 OK"), std::string::npos);
  EXPECT_NE(client.receive_to(kEnd).find("HTTP/1.1 4"), std::string::npos) << "the flood is no request";
}

TEST(HttpClients, ThreeHundredAtOnceWhileFiftyReadNothing) {
  constexpr int kClients = 300, kChunks = 10;
  std::vector<std::shared_ptr<Responder>> open;
  Signal all_asked;
  const Running running([&](HttpRequest, std::shared_ptr<Responder> responder) {
    responder->begin_stream({});
    open.push_back(std::move(responder));
    if (open.size() == kClients) all_asked.set();
  });
  std::vector<Client> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(running.connect());
    ASSERT_TRUE(clients.back().connected() && clients.back().send(kGet));
  }
  ASSERT_TRUE(all_asked.wait());
  EXPECT_EQ(running.server.connections(), static_cast<size_t>(kClients));
  for (int chunk = 0; chunk < kChunks; ++chunk)
    for (const auto& responder : open) responder->write("token");
  for (const auto& responder : open) responder->end_stream();
  for (int i = 50; i < kClients; ++i) {
    clients[i].receive_to(kEnd);
    EXPECT_EQ(clients[i].receive_to("0\r\n\r\n").size(), kChunks * 10 + 5u) << i;
  }
  clients.clear();
  EXPECT_TRUE(eventually([&] { return running.server.connections() == 0; }));
}

}  // namespace
}  // namespace lockstep::server::testing
