// A group over MPI, in processes that mpirun has started (mpirun.sh): the verbs, and how it ends. Each test has a
// control channel of its own, as a group that has failed stays dead.
#include <cstdlib>

#include "parallel/mpi/mpi_group.h"
#include "parallel/verbs.h"

namespace lockstep::parallel {
namespace {

using namespace testing;
using namespace std::chrono_literals;

int variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw ConfigError({.what = "not under mpirun", .where = name});
  return std::atoi(value);
}

class Mpi : public ::testing::Test {
 protected:
  // The verbs of this process's rank; the same port again and again.
  std::unique_ptr<Group> meet(Timeouts timeouts = kPatient) {
    const int rank = variable("OMPI_COMM_WORLD_RANK"), size = variable("OMPI_COMM_WORLD_SIZE");
    return connect(tcp_connection(rank, size, static_cast<uint16_t>(variable("MPI_TEST_PORT")), timeouts));
  }
};

TEST_F(Mpi, FailuresOfOneRankEndTheCallsOfAll) {
  const std::unique_ptr<Group> group = with_mpi(meet());
  check_broadcast(*group, 1, 100);
  if (group->rank() == 1) {
    group->fail({.what = "a row is bad"}, 3);
    EXPECT_THROW(group->barrier(), PeerFailed);
    return;
  }
  std::byte bytes[4] = {};
  EXPECT_TRUE(starts_with(thrown_by([&] {
                            for (;;) group->broadcast(bytes, 0);
                          }),
                          "PeerFailed 3: rank 1 failed: a row is bad"));
  EXPECT_TRUE(starts_with(thrown_by([&] { group->barrier(); }), "PeerFailed 3: "));
}

TEST_F(Mpi, DifferentCallsAreRefusedOnAllRanks) {
  const std::unique_ptr<Group> group = with_mpi(meet());
  std::byte bytes[8] = {};
  for (int again = 0; again < 2; ++again)
    EXPECT_TRUE(starts_with(thrown_by([&] {
                              group->rank() == 1 ? group->broadcast(bytes, 0)
                                                 : group->broadcast(std::span(bytes).first(4), 0);
                            }),
                            "ShapeError 5: the ranks of a group make different calls"));
  EXPECT_THROW(group->barrier(), ShapeError);
  group->fail({.what = "done"}, 1);  // so that this group leaves MPI to the next
}

TEST_F(Mpi, SizesThatDoNotFitAreRefused) {
  const std::unique_ptr<Group> group = with_mpi(meet());
  std::byte bytes[6] = {};
  const auto all = std::span(bytes);
  if (group->rank() == 0) {
    EXPECT_THROW(group->all_gather(all, all.first(1)), ShapeError);
  }
  EXPECT_THROW(group->barrier(), PeerFailed);
}

TEST_F(Mpi, ARankThatDoesNotComeIsNamed) {
  const std::unique_ptr<Group> control = meet();
  const std::unique_ptr<Group> group = with_mpi(meet({.call = 3s, .meet = kPatient.meet}));
  const int last = group->size() - 1;
  if (group->rank() != last) {
    EXPECT_NE(thrown_by([&] { group->barrier(); }).find("no sign of rank"), std::string::npos);
  }
  control->barrier();  // the last rank waits here
  EXPECT_THROW(group->barrier(), Cancelled);
}

TEST_F(Mpi, AskingToStopReachesAllRanks) {
  const std::unique_ptr<Group> group = with_mpi(meet());
  if (group->rank() == 1) group->interrupt();
  const auto until = std::chrono::steady_clock::now() + kPatient.call;
  while (!group->interrupted() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(group->interrupted());
  group->barrier();
  group->fail({.what = "done"}, 1);
}

// The last: its group ends MPI.
TEST_F(Mpi, VerbsMoveTheRightBytesAndTheGroupEndsMpi) {
  const std::unique_ptr<Group> group = with_mpi(meet());
  check_verbs(*group);
  check_broadcast(*group, 7, size_t{3} << 20);
  check_all_to_all(*group, 8, size_t{1} << 20);
}

}  // namespace
}  // namespace lockstep::parallel
