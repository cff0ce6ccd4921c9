// Ranks with a GPU each: our calls of NCCL, against a library that stands in for it (fake_nccl.cpp).
#include <dlfcn.h>

#include <cmath>
#include <cstring>

#include "core/memory.h"
#include "parallel/nccl/nccl_group.h"
#include "parallel/nccl/nccl_library.h"
#include "parallel/ranks.h"
#include "parallel/tree_sum.h"
#include "parallel/verbs.h"

namespace lockstep::parallel {
namespace {

using namespace testing;
using namespace std::chrono_literals;

class Nccl : public ::testing::Test {
 protected:
  Nccl() {
    for (const auto& [name, value] : {std::pair{"version", 22809}, {"fail_after", -1}, {"hang_after", -1}})
      set(name, value);
    for (const char* name : {"misuse", "aborted", "destroyed"}) set(name, 0);
  }
  ~Nccl() override { EXPECT_EQ(get("misuse"), 0) << "calls that NCCL does not allow"; }

  template <class Function>
  static Function* function(const char* name) {
    static void* const library = ::dlopen(LOCKSTEP_FAKE_NCCL, RTLD_NOW);
    return reinterpret_cast<Function*>(::dlsym(library, name));
  }
  static void set(const char* name, int value) { function<void(const char*, int)>("fake_nccl_set")(name, value); }
  static int get(const char* name) { return function<int(const char*)>("fake_nccl_get")(name); }

