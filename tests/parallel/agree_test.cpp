// How errors cross ranks, and gathering what is not of one size.
#include "parallel/agree.h"

#include <new>
#include <stdexcept>

#include "core/make_error.h"
#include "parallel/gather.h"
#include "parallel/ranks.h"

namespace lockstep::parallel {
namespace {

using namespace testing;

std::exception_ptr bad_row(int rank) {
  return std::make_exception_ptr(DataError({.what = "a row is bad",
                                            .where = "row " + std::to_string(rank),
                                            .got = std::string("\0\xff", 2),
                                            .wanted = "",
                                            .attempt = std::string(5000, 'x')}));
}

TEST(Agree, NobodyFailed) {
  on_sound_ranks(4, [](Group& group) {
    for (int round = 0; round < 20; ++round) EXPECT_NO_THROW(agree(group, nullptr));
  });
  EXPECT_NO_THROW(agree(*solo(), nullptr));
}

TEST(Agree, AllThrowTheErrorOfTheLowestRankAndGoOn) {
  const std::string wanted = text_of(bad_row(2));
  on_sound_ranks(4, [&](Group& group) {
    for (int round = 0; round < 20; ++round) {
      stumble(1, group.rank(), static_cast<uint32_t>(round));
      EXPECT_EQ(thrown_by([&] { agree(group, group.rank() >= 2 ? bad_row(group.rank()) : nullptr); }), wanted);
      EXPECT_NO_THROW(group.barrier());
    }
  });
  EXPECT_EQ(thrown_by([&] { agree(*solo(), bad_row(2)); }), wanted);
}

TEST(Agree, EveryKindArrivesAsItself) {
  const auto all_alike = [](const std::exception_ptr& error) {
    const std::string wanted = text_of(error);
    on_sound_ranks(2, [&](Group& group) {
      EXPECT_EQ(thrown_by([&] { agree(group, group.rank() == 1 ? error : nullptr); }), wanted);
    });
  };
  for (const char* kind : {"ConfigError", "DataError", "FormatError", "ShapeError", "DTypeError", "DeviceError",
                           "ResourceError", "Cancelled"}) {
    const std::exception_ptr error = make_error(kind, {.what = "w", .where = "x", .got = "g", .wanted = "n"});
    ASSERT_TRUE(error) << kind;
    EXPECT_TRUE(starts_with(text_of(error), kind));
    all_alike(error);
  }
  EXPECT_EQ(make_error("Error", {}), nullptr);
}

TEST(Agree, OtherExceptionsArriveAsPeerFailed) {
  const auto of_rank_1 = [](const std::exception_ptr& error) {
    std::vector<std::string> texts(2);
    on_sound_ranks(2, [&](Group& group) {
      texts[static_cast<size_t>(group.rank())] = thrown_by([&] { agree(group, group.rank() == 1 ? error : nullptr); });
    });
    return texts;
  };
  EXPECT_EQ(of_rank_1(std::make_exception_ptr(std::runtime_error("odd"))),
            (std::vector<std::string>{"PeerFailed 1: rank 1 failed: odd", "odd"}));
  EXPECT_EQ(of_rank_1(std::make_exception_ptr(std::bad_alloc()))[0], "ResourceError 7: out of memory");
  EXPECT_EQ(of_rank_1(std::make_exception_ptr(PeerFailed(5, {.what = "elsewhere"}, 6)))[0],
            "PeerFailed 6: rank 1 failed: rank 5 failed: elsewhere");
}

TEST(Agree, ARankKeepsItsErrorWhenTheGroupEndsMeanwhile) {
  const auto thrown = on_ranks(3, [](Group& group) {
    if (group.rank() == 2) throw ResourceError({.what = "no memory"});
    agree(group, group.rank() == 0 ? bad_row(0) : nullptr);
  });
  EXPECT_EQ(text_of(thrown[0]), text_of(bad_row(0)));
  EXPECT_NE(text_of(thrown[1]).find("PeerFailed"), std::string::npos);
}

TEST(Agree, PartsThatFailAlone) {
  on_sound_ranks(3, [](Group& group) {
    int done = 0;
    EXPECT_NO_THROW(agree_after(group, [&] { ++done; }));
    EXPECT_EQ(done, 1);
    const std::string error = thrown_by([&] {
      agree_after(group, [&] {
        if (group.rank() == 1) std::rethrow_exception(bad_row(1));
      });
    });
    EXPECT_EQ(error, text_of(bad_row(1)));
  });
}

TEST(Agree, WhoFailsInACommonPartEndsTheGroup) {
  const std::vector<std::unique_ptr<Group>> groups = threads(2);
  EXPECT_EQ(together(*groups[0], [] { return 4; }), 4);
  EXPECT_THROW(together(*groups[0], [] { std::rethrow_exception(bad_row(0)); }), DataError);
  EXPECT_TRUE(starts_with(thrown_by([&] { groups[1]->barrier(); }), "PeerFailed 3: rank 0 failed: a row is bad"));
}

TEST(GatherVaried, PiecesOfAnySizeInRankOrder) {
  for (const int size : {1, 2, 3, 8})
    on_sound_ranks(size, [&](Group& group) {
      for (uint32_t round = 0; round < 10; ++round) {
        const auto of = [&](int rank) {
          const uint32_t draw = philox(round, {static_cast<uint32_t>(rank), 0, 0, 0})[0];
          return std::vector<std::byte>(draw % 3 == 0 ? 0 : draw % 1000, static_cast<std::byte>(rank));
        };
        const auto all = gather_varied(group, of(group.rank()));
        ASSERT_EQ(all.size(), static_cast<size_t>(size));
        for (int rank = 0; rank < size; ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)], of(rank));
      }
      EXPECT_EQ(gather_varied(group, {}), std::vector<std::vector<std::byte>>(static_cast<size_t>(size)));
    });
}

TEST(GatherValues, OfAllRanksOneAfterTheOther) {
  on_sound_ranks(4, [](Group& group) {
    std::vector<int64_t> mine, wanted;
    for (int64_t i = 0; i < group.rank(); ++i) mine.push_back(10 * group.rank() + i);
    for (int64_t rank = 0; rank < 4; ++rank)
      for (int64_t i = 0; i < rank; ++i) wanted.push_back(10 * rank + i);
    EXPECT_EQ(gather_values(group, std::span<const int64_t>(mine)), wanted);
  });
}

}  // namespace
}  // namespace lockstep::parallel
