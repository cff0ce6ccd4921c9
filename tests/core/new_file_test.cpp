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

}  // namespace
}  // namespace lockstep::fs