  // Runs body(group, stream) on ranks whose devices the fake connects; what each threw.
  template <class Body>
  std::vector<std::exception_ptr> run(int size, const Body& body, NcclOptions options = {}) {
    std::vector<std::unique_ptr<Group>> groups = threads(size, kPatient);
    std::vector<std::exception_ptr> thrown(groups.size());
    std::vector<std::thread> ranks;
    if (options.library == NcclOptions().library) options.library = LOCKSTEP_FAKE_NCCL;
    for (size_t rank = 0; rank < groups.size(); ++rank)
      ranks.emplace_back([&, rank] {
        std::unique_ptr<Group> group;
        try {
          Stream stream({.threads = 1});
          group = with_nccl(std::move(groups[rank]), stream, options);
          body(*group, stream);
          group->barrier();  // nobody lets go of what others still use
        } catch (...) {
          thrown[rank] = std::current_exception();
          if (group) fail(*group, std::current_exception());
        }
      });
    for (std::thread& rank : ranks) rank.join();
    return thrown;
  }
  void expect_sound(const std::vector<std::exception_ptr>& thrown) {
    for (const std::exception_ptr& error : thrown) EXPECT_EQ(text_of(error), "nothing");
  }
};

std::vector<float> numbers(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = philox(7, {static_cast<uint32_t>(rank), static_cast<uint32_t>(i), 1, 0});
    values[i] = std::ldexp(2 * uniform01(bits[0]) - 1, static_cast<int>(bits[1] % 24) - 12);
  }
  return values;
}

Tensor view(std::vector<float>& values) {
  return Tensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
}

// The sum of the ranks that are present, through host memory or between devices.
std::vector<float> sum_of(Group& group, Stream& stream, size_t count, uint32_t present, bool in_place) {
  std::vector<float> mine = numbers(group.rank(), count), total(count);
  const bool here = (present >> group.rank() & 1) != 0;
  std::vector<float>& to = in_place ? mine : total;
  tree_sum(view(to), here ? ConstTensor(view(mine)) : ConstTensor(), group, stream);
  return to;
}

TEST_F(Nccl, SumsHaveTheBitsOfThoseThroughHostMemory) {
  for (const int size : {2, 3, 4, 8}) {
    for (const uint32_t present : {0xffu, 0xfeu, 0x05u, 0x02u})
      for (const size_t count : {size_t{1}, size_t{4095}, size_t{4097}, size_t{100'000}}) {
        if ((present & ((1u << size) - 1)) == 0) continue;
        std::vector<std::vector<float>> wanted(static_cast<size_t>(size)), got(wanted.size());
        on_sound_ranks(size, [&](Group& group) {
          Stream stream({.threads = 1});
          wanted[static_cast<size_t>(group.rank())] = sum_of(group, stream, count, present, false);
        });
        expect_sound(run(size, [&](Group& group, Stream& stream) {
          got[static_cast<size_t>(group.rank())] = sum_of(group, stream, count, present, count % 2 == 0);
        }));
        for (size_t rank = 0; rank < got.size(); ++rank)
          ASSERT_EQ(std::memcmp(got[rank].data(), wanted[0].data(), count * sizeof(float)), 0)
              << size << " ranks, " << count << " floats, rank " << rank;
      }
  }
  EXPECT_EQ(get("aborted"), 0);
  EXPECT_GT(get("destroyed"), 0);
}

TEST_F(Nccl, AnArrayThatIsReceivedInPiecesIsSummedWhole) {
  constexpr size_t kCount = (size_t{32} << 20) + 10'000;
  expect_sound(run(3, [&](Group& group, Stream& stream) {
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(group.rank() + static_cast<int>(i % 1000));
    tree_sum(view(values), view(values), group, stream);
    size_t wrong = 0;
    for (size_t i = 0; i < kCount; ++i) wrong += values[i] != static_cast<float>(3 + 3 * static_cast<int>(i % 1000));
    EXPECT_EQ(wrong, 0u);
  }));
}

// The thread that samples never asks NCCL, whatever the other does meanwhile.
TEST_F(Nccl, ASecondGroupMovesItsBytesThroughHostMemoryBesideASum) {
  expect_sound(run(2, [&](Group& group, Stream& stream) {
    const std::unique_ptr<Group> second = group.second();
    EXPECT_NE(group.device_link(), nullptr);
    EXPECT_EQ(second->device_link(), nullptr);
    std::thread other([&] { check_verbs(*second); });
    for (int i = 0; i < 20; ++i) sum_of(group, stream, 10'000, 0xffu, false);
    other.join();
  }));
}

TEST_F(Nccl, WithoutTheLibraryAllRanksSayWhatToDo) {
  for (const std::exception_ptr& error : run(2, [](Group&, Stream&) {}, {.library = "libno_such_nccl.so.2"})) {
    EXPECT_TRUE(starts_with(text_of(error), "ConfigError 2: NCCL, which moves data between GPUs, cannot be loaded"));
    EXPECT_NE(text_of(error).find("libnccl2"), std::string::npos) << text_of(error);
  }
}

TEST_F(Nccl, AnOldOneIsRefused) {
  set("version", 22703);
  for (const std::exception_ptr& error : run(2, [](Group&, Stream&) {})) {
    EXPECT_TRUE(starts_with(text_of(error), "ConfigError 2: this NCCL is too old"));
    EXPECT_NE(text_of(error).find("2.27.3"), std::string::npos) << text_of(error);
  }
}

TEST_F(Nccl, OneThatLacksAFunctionIsRefusedByName) {
  for (const std::exception_ptr& error : run(2, [](Group&, Stream&) {}, {.library = LOCKSTEP_INCOMPLETE_NCCL})) {
    EXPECT_TRUE(starts_with(text_of(error), "ConfigError 2: this NCCL lacks a function"));
    EXPECT_NE(text_of(error).find("ncclGroupEnd"), std::string::npos) << text_of(error);
  }
}

TEST_F(Nccl, ARankThatFailsEndsTheWaitOfTheOthers) {
  const auto thrown = run(3, [](Group& group, Stream& stream) {
    std::vector<float> values(100);
    tree_sum(view(values), view(values), group, stream);
    if (group.rank() == 1) throw DataError({.what = "a row is bad"});
    // The others are in the middle of an exchange to which rank 1 never comes.
    std::vector<float> received(100);
    const Transfer transfer{
        .rank = 1, .to = std::as_bytes(std::span(values)), .from = std::as_writable_bytes(std::span(received))};
    group.device_link()->exchange({&transfer, 1}, stream);
  });
  EXPECT_TRUE(starts_with(text_of(thrown[1]), "DataError 3: a row is bad"));
  for (const size_t rank : {0, 2})
    EXPECT_TRUE(starts_with(text_of(thrown[rank]), "PeerFailed 3: rank 1 failed: a row"));
  EXPECT_EQ(get("aborted"), 3);
}

TEST_F(Nccl, ACallThatNeverEndsIsGivenUpAtTheDeadline) {
  set("hang_after", 2);  // two connect the ranks
  const auto thrown = run(2,
                          [](Group& group, Stream& stream) {
                            std::vector<float> values(100);
                            tree_sum(view(values), view(values), group, stream);
                          },
                          {.deadline = 300ms});
  size_t cancelled = 0;
  for (const std::exception_ptr& error : thrown) {
    cancelled += text_of(error).starts_with("Cancelled 130: NCCL did not end a call") ? 1 : 0;
    EXPECT_NE(text_of(error).find("NCCL did not end a call within its deadline"), std::string::npos) << text_of(error);
  }
  EXPECT_GE(cancelled, 1u);
  EXPECT_EQ(get("aborted"), 2);
}

TEST_F(Nccl, ItsErrorsAreOursAndEndTheJob) {
  set("fail_after", 2);
  const auto thrown = run(2, [](Group& group, Stream& stream) {
    std::vector<float> values(100);
    tree_sum(view(values), view(values), group, stream);
  });
  for (const std::exception_ptr& error : thrown) {
    EXPECT_NE(text_of(error).find("NCCL failed"), std::string::npos) << text_of(error);
    EXPECT_NE(text_of(error).find("remote process exited"), std::string::npos) << text_of(error);
  }
  EXPECT_EQ(get("aborted"), 2);
}

TEST(NcclLibrary, TheOneOfThisMachineIsUnderstood) {
  nccl::Library library{};
  try {
    library = nccl::load();
  } catch (const ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  nccl::UniqueId id{}, other{};
  EXPECT_EQ(library.unique_id(&id), nccl::kSuccess);
  EXPECT_EQ(library.unique_id(&other), nccl::kSuccess);
  EXPECT_NE(std::memcmp(&id, &other, sizeof(id)), 0);
  EXPECT_TRUE(library.version_text().starts_with("2.")) << library.version_text();
}

}  // namespace
}  // namespace lockstep::parallel
