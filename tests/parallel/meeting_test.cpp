// Who is let into a group of processes, and what becomes of a meeting to which not all come.
#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <thread>

#include "core/hmac.h"
#include "parallel/connect.h"
#include "parallel/ranks.h"
#include "parallel/report.h"
#include "parallel/tcp/doorkeeper.h"
#include "parallel/tcp/handshake.h"
#include "parallel/tcp/hello.h"

namespace lockstep::parallel {
namespace {

using namespace testing;
using namespace std::chrono_literals;

// Rank 0 of a job at a port of its own, in a thread; what it says of those it refuses.
class RankZero {
 public:
  explicit RankZero(int size, Timeouts timeouts = kPatient) {
    tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
    port = tcp::port_of(listener);
    Connection connection = tcp_connection(0, size, port, timeouts);
    connection.launch.listen_fd = ::dup(listener.fd());
    connection.say = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      said_ += line + "\n";
    };
    thread_ = std::thread([this, connection] {
      error = thrown_by([&] {
        const std::unique_ptr<Group> group = connect(connection);
        group->barrier();
      });
    });
  }
  ~RankZero() {
    if (thread_.joinable()) thread_.join();
  }
  // What it threw in the end.
  std::string result() {
    thread_.join();
    return error;
  }
  std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }
  uint16_t port = 0;

 private:
  std::string error, said_;
  std::mutex mutex_;
  std::thread thread_;
};

TEST(Tcp, ProofsAreThoseOfRfc4231) {
  const std::vector<std::byte> key(20, std::byte{0x0b});
  const std::string_view message = "Hi There";
  const Mac mac = hmac_sha256(key, std::as_bytes(std::span(message)));
  EXPECT_EQ(std::to_integer<int>(mac[0]), 0xb0);
  EXPECT_EQ(std::to_integer<int>(mac[1]), 0x34);
  EXPECT_EQ(std::to_integer<int>(mac[2]), 0x4c);
  EXPECT_EQ(std::to_integer<int>(mac[31]), 0xf7);
  EXPECT_TRUE(same_secret(mac, mac));
  EXPECT_FALSE(same_secret(mac, key));
}

TEST(Tcp, SomebodyWithoutTheSecretIsRefusedAndTheRunGoesOn) {
  RankZero zero(2);
  Connection stranger = tcp_connection(1, 2, zero.port);
  stranger.secret = {std::byte{8}};
  EXPECT_TRUE(starts_with(thrown_by([&] { connect(stranger); }),
                          "ConfigError 2: the process at the address of another rank does not know this job's secret"));
  const std::unique_ptr<Group> group = connect(tcp_connection(1, 2, zero.port));
  group->barrier();
  EXPECT_EQ(zero.result(), "nothing");
}

TEST(Tcp, AnotherBaseSizeJobOrRankIsRefusedByNameAndTheRunGoesOn) {
  RankZero zero(2);
  const auto refused = [&](auto change, const std::string& name) {
    Connection other = tcp_connection(1, 2, zero.port);
    change(other);
    const std::string error = thrown_by([&] { connect(other); });
    EXPECT_TRUE(starts_with(error, "ConfigError 2: the ranks of a job are not alike")) << name;
    EXPECT_NE(error.find("rank 1: " + name), std::string::npos) << error;
  };
  refused([](Connection& c) { c.identity[0].second = "large"; }, "base");
  refused([](Connection& c) { c.identity[1].second = "80"; }, "GPU generation");
  refused([](Connection& c) { c.launch.size = 3; }, "number of ranks");
  refused([](Connection& c) { c.launch.job = "another"; }, "job");
  EXPECT_NE(zero.said().find("base"), std::string::npos);
  const std::unique_ptr<Group> group = connect(tcp_connection(1, 2, zero.port));
  group->barrier();
  EXPECT_EQ(zero.result(), "nothing");
}

