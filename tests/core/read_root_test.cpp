#include "core/read_root.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/fs.h"
#include "support/temp_directory.h"

namespace lockstep::fs {
namespace {

namespace stdfs = std::filesystem;

class ReadRootTest : public ::testing::Test {
 protected:
  ReadRootTest() {
    dir_.write("root/a/file", "inside");
    dir_.write("out/file", "outside");
    dir_.write("rooted/file", "outside");  // begins like the root
  }
  Path in(const std::string& name) const { return dir_ / ("root/" + name); }
  std::string read(const Path& path) const { return read_file(path, ReadRoot(dir_ / "root")); }

  testing::TempDirectory dir_;
};

TEST_F(ReadRootTest, Anywhere) {
  EXPECT_EQ(read_file(dir_ / "out/file"), "outside");
  EXPECT_EQ(ReadRoot().resolve("some/../path"), Path("some/../path"));
  // Every file of a model in the cache of Hugging Face's hub is a link.
  stdfs::create_symlink("../../out/file", in("a/link"));
  EXPECT_TRUE(ReadRoot().is_regular_file(in("a/link")));
  EXPECT_FALSE(ReadRoot().is_regular_file(in("a")) || ReadRoot().is_regular_file(in("a/missing")));
}

// Something that cannot be looked at is not nothing.
TEST_F(ReadRootTest, WhatCannotBeLookedAt) {
  stdfs::create_symlink("loop", in("loop"));
  const Path endless = in("a") / std::string(300, 'x');
  const auto expect_unknown = [](const auto& body, const char* reason) {
    testing::expect_error<DataError>(body, {"cannot read", reason});
  };
  expect_unknown([&] { ReadRoot().is_regular_file(in("loop/file")); }, "symbolic links");
  expect_unknown([&] { ReadRoot().is_regular_file(endless); }, "too long");
  expect_unknown([&] { ReadRoot(in("loop")); }, "symbolic links");
  EXPECT_THROW(ReadRoot(in("")).is_regular_file(endless), Error) << "outside, or unknown, but not absent";
}

TEST_F(ReadRootTest, PathsBelowIt) {
  EXPECT_EQ(read(in("a/file")), "inside");
  EXPECT_EQ(read("a/file"), "inside") << "begins at the root";
  EXPECT_EQ(read(in("a/../a/./file")), "inside");
  EXPECT_EQ(ReadRoot(in("")).resolve("."), stdfs::canonical(in("")));
  EXPECT_EQ(ReadRoot(in("")).resolve("a/missing"), stdfs::canonical(in("a")) / "missing");
  EXPECT_THROW(read(in("a/missing")), DataError);
  EXPECT_THROW(read(in("a")), DataError) << "a directory";
  for (const Path& path : {dir_ / "out/file", in("../out/file"), Path("a/../../out/file"), dir_ / "rooted/file",
                           dir_ / "out/missing", Path("/etc/passwd"), Path("/"), Path("..")})
    EXPECT_THROW(read(path), ConfigError) << path;
}

TEST_F(ReadRootTest, ARootThatIsNotThere) {
  const ReadRoot root(dir_ / "nowhere");
  EXPECT_FALSE(root.resolve("file"));
  EXPECT_THROW(read_file(dir_ / "out/file", root), ConfigError);
  EXPECT_THROW(read_file(dir_ / "nowhere/file", root), ConfigError);
}

TEST_F(ReadRootTest, LinksAreFollowedBeforeTheyAreJudged) {
  stdfs::create_symlink("a/file", in("near"));
  stdfs::create_symlink(in("a/file"), in("absolute"));
  stdfs::create_directory_symlink("a", in("dir"));
  for (const char* name : {"near", "absolute", "dir/file"}) EXPECT_EQ(read(in(name)), "inside") << name;
  stdfs::create_symlink(dir_ / "out/file", in("far"));
  stdfs::create_symlink("../out/file", in("climbs"));
  stdfs::create_symlink(in("far"), in("twice"));
  stdfs::create_directory_symlink(dir_ / "out", in("a/out"));
  stdfs::create_symlink(dir_ / "out/missing", in("broken"));
  stdfs::create_directory_symlink(dir_ / "missing", in("broken_dir"));
  stdfs::create_symlink("loop", in("loop"));
  for (const char* name :
       {"far", "climbs", "twice", "a/out/file", "a/out/missing", "broken", "broken_dir/file", "loop"}) {
    EXPECT_THROW(read(in(name)), ConfigError) << name << ": the same whether there is something or not";
    EXPECT_THROW(ReadRoot(in("")).is_regular_file(in(name)), ConfigError) << name;
  }
}

TEST_F(ReadRootTest, OnlyRegularFilesAreOpened) {
  ASSERT_EQ(::mkfifo(in("pipe").c_str(), 0600), 0);
  EXPECT_THROW(read(in("pipe")), DataError) << "nobody writes: reading would wait for ever";
  EXPECT_FALSE(ReadRoot(in("")).is_regular_file(in("pipe")));
}

// Between judging a path and opening it somebody may put a link there.
TEST_F(ReadRootTest, ALinkThatComesMeanwhileIsNoWayOut) {
  std::atomic<bool> done = false;
  std::thread swapping([&] {
    while (!done) {
      stdfs::create_directory_symlink(dir_ / "out", in("fresh"));
      stdfs::rename(in("a"), in("aside"));
      stdfs::rename(in("fresh"), in("a"));
      stdfs::remove(in("a"));
      stdfs::rename(in("aside"), in("a"));
    }
  });
  int inside = 0, refused = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) {
    try {
      const std::string text = read(in("a/file"));
      EXPECT_EQ(text, "inside");
      ++inside;
    } catch (const Error&) {
      ++refused;
    }
  }
  done = true;
  swapping.join();
  EXPECT_GT(inside, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace lockstep::fs
