#include "core/new_file.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/error.h"
#include "core/fs.h"
#include "support/temp_directory.h"

namespace lockstep::fs {
namespace {

TEST(NewFile, IsWrittenAtAnyPlaceByAnyThread) {
  const testing::TempDirectory dir;
  constexpr size_t kPieces = 64, kPiece = 1000;
  {
    NewFile file(dir / "file", kPieces * kPiece);
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = t; i < kPieces; i += 4)
          file.write(std::vector<std::byte>(kPiece, static_cast<std::byte>('0' + i)), i * kPiece);
      });
    threads.clear();
    file.close();
  }
  const std::string bytes = read_file(dir / "file");
  ASSERT_EQ(bytes.size(), kPieces * kPiece);
  for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], static_cast<char>('0' + i / kPiece));
}

TEST(NewFile, SaysWhatIsWrong) {
  const testing::TempDirectory dir;
  dir.write("there", "x");
  testing::expect_error<ResourceError>([&] { NewFile(dir / "there", 4); }, {"cannot write", "there", "exists"});
  testing::expect_error<ResourceError>([&] { NewFile(dir / "no/where", 4); }, {"cannot write", "No such file"});
  // More than any disk has: found before anything is written, and no file stays.
  testing::expect_error<ResourceError>([&] { NewFile(dir / "large", uint64_t{1} << 50); }, {"cannot write", "large"});
  EXPECT_FALSE(fs::exists(dir / "large"));
}

TEST(NewFile, IsAppendedToAndTakesThePlaceOfAnotherWhole) {
  const testing::TempDirectory dir;
  const Path path = dir.write("file", "old");
  const auto fails = [](NewFile& file) {
    file.append("half");
    throw DataError({.what = "no more"});
  };
  EXPECT_THROW(write_file_atomic(path, fails), DataError);
  EXPECT_EQ(read_file(path), "old");
  write_file_atomic(path, [&](NewFile& file) {
    file.append("one, ");
    file.write(std::as_bytes(std::span(std::string_view("!"))), 8);
    file.append("two");
    EXPECT_EQ(read_file(path), "old");
  });
  EXPECT_EQ(read_file(path), "one, two!");
  EXPECT_EQ(dir.entries(), 1);
}

// Whatever is aligned goes past the cache and the rest does not: the bytes are the same.
TEST(NewFile, IsAppendedToPastTheCache) {
  const testing::TempDirectory dir;
  constexpr size_t kUnit = NewFile::kDirectBytes;
  alignas(kUnit) static char memory[3 * kUnit];
  for (size_t i = 0; i < sizeof memory; ++i) memory[i] = static_cast<char>(i * 7 / 3);
  const std::string_view all(memory, sizeof memory);
  std::string wanted;
  write_new_file(dir / "file", [&](NewFile& file) {
    const auto append = [&](std::string_view bytes) {
      file.append_uncached(bytes);
      wanted += bytes;
    };
    append(all);
    append(all.substr(0, kUnit));
    append(all.substr(kUnit, 100));  // no multiple
    append(all);                     // behind what is none
    append(all.substr(100, 2 * kUnit - 100));
    append(all.substr(1, kUnit));  // memory that is not aligned
    append({});
    file.append("end");
    wanted += "end";
  });
  EXPECT_EQ(read_file(dir / "file"), wanted);
}

}  // namespace
}  // namespace lockstep::fs
