// Who is let into a group of processes, and how it notices that one of them has gone, is stopped or hangs.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>

#include "core/hmac.h"
#include "parallel/connect.h"
#include "parallel/ranks.h"
#include "parallel/report.h"
#include "parallel/tcp/doorkeeper.h"
#include "parallel/tcp/handshake.h"

namespace lockstep::parallel {
namespace {

using namespace testing;
using namespace std::chrono_literals;

template <class Condition>
bool eventually(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatient.call;
  while (!condition())
    if (std::chrono::steady_clock::now() > until)
      return false;
    else
      std::this_thread::sleep_for(1ms);
  return true;
}

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

TEST(Tcp, AnotherBuildBaseSizeJobOrRankIsRefusedByNameAndTheRunGoesOn) {
  RankZero zero(2);
  const auto refused = [&](auto change, const std::string& name) {
    Connection other = tcp_connection(1, 2, zero.port);
    change(other);
    const std::string error = thrown_by([&] { connect(other); });
    EXPECT_TRUE(starts_with(error, "ConfigError 2: the ranks of a job are not alike")) << name;
    EXPECT_NE(error.find("rank 1: " + name), std::string::npos) << error;
  };
  refused([](Connection& c) { c.identity[0].second = "2"; }, "build");
  refused([](Connection& c) { c.identity[1].second = "large"; }, "base");
  refused([](Connection& c) { c.identity[2].second = "80"; }, "GPU generation");
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
  other.identity[0].second = "2";
  thrown_by([&] { connect(other); });
  const std::string error = zero.result();
  EXPECT_TRUE(starts_with(error, "Cancelled 130: not all ranks of the job came"));
  EXPECT_NE(error.find("no sign of rank 1, 2"), std::string::npos) << error;
  EXPECT_NE(error.find("build"), std::string::npos) << error;
}

// A rank 1 that proves to know the secret and says hello, and no more.
tcp::Socket say_hello_as_rank_1(uint16_t port, int size) {
  const auto until = tcp::Clock::now() + 1min;
  tcp::Socket socket = tcp::dial("127.0.0.1", port, until);
  tcp::prove_as_caller(socket, tcp_connection(1, size, port).secret, until);
  const std::string hello =
      R"({"protocol": 1, "rank": 1, "data": false, "data_port": 1, "size": )" + std::to_string(size) +
      R"(, "job": "test", "identity": [["build", "1"], ["base", "tiny"], ["GPU generation", "90"]]})";
  tcp::send_all(socket, tcp::encode(tcp::FrameType::hello, hello), until);
  return socket;
}

TEST(Tcp, ARankThatHasComeAndGoneEndsTheMeeting) {
  const auto begin = std::chrono::steady_clock::now();
  RankZero zero(4);
  say_hello_as_rank_1(zero.port, 4).close();
  EXPECT_TRUE(
      starts_with(zero.result(), "PeerFailed 1: rank 1 failed: its process ended before all ranks of the job had met"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "not by the deadline of the meeting";
}

TEST(Tcp, ARankThatGoesWhileAllConnectToEachOtherEndsTheMeeting) {
  const auto begin = std::chrono::steady_clock::now();
  RankZero zero(2);
  {
    const tcp::Socket rank_1 = say_hello_as_rank_1(zero.port, 2);
    EXPECT_EQ(tcp::receive_frame(rank_1, tcp::kMemberBytes, tcp::Clock::now() + 1min).type, tcp::FrameType::welcome);
  }
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

TEST(Tcp, WhoSendsFasterThanIsReadDoesNotFillTheMemory) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const tcp::Socket from(ends[0]), to(ends[1]);
  const std::vector<std::byte> flood(4096);
  tcp::FrameReader reader(tcp::kNewcomerBytes);
  size_t sent = 0;
  for (int i = 0; i < 1000; ++i) {
    while (tcp::send_some(from, flood) > 0) sent += flood.size();
    EXPECT_TRUE(tcp::read_into(reader, to));
  }
  EXPECT_LT(reader.pending(), 4 * tcp::kNewcomerBytes) << "of " << sent;
}

// Rank 1 in a process of its own, which does `body` once the group has met.
template <class Body>
pid_t start_rank_1(uint16_t port, const Timeouts& timeouts, const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    const std::unique_ptr<Group> group = connect(tcp_connection(1, 2, port, timeouts));
    group->barrier();
    body(*group);
  } catch (...) {
    ::_exit(9);
  }
  ::_exit(0);
}

struct Pair {
  explicit Pair(const std::function<void(Group&)>& body, Timeouts given = kPatient,
                const std::function<void(const Fault&, int)>& stuck = {})
      : timeouts(given) {
    timeouts.beat = 50ms;
    tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
    Connection connection = tcp_connection(0, 2, tcp::port_of(listener), timeouts);
    child = start_rank_1(connection.launch.port, timeouts, body);
    connection.launch.listen_fd = ::dup(listener.fd());
    connection.stuck = stuck;
    listener.close();
    group = connect(connection);
    group->barrier();
  }
  ~Pair() {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  Timeouts timeouts;
  pid_t child = -1;
  std::unique_ptr<Group> group;
};

TEST(Tcp, AProcessThatIsKilledIsNoticedAtOnce) {
  Pair pair([](Group&) { ::pause(); });
  const auto begin = std::chrono::steady_clock::now();
  ::kill(pair.child, SIGKILL);
  EXPECT_TRUE(starts_with(thrown_by([&] { pair.group->barrier(); }),
                          "PeerFailed 1: rank 1 failed: its process has ended, or the network to it is cut"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s) << "not by the deadline of the call";
}

TEST(Tcp, AProcessThatIsStoppedIsMissed) {
  Timeouts timeouts = kPatient;
  timeouts.silence = 2s;
  Pair pair([](Group&) { ::pause(); }, timeouts);
  ::kill(pair.child, SIGSTOP);
  EXPECT_TRUE(
      starts_with(thrown_by([&] { pair.group->barrier(); }), "PeerFailed 1: rank 1 failed: it gives no sign of life"));
}

TEST(Tcp, AFailureInAnotherProcessArrivesWholeAndEndsAllCalls) {
  Pair pair([](Group& group) {
    fail(group, std::make_exception_ptr(DataError({.what = "a row is bad", .where = "row 7", .attempt = "mend it"})));
    ::pause();
  });
  EXPECT_TRUE(starts_with(thrown_by([&] { pair.group->barrier(); }), "PeerFailed 3: rank 1 failed: a row is bad"));
  std::byte bytes[2] = {};
  EXPECT_TRUE(starts_with(thrown_by([&] { pair.group->broadcast(bytes, 1); }), "PeerFailed 3: "));
}

TEST(Tcp, ADeathInTheMiddleOfABigCallEndsIt) {
  Pair pair([](Group& group) {
    std::vector<std::byte> bytes(size_t{64} << 20);
    std::thread death([] {
      std::this_thread::sleep_for(20ms);
      ::_exit(3);
    });
    for (;;) group.broadcast(bytes, 1);
  });
  std::vector<std::byte> bytes(size_t{64} << 20);
  EXPECT_TRUE(starts_with(thrown_by([&] {
                            for (;;) pair.group->broadcast(bytes, 1);
                          }),
                          "PeerFailed 1: rank 1 failed: "));
}

TEST(Tcp, AProcessThatDoesNotNoticeAFailureIsTold) {
  std::atomic<int> told{0};
  Timeouts timeouts = kPatient;
  timeouts.exit_after = 100ms;
  Pair pair([](Group& group) { group.fail({.what = "too hot"}, 6); }, timeouts,
            [&](const Fault& fault, int exit_code) {
              EXPECT_EQ(fault.what, "rank 1 failed: too hot");
              EXPECT_EQ(exit_code, 6);
              ++told;
            });
  EXPECT_TRUE(eventually([&] { return told.load() == 1; }));
}

TEST(Tcp, AProcessThatHasHeardOfAFailureIsLeftToEndByItself) {
  std::atomic<int> told{0};
  Timeouts timeouts = kPatient;
  timeouts.exit_after = 300ms;
  Pair pair(
      [](Group& group) {
        group.fail({.what = "too hot"}, 6);
        ::pause();
      },
      timeouts, [&](const Fault&, int) { ++told; });
  EXPECT_TRUE(starts_with(thrown_by([&] { pair.group->barrier(); }), "PeerFailed 6: "));
  std::this_thread::sleep_for(600ms);
  EXPECT_EQ(told.load(), 0);
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

TEST(Tcp, ASecretIsReadFromAFileThatNobodyElseMayRead) {
  const std::string file = ::testing::TempDir() + "job_secret";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(file) << text;
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
  };
  write("0123456789abcdef", 0600);
  const Secret secret = read_secret(file);
  write("0123456789abcdeg", 0600);
  EXPECT_NE(secret, read_secret(file));
  write("short", 0600);
  EXPECT_TRUE(starts_with(thrown_by([&] { read_secret(file); }), "ConfigError 2: the job's secret is too short"));
  write("0123456789abcdef", 0640);
  EXPECT_TRUE(starts_with(thrown_by([&] { read_secret(file); }), "ConfigError 2: others may read"));
  EXPECT_TRUE(
      starts_with(thrown_by([&] { read_secret(file + ".not"); }), "ConfigError 2: the file of the job's secret"));
}

TEST(Tcp, RanksThatDifferAreToldWhere) {
  for (const std::exception_ptr& error : on_ranks(3, [](Group& group) {
         require_same(group, {{"a", "1"}, {"b", "2"}});
         require_same(group, {{"a", "1"}, {"b", group.rank() == 2 ? "3" : "2"}});
       })) {
    EXPECT_TRUE(starts_with(text_of(error), "ConfigError 2: the ranks of a job are not alike"));
    EXPECT_NE(text_of(error).find("rank 2: b"), std::string::npos) << text_of(error);
  }
}

TEST(Tcp, AReportThatEndsEarlyIsRefused) {
  const std::vector<std::byte> bytes = pack_report({.kind = "DataError", .fault = {.what = "x"}, .exit_code = 3});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(unpack_report(std::span(bytes).first(size)), FormatError) << size;
  std::vector<std::byte> huge = bytes;
  std::memset(huge.data() + 4, 0xff, 8);
  EXPECT_THROW(unpack_report(huge), FormatError);
}

}  // namespace
}  // namespace lockstep::parallel
