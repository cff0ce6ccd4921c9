// The verbs of a Group against what each rank should receive, and how a group ends.
#include "parallel/group.h"

#include <atomic>
#include <regex>

#include "parallel/ranks.h"
#include "parallel/verbs.h"

namespace lockstep::parallel {
namespace {

using namespace testing;
using namespace std::chrono_literals;

// Every transport keeps the same contract.
class GroupTest : public ::testing::TestWithParam<Transport> {
 protected:
  template <class Body>
  std::vector<std::exception_ptr> run_ranks(int size, const Body& body, Timeouts timeouts = kPatient) const {
    return on_ranks(size, body, timeouts, GetParam());
  }
  std::vector<std::unique_ptr<Group>> groups_of(int size) const { return make_groups(GetParam(), size, kPatient); }
};
INSTANTIATE_TEST_SUITE_P(Transports, GroupTest, ::testing::Values(Transport::threads, Transport::tcp),
                         [](const auto& transport) { return transport.param == Transport::tcp ? "Tcp" : "Threads"; });

TEST_P(GroupTest, VerbsMoveTheRightBytes) {
  for (const int size : {1, 2, 3, 4, 8}) on_sound_ranks(size, check_verbs, GetParam());
  const std::unique_ptr<Group> alone = solo();
  EXPECT_EQ(alone->rank(), 0);
  EXPECT_EQ(alone->size(), 1);
  check_verbs(*alone);
}

TEST_P(GroupTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come{0};
  on_sound_ranks(
      4,
      [&](Group& group) {
        for (int round = 1; round <= 50; ++round) {
          stumble(4, group.rank(), static_cast<uint32_t>(round));
          ++come;
          group.barrier();
          EXPECT_GE(come.load(), 4 * round);
          group.barrier();
        }
      },
      GetParam());
}

TEST_P(GroupTest, SizesThatDoNotFitAreRefused) {
  std::byte bytes[6] = {};
  const auto all = std::span(bytes);
  for (const bool alone : {true, false}) {
    const auto refused = [&](int size, const auto& call) {
      if (alone) return thrown_by([&] { call(*solo()); });
      const auto thrown = run_ranks(size, [&](Group& group) {
        if (group.rank() == 0) return call(group);
        group.barrier();
      });
      for (int rank = 1; rank < size; ++rank)
        EXPECT_TRUE(starts_with(text_of(thrown[static_cast<size_t>(rank)]), "PeerFailed 5: rank 0 failed: "));
      return text_of(thrown[0]);
    };
    EXPECT_TRUE(starts_with(refused(2, [&](Group& g) { g.all_gather(all, all.first(2)); }), "ShapeError 5: "));
    EXPECT_TRUE(starts_with(refused(2, [&](Group& g) { g.broadcast(all, g.size()); }), "ShapeError 5: "));
    EXPECT_TRUE(starts_with(refused(2, [&](Group& g) { g.broadcast(all, -1); }), "ShapeError 5: "));
    EXPECT_TRUE(starts_with(refused(2, [&](Group& g) { g.all_to_all(all, all.first(3)); }), "ShapeError 5: "));
  }
  const auto thrown = run_ranks(4, [&](Group& group) {  // 6 bytes are no 4 pieces
    std::byte out[6];
    group.all_to_all(out, all);
  });
  for (const std::exception_ptr& error : thrown) EXPECT_NE(text_of(error), "nothing");
  EXPECT_THROW(threads(0), ConfigError);
}

TEST_P(GroupTest, RanksThatMakeDifferentCallsAreToldSo) {
  for (const auto& thrown : {run_ranks(4,
                                       [](Group& group) {
                                         std::byte byte{};
                                         group.rank() == 2 ? group.broadcast(std::span(&byte, 1), 0) : group.barrier();
                                       }),
                             run_ranks(4, [](Group& group) {
                               std::byte bytes[4] = {};
                               const size_t count = group.rank() == 2 ? 3 : 4;
                               group.broadcast(std::span(bytes).first(count), 0);
                             })})
    for (const std::exception_ptr& error : thrown) {
      EXPECT_TRUE(starts_with(text_of(error), "ShapeError 5: the ranks of a group make different calls"));
      EXPECT_NE(text_of(error).find("rank 2"), std::string::npos);
    }
}

TEST_P(GroupTest, ARankThatFailsEndsTheCallsOfAll) {
  const auto begin = std::chrono::steady_clock::now();
  const auto thrown = run_ranks(4, [](Group& group) {
    group.barrier();
    if (group.rank() == 2) throw DataError({.what = "a row is bad", .where = "row 7", .attempt = "mend it"});
    EXPECT_TRUE(starts_with(thrown_by([&] { group.barrier(); }), "PeerFailed 3: rank 2 failed: a row is bad"));
    std::byte bytes[4] = {}, byte{};  // and of every later call
    EXPECT_TRUE(starts_with(thrown_by([&] { group.broadcast(bytes, 0); }), "PeerFailed 3: "));
    EXPECT_TRUE(starts_with(thrown_by([&] { group.all_gather(bytes, std::span(&byte, 1)); }), "PeerFailed 3: "));
    group.all_to_all(bytes, bytes);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatient.call / 2) << "not by the deadline";
  for (const int rank : {0, 1, 3}) {
    try {
      std::rethrow_exception(thrown[static_cast<size_t>(rank)]);
    } catch (const PeerFailed& error) {
      EXPECT_EQ(error.rank(), 2);
      EXPECT_EQ(error.exit_code(), 3);
      EXPECT_EQ(error.fault().where, "row 7");
      EXPECT_EQ(error.fault().attempt, "mend it");
    }
  }
  EXPECT_TRUE(starts_with(text_of(thrown[2]), "DataError 3: a row is bad"));
}

TEST_P(GroupTest, TheFirstFailureCounts) {
  const std::vector<std::unique_ptr<Group>> groups = groups_of(2);
  groups[1]->fail({.what = "first"}, 6);
  groups[0]->fail({.what = "second"}, 7);
  for (const std::unique_ptr<Group>& group : groups)
    EXPECT_EQ(thrown_by([&] { group->barrier(); }), "PeerFailed 6: rank 1 failed: first");
}

TEST_P(GroupTest, CheckTellsOfAFailureWithoutACall) {
  std::vector<std::unique_ptr<Group>> groups = groups_of(3);
  for (const std::unique_ptr<Group>& group : groups) EXPECT_NO_THROW(group->check());
  groups[2].reset();  // one that has done its part and left is no failure to those who make no more calls
  EXPECT_NO_THROW(groups[1]->check());
  groups[1]->fail({.what = "a row is bad"}, 3);
  const auto until = std::chrono::steady_clock::now() + kPatient.call;
  std::string heard = "nothing";
  while (heard == "nothing" && std::chrono::steady_clock::now() < until) heard = thrown_by([&] { groups[0]->check(); });
  EXPECT_EQ(heard, "PeerFailed 3: rank 1 failed: a row is bad");
}

TEST_P(GroupTest, AFailureMayComeFromAnotherThread) {
  const std::vector<std::unique_ptr<Group>> groups = groups_of(2);
  std::thread watchdog([&] {
    std::this_thread::sleep_for(20ms);
    groups[0]->fail({.what = "too hot"}, 6);
  });
  EXPECT_EQ(thrown_by([&] { groups[0]->barrier(); }), "PeerFailed 6: rank 0 failed: too hot");
  watchdog.join();
}

TEST_P(GroupTest, ASilentRankIsGivenUpAfterTheDeadline) {
  std::atomic<int> gave_up{0};
  const std::regex names_rank_1(
      "no sign of rank [0-9, ]*1");  // made by one thread: libstdc++ fills a cache as it compiles
  const auto thrown = run_ranks(4,
                                [&](Group& group) {
                                  if (group.rank() == 1)
                                    while (gave_up.load() < 3) std::this_thread::sleep_for(1ms);
                                  const std::string error = thrown_by([&] { group.barrier(); });
                                  ++gave_up;
                                  EXPECT_TRUE(starts_with(error, "Cancelled 130: not all ranks came"))
                                      << "rank " << group.rank();
                                  EXPECT_TRUE(std::regex_search(error, names_rank_1)) << error;
                                  group.barrier();  // dead for good
                                },
                                {.call = 50ms, .meet = kPatient.meet});
  for (const std::exception_ptr& error : thrown) EXPECT_TRUE(starts_with(text_of(error), "Cancelled 130: "));
}

TEST_P(GroupTest, ARankThatHasGoneIsMissed) {
  std::vector<std::unique_ptr<Group>> groups = groups_of(3);
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (const size_t rank : {0, 1})
    ranks.emplace_back([&, rank] { errors[rank] = thrown_by([&] { groups[rank]->barrier(); }); });
  groups[2].reset();
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "PeerFailed 1: rank 2 failed: it has left the group");
}

TEST_P(GroupTest, RanksMayLeaveOneByOneWhenAllIsDone) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::unique_ptr<Group>> groups = groups_of(4);
    std::vector<std::thread> ranks;
    for (std::unique_ptr<Group>& group : groups)
      ranks.emplace_back([mine = std::move(group)] { EXPECT_NO_THROW(mine->barrier()); });
    for (std::thread& rank : ranks) rank.join();
  }
}

