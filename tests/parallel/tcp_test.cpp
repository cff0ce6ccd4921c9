// How a group of processes notices that one of them has gone, is stopped or hangs.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>

#include "parallel/connect.h"
#include "parallel/ranks.h"
#include "parallel/report.h"
#include "parallel/tcp/frame.h"

namespace lockstep::parallel {
namespace {

using namespace testing;
using namespace std::chrono_literals;

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

// The thread that uses the second group does not end the process: it is the other that has to hear.
TEST(Tcp, AProcessOfWhichTheSecondGroupAloneHasHeardIsTold) {
  std::atomic<int> told{0};
  Timeouts timeouts = kPatient;
  timeouts.exit_after = 300ms;
  Pair pair(
      [](Group& group) {
        group.fail({.what = "too hot"}, 6);
        ::pause();
      },
      timeouts, [&](const Fault&, int) { ++told; });
  const std::unique_ptr<Group> second = pair.group->second();
  EXPECT_TRUE(starts_with(thrown_by([&] { second->barrier(); }), "PeerFailed 6: "));
  EXPECT_TRUE(starts_with(thrown_by([&] { second->check(); }), "PeerFailed 6: "));
  second->fail({.what = "mine"}, 7);
  EXPECT_TRUE(eventually([&] { return told.load() == 1; }));
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
  EXPECT_TRUE(starts_with(thrown_by([] { read_secret(::testing::TempDir()); }),
                          "ConfigError 2: the job's secret is in a file"));
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