TEST(Tcp, RubbishAndSlowCallersCostTheRunNothing) {
  RankZero zero(3);
  const auto until = tcp::Clock::now() + 1min;
  std::vector<tcp::Socket> strangers;
  const auto send = [&](const std::string& text) {
    tcp::Socket socket = tcp::dial("127.0.0.1", zero.port, until);
    (void)tcp::send_some(socket, std::as_bytes(std::span(text)));
    strangers.push_back(std::move(socket));
  };
  send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  send(std::string(100'000, '\xff'));
  send("LOCKSTEP RANKS 1" + std::string(32, 'c') + std::string(32, 'x') + std::string(100, '\0'));
  for (int i = 0; i < 200; ++i) send("L");  // each says a byte and waits, and they are more than are let wait
  std::unique_ptr<Group> group;
  std::thread other([&] { group = connect(tcp_connection(2, 3, zero.port)); });
  const std::unique_ptr<Group> mine = connect(tcp_connection(1, 3, zero.port));
  other.join();
  std::thread barrier([&] { group->barrier(); });
  mine->barrier();
  barrier.join();
  EXPECT_EQ(zero.result(), "nothing");
}

TEST(Tcp, AStrangerIsGivenUpAfterItsTime) {
  const Secret secret{};
  tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
  const uint16_t port = tcp::port_of(listener);
  tcp::Doorkeeper doorkeeper(std::move(listener), secret, 1s);
  const tcp::Socket silent = tcp::dial("127.0.0.1", port, tcp::Clock::now() + 10s);
  EXPECT_FALSE(doorkeeper.next(tcp::Clock::now() + 100ms));
  EXPECT_EQ(doorkeeper.refused(), 0);
  EXPECT_FALSE(doorkeeper.next(tcp::Clock::now() + 2s));
  EXPECT_EQ(doorkeeper.refused(), 1);
}

TEST(Tcp, ARankThatNeverComesIsNamed) {
  Timeouts short_time = kPatient;
  short_time.meet = 300ms;
  RankZero zero(3, short_time);
  Connection other = tcp_connection(1, 3, zero.port);
  other.build = "2";
  thrown_by([&] { connect(other); });
  const std::string error = zero.result();
  EXPECT_TRUE(starts_with(error, "Cancelled 130: not all ranks of the job came"));
  EXPECT_NE(error.find("no sign of rank 1, 2"), std::string::npos) << error;
  EXPECT_NE(error.find("build"), std::string::npos) << error;
}

// A process that proves to know the secret and says this, and no more.
tcp::Socket say(const std::string& hello, uint16_t port) {
  const auto until = tcp::Clock::now() + 1min;
  tcp::Socket socket = tcp::dial("127.0.0.1", port, until);
  tcp::prove_as_caller(socket, tcp_connection(1, 2, port).secret, until);
  tcp::send_all(socket, tcp::encode(tcp::FrameType::hello, hello), until);
  return socket;
}
tcp::Socket say_hello(int rank, uint16_t port, int size, const std::string& process = "one") {
  const Connection connection = tcp_connection(rank, size, port);
  return say(tcp::hello_text({.build = connection.build,
                              .rank = rank,
                              .data_port = 1,
                              .size = size,
                              .job = connection.launch.job,
                              .process = process,
                              .identity = connection.identity}),
             port);
}
tcp::Frame next_frame(const tcp::Socket& socket) {
  return tcp::receive_frame(socket, tcp::kMemberBytes, tcp::Clock::now() + 1min);
}

// Without a secret file the master is a loopback address (app/cli/job.cpp), and only there somebody listens.
TEST(Tcp, RankZeroOfOneHostIsHeardAtItsLoopbackAddressOnly) {
  const auto until = [] { return tcp::Clock::now() + 1min; };
  for (const char* master : {"127.0.0.1", "192.0.2.1"}) {
    const uint16_t port = tcp::port_of(tcp::listen_on("127.0.0.1", 0));  // free again
    Connection first = tcp_connection(0, 2, port);
    first.launch.master = master;
    std::string thrown;
    std::thread zero([&] { thrown = thrown_by([&] { connect(first)->barrier(); }); });
    EXPECT_TRUE(eventually([&] { return thrown_by([&] { tcp::dial("127.0.0.1", port, until()); }) == "nothing"; }));
    // Another address of this host, at which a socket for all of them would answer.
    const std::string at_other = thrown_by([&] { tcp::dial("127.0.0.2", port, tcp::Clock::now() + 300ms); });
    if (master == std::string("127.0.0.1"))
      EXPECT_NE(at_other.find(std::strerror(ECONNREFUSED)), std::string::npos) << at_other;
    else
      EXPECT_EQ(at_other, "nothing");
    connect(tcp_connection(1, 2, port))->barrier();
    zero.join();
    EXPECT_EQ(thrown, "nothing");
  }
}

TEST(Tcp, AHelloOfMoreThan4KiBIsReadByNobody) {
  RankZero zero(2);
  const auto hello_of = [](size_t size) { return R"({"build": "2", "later": ")" + std::string(size, 'x') + "\"}"; };
  // Whoever knows the secret is told why it is refused, if what it says is short enough to be read.
  EXPECT_EQ(next_frame(say(hello_of(3900), zero.port)).type, tcp::FrameType::refused);
  for (const size_t size : {size_t{4096}, size_t{100'000}, size_t{1} << 20}) {
    EXPECT_TRUE(starts_with(thrown_by([&] { next_frame(say(hello_of(size), zero.port)); }), "ResourceError 7: "))
        << size << " bytes after the proof";
    const tcp::Socket unproved = tcp::dial("127.0.0.1", zero.port, tcp::Clock::now() + 1min);
    (void)tcp::send_some(unproved, tcp::encode(tcp::FrameType::hello, hello_of(size)));
    EXPECT_TRUE(starts_with(thrown_by([&] { next_frame(unproved); }), "ResourceError 7: "))
        << size << " bytes before the proof";
  }
  connect(tcp_connection(1, 2, zero.port))->barrier();
  EXPECT_EQ(zero.result(), "nothing");
}

// Whatever else a later or an earlier build says, rank 0 names it, tells it, and goes on waiting for the others.
TEST(Tcp, AnotherBuildIsRefusedByNameAndTheRunGoesOn) {
  RankZero zero(2);
  const auto told = [&](const std::string& hello) {
    const tcp::Frame frame = next_frame(say(hello, zero.port));
    EXPECT_EQ(frame.type, tcp::FrameType::refused) << hello;
    const Report report = unpack_report(frame.bytes);
    EXPECT_EQ(report.kind, "ConfigError") << hello;
    return report.fault;
  };
  struct Case {
    const char *hello, *where, *got;
  };
  for (const Case& one :
       {Case{R"({"build": "2", "rank": 1, "later": [{}]})", "rank 1 at 127.0.0.1", "build 2"},
        Case{R"({"protocol": 1, "rank": 1, "data": false, "data_port": 1, "process": "p", "size": 2, "job": "test",
                 "identity": [["build", "0"], ["base", "tiny"]]})",
             "rank 1 at 127.0.0.1", "build 0"},
        Case{R"({"rank": 70, "build": 5})", "rank 70 at 127.0.0.1", "a build that does not say which it is"},
        Case{"\x02\xff hello of a build to come", "a rank at 127.0.0.1", "a build that does not say which it is"}}) {
    const Fault fault = told(one.hello);
    EXPECT_EQ(fault.what, "the ranks of a job are of different builds") << one.hello;
    EXPECT_EQ(fault.where, one.where);
    EXPECT_EQ(fault.got, one.got);
    EXPECT_EQ(fault.wanted, "build 1, as rank 0");
    EXPECT_EQ(fault.attempt, "start all ranks with the same program");
  }
  EXPECT_EQ(told(R"({"build": "1", "rank": 1, "protocol": 999})").where, "rank 1: protocol");

  Connection other = tcp_connection(1, 2, zero.port);
  other.build = "0123456789ab-dirty";
  EXPECT_TRUE(
      starts_with(thrown_by([&] { connect(other); }), "ConfigError 2: the ranks of a job are of different builds"));
  EXPECT_NE(zero.said().find("rank 1 at 127.0.0.1"), std::string::npos) << zero.said();
  EXPECT_NE(zero.said().find("build 0123456789ab-dirty"), std::string::npos) << zero.said();
  const std::unique_ptr<Group> group = connect(tcp_connection(1, 2, zero.port));
  group->barrier();
  EXPECT_EQ(zero.result(), "nothing");
}

TEST(Tcp, AHelloBeginsWithBuildAndRank) {
  const std::string text = tcp::hello_text({.build = "0123456789ab", .rank = 3, .identity = {}});
  EXPECT_TRUE(starts_with(text, R"({"build":"0123456789ab","rank":3,)"));
}

// Rank 2 has come before rank 1 calls, so it is told, whenever rank 0 looks.
TEST(Tcp, ARankThatHasComeAndGoneEndsTheMeetingForAll) {
  const auto begin = std::chrono::steady_clock::now();
  RankZero zero(4);
  const tcp::Socket rank_2 = say_hello(2, zero.port, 4);
  say_hello(1, zero.port, 4).close();
  EXPECT_TRUE(
      starts_with(zero.result(), "PeerFailed 1: rank 1 failed: its process ended before all ranks of the job had met"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "not by the deadline of the meeting";
  const tcp::Frame told = next_frame(rank_2);
  ASSERT_EQ(told.type, tcp::FrameType::refused);
  EXPECT_NE(unpack_report(told.bytes).fault.what.find("its process ended before all ranks"), std::string::npos);
}

TEST(Tcp, AProcessThatCallsAgainIsNotASecondOne) {
  RankZero zero(3);
  const tcp::Socket first = say_hello(1, zero.port, 3), again = say_hello(1, zero.port, 3),
                    other = say_hello(1, zero.port, 3, "two");
  const tcp::Frame refused = next_frame(other);
  ASSERT_EQ(refused.type, tcp::FrameType::refused);
  EXPECT_NE(unpack_report(refused.bytes).fault.what.find("two processes are the same rank"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return tcp::has_ended(first); })) << "the later one took its place";
  const tcp::Socket rank_2 = say_hello(2, zero.port, 3);
  EXPECT_EQ(next_frame(again).type, tcp::FrameType::welcome);
}

// Somebody listens at rank 0's port, hears that rank 1 knows the secret, and lets go of it.
void let_go_of_one(const tcp::Socket& listener) {
  std::optional<tcp::Socket> caller;
  ASSERT_TRUE(eventually([&] { return (caller = tcp::accept_from(listener)).has_value(); }));
  const Secret secret = tcp_connection(0, 2, 1).secret;
  tcp::Challenge challenge(secret);
  ASSERT_TRUE(eventually([&] { return challenge.advance(*caller) == tcp::Challenge::State::proved; }));
}

TEST(Tcp, WhoIsLetGoOfBeforeItIsHeardCallsAgain) {
  const tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
  const uint16_t port = tcp::port_of(listener);
  std::string other;
  std::thread rank_1([&] { other = thrown_by([&] { connect(tcp_connection(1, 2, port))->barrier(); }); });
  let_go_of_one(listener);
  Connection connection = tcp_connection(0, 2, port);
  connection.launch.listen_fd = ::dup(listener.fd());
  connect(connection)->barrier();
  rank_1.join();
  EXPECT_EQ(other, "nothing");
}

TEST(Tcp, WhoHasReachedRankZeroDoesNotWaitForItAfterItsEnd) {
  const auto begin = std::chrono::steady_clock::now();
  tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
  std::string other;
  std::thread rank_1(
      [&, port = tcp::port_of(listener)] { other = thrown_by([&] { connect(tcp_connection(1, 2, port)); }); });
  let_go_of_one(listener);
  listener.close();
  rank_1.join();
  EXPECT_TRUE(starts_with(other, "PeerFailed 1: rank 0 failed: its process ended before all ranks")) << other;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "not by the deadline of the meeting";
}

TEST(Tcp, ARankThatGoesWhileAllConnectToEachOtherEndsTheMeeting) {
  const auto begin = std::chrono::steady_clock::now();
  RankZero zero(2);
  EXPECT_EQ(next_frame(say_hello(1, zero.port, 2)).type, tcp::FrameType::welcome);
  EXPECT_TRUE(starts_with(zero.result(), "PeerFailed 1: rank 1 failed: its process ended before"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "not by the deadline of the meeting";
}

TEST(Tcp, WhoWaitsForTheOthersIsToldWhyTheyDoNotCome) {
  Timeouts short_time = kPatient;
  short_time.meet = 1s;
  RankZero zero(3, short_time);
  EXPECT_TRUE(starts_with(thrown_by([&] { connect(tcp_connection(1, 3, zero.port)); }),
                          "Cancelled 130: not all ranks of the job came"));
  EXPECT_TRUE(starts_with(zero.result(), "Cancelled 130: not all ranks of the job came"));
}

TEST(Tcp, TheJobEndsWhenItsLauncherIsGone) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  RankZero zero(2);
  Connection connection = tcp_connection(1, 2, zero.port);
  connection.launch.lifeline_fd = pipe[0];
  const std::unique_ptr<Group> group = connect(connection);
  group->barrier();
  EXPECT_NO_THROW(group->check());
  ::close(pipe[1]);
  std::string error;
  EXPECT_TRUE(eventually([&] { return (error = thrown_by([&] { group->check(); })) != "nothing"; }));
  EXPECT_TRUE(starts_with(error, "PeerFailed 137: rank 1 failed: the launcher of this job has ended")) << error;
  ::close(pipe[0]);
}

}  // namespace
}  // namespace lockstep::parallel