// Whenever a rank fails, a call moves its bytes on all ranks or throws on all, and no memory is read that has gone.
TEST_P(GroupTest, FailuresAtAnyMomentLeaveCallsWhole) {
  for (uint32_t round = 0; round < 30; ++round) {
    std::atomic<int> done[20] = {};
    run_ranks(3, [&](Group& group) {
      for (uint32_t call = 0; call < 20; ++call) {
        if (group.rank() == 0 && call == 5 + round / 3) throw DataError({.what = "enough"});
        stumble(round, group.rank(), call);
        check_all_gather(group, call, 2000);
        ++done[call];
      }
    });
    for (const std::atomic<int>& ranks : done) EXPECT_TRUE(ranks == 0 || ranks == 3) << "round " << round;
    EXPECT_EQ(done[4 + round / 3], 3);
    EXPECT_EQ(done[5 + round / 3], 0);
  }
}

TEST_P(GroupTest, AskingToStopReachesAllRanks) {
  const std::vector<std::unique_ptr<Group>> groups = groups_of(2);
  EXPECT_FALSE(groups[0]->interrupted() || groups[1]->interrupted());
  groups[1]->interrupt();
  EXPECT_TRUE(groups[1]->interrupted());
  const auto until = std::chrono::steady_clock::now() + kPatient.call;
  while (!groups[0]->interrupted() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(groups[0]->interrupted());
  const std::unique_ptr<Group> alone = solo();
  EXPECT_FALSE(alone->interrupted());
  alone->interrupt();
  EXPECT_TRUE(alone->interrupted());
  alone->fail({.what = "nobody to tell"}, 1);
  EXPECT_NO_THROW(alone->barrier());
}

// --- Group::second() ---

// Ranks come to the calls of the two in different orders.
TEST_P(GroupTest, ASecondGroupHasItsCallsInAnOrderOfItsOwn) {
  on_sound_ranks(
      4,
      [](Group& group) {
        const std::unique_ptr<Group> second = group.second();
        EXPECT_EQ(second->rank(), group.rank());
        EXPECT_EQ(second->size(), group.size());
        EXPECT_EQ(second->device_link(), nullptr);
        Group &late = group.rank() % 2 == 0 ? group : *second, &early = group.rank() % 2 == 0 ? *second : group;
        std::thread other([&] { check_verbs(early); });
        std::this_thread::sleep_for(20ms);
        check_verbs(late);
        other.join();
      },
      GetParam());
  const std::unique_ptr<Group> alone = solo(), second = alone->second();
  check_verbs(*second);
  second->interrupt();
  EXPECT_TRUE(alone->interrupted());
}

TEST_P(GroupTest, AFailureOfOneOfTheTwoEndsBoth) {
  for (const bool of_second : {false, true}) {
    std::vector<std::unique_ptr<Group>> groups = groups_of(3), seconds;
    for (const std::unique_ptr<Group>& group : groups) seconds.push_back(group->second());
    std::vector<std::string> errors(4);
    std::vector<std::thread> waiting;
    for (const size_t rank : {0, 1}) {
      waiting.emplace_back([&, rank] { errors[rank] = thrown_by([&] { groups[rank]->barrier(); }); });
      waiting.emplace_back([&, rank] { errors[2 + rank] = thrown_by([&] { seconds[rank]->barrier(); }); });
    }
    (of_second ? seconds : groups)[2]->fail({.what = "a row is bad"}, 3);
    for (std::thread& thread : waiting) thread.join();
    for (const std::string& error : errors) EXPECT_EQ(error, "PeerFailed 3: rank 2 failed: a row is bad");
    for (const auto* all : {&groups, &seconds})
      for (const std::unique_ptr<Group>& group : *all) {
        EXPECT_TRUE(group->failed());
        EXPECT_TRUE(starts_with(thrown_by([&] { group->check(); }), "PeerFailed 3: "));
      }
  }
}

TEST_P(GroupTest, AskingOneOfTheTwoToStopReachesBothOnAllRanks) {
  const std::vector<std::unique_ptr<Group>> groups = groups_of(2);
  const std::unique_ptr<Group> second = groups[0]->second(), other = groups[1]->second();
  second->interrupt();
  EXPECT_TRUE(eventually([&] { return groups[1]->interrupted() && other->interrupted(); }));
}

TEST_P(GroupTest, ARankThatDoesNotComeToTheSecondGroupIsGivenUp) {
  const auto thrown = run_ranks(3,
                                [](Group& group) {
                                  const std::unique_ptr<Group> second = group.second();
                                  std::string error;
                                  std::thread other([&] {
                                    if (group.rank() != 1) error = thrown_by([&] { second->barrier(); });
                                  });
                                  const std::string first = thrown_by([&] {  // it goes on until then
                                    for (;;) group.barrier();
                                  });
                                  other.join();
                                  EXPECT_TRUE(starts_with(first, "Cancelled 130: not all ranks came")) << first;
                                  EXPECT_NE(first.find("no sign of rank 1"), std::string::npos) << first;
                                  EXPECT_EQ(error, group.rank() == 1 ? "" : first);
                                },
                                {.call = 300ms, .meet = kPatient.meet});
  for (const std::exception_ptr& error : thrown) EXPECT_EQ(text_of(error), "nothing");
}

TEST_P(GroupTest, TheEndOfASecondGroupIsNoEndOfTheFirst) {
  std::vector<std::unique_ptr<Group>> groups = groups_of(2);
  std::unique_ptr<Group> second = groups[0]->second(), other = groups[1]->second();
  second.reset();
  std::thread rank_0([&] { EXPECT_NO_THROW(groups[0]->barrier()); });
  EXPECT_NO_THROW(groups[1]->barrier());
  EXPECT_NO_THROW(other->check());
  rank_0.join();
}

}  // namespace
}  // namespace lockstep::parallel
