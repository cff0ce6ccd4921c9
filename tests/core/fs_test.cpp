#include "core/fs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::fs {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

const char* const kDevNull = "/dev/null/x";  // a parent that is no directory: unwritable for root too

TEST(ReadFile, BytesAsTheyAre) {
  const TempDirectory dir;
  const std::string bytes("a\0\r\n\xff", 5);
  EXPECT_EQ(read_file(dir.write("x", bytes)), bytes);
  EXPECT_EQ(read_file(dir.write("empty", "")), "");
  const std::string big(300000, 'q');
  EXPECT_EQ(read_file(dir.write("big", big)), big);
}

TEST(ReadFile, APipeHasNoSize) {
  const TempDirectory dir;
  const Path pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string bytes(100000, 'p');
  std::thread writer([&] {
    const int fd = ::open(pipe.c_str(), O_WRONLY);
    for (size_t sent = 0; sent < bytes.size();)
      sent += static_cast<size_t>(::write(fd, &bytes[sent], bytes.size() - sent));
    ::close(fd);
  });
  EXPECT_EQ(read_file(pipe), bytes);
  writer.join();
}

TEST(ReadFile, ErrorsNamePathAndReason) {
  const TempDirectory dir;
  expect_error<DataError>([&] { read_file(dir / "absent"); }, {"absent", "No such file"});
  expect_error<DataError>([&] { read_file(dir.path()); }, {"Is a directory"});
}

TEST(ReadBuffer, BytesAsTheyAreOrAnError) {
  const TempDirectory dir;
  for (const std::string& bytes : {std::string("a\0\r\n\xff", 5), std::string(), std::string(5 << 20, 'q')}) {
    const Buffer buffer = read_buffer(dir.write("x", bytes));
    EXPECT_EQ(std::string(static_cast<const char*>(buffer.data()), buffer.bytes()), bytes);
  }
  expect_error<DataError>([&] { read_buffer(dir / "absent"); }, {"absent", "No such file"});
  expect_error<DataError>([&] { read_buffer(dir.path()); }, {"Is a directory"});
  // The kernel says 0 bytes and 4096 bytes of these.
  expect_error<DataError>([&] { read_buffer("/proc/self/status"); }, {"changed", "/proc/self/status", "0 bytes"});
  expect_error<DataError>([&] { read_buffer("/sys/devices/system/cpu/online"); }, {"changed", "4096 bytes"});
}

// Pipes and files of the kernel do not say how large they are.
TEST(ReadFile, NoMoreThanAskedFor) {
  const TempDirectory dir;
  const Path path = dir.write("x", std::string(5000, 'x'));
  EXPECT_EQ(read_file(path, {}, 5000).size(), 5000u);
  EXPECT_EQ(read_file_if_exists(path, 5000)->size(), 5000u);
  expect_error<FormatError>([&] { read_file(path, {}, 4999); }, {"x", "too large", "5000 bytes", "at most 4999"});
  expect_error<FormatError>([&] { read_file(path, ReadRoot(dir.path()), 4999); }, {"too large"});
  expect_error<FormatError>([&] { read_file_if_exists(path, 10); }, {"too large"});
  expect_error<FormatError>([&] { read_file("/dev/zero", {}, 100000); }, {"/dev/zero", "at most 100000"});
}

TEST(WriteFileAtomic, WritesReplacesAndMakesParents) {
  const TempDirectory dir;
  const Path file = dir / "a/b/c.txt";
  write_file_atomic(file, "one");
  EXPECT_EQ(read_file(file), "one");
  write_file_atomic(file, "two");
  EXPECT_EQ(read_file(file), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir / "a/b"), {}), 1) << "a temporary file was left";
}

TEST(WriteFileAtomic, FailureLeavesTheOldFile) {
  const TempDirectory dir;
  dir.write("target/inside", "old");
  // A directory that is not empty cannot be replaced by a file.
  expect_error<ResourceError>([&] { write_file_atomic(dir / "target", "new"); }, {"target"});
  EXPECT_EQ(read_file(dir / "target/inside"), "old");
  EXPECT_EQ(dir.entries(), 1) << "a temporary file was left";
  expect_error<ResourceError>([] { write_file_atomic(kDevNull, "x"); }, {"/dev/null", "try:"});
}

TEST(WriteFileAtomic, ReplacesWhatALinkLeadsTo) {
  const TempDirectory dir;
  dir.write("kept/file", "old");
  for (const char* target : {"kept/file", "kept/new"}) {
    std::filesystem::remove(dir / "link");
    std::filesystem::create_symlink(target, dir / "link");
    write_file_atomic(dir / "link", target);
    EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
    EXPECT_EQ(read_file(dir / target), target);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir / "kept"), {}), 2) << "temporary files";
}

TEST(WriteFileAtomic, LinksInACircleAreAnErrorOfWriting) {
  const TempDirectory dir;
  std::filesystem::create_symlink("b", dir / "a");
  std::filesystem::create_symlink("a", dir / "b");
  expect_error<ResourceError>([&] { write_file_atomic(dir / "a", "x"); }, {"cannot write", "symbolic links"});
}

TEST(WriteFileAtomic, WritesAPipeAsItIs) {
  const TempDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const int reader = ::open((dir / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  write_file_atomic(dir / "pipe", "bytes");
  EXPECT_TRUE(std::filesystem::is_fifo(dir / "pipe"));
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, sizeof(got)), 5);
  EXPECT_STREQ(got, "bytes");
  ::close(reader);
}

TEST(WriteFileAtomic, ReadersSeeOldOrNewNeverAMixture) {
  const TempDirectory dir;
  const Path file = dir / "x";
  write_file_atomic(file, std::string(50000, '0'));
  std::vector<std::thread> writers;
  for (char c : {'1', '2'})
    writers.emplace_back([&file, c] {
      for (int i = 0; i < 50; ++i) write_file_atomic(file, std::string(50000, c));
    });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read_file(file);
    ASSERT_EQ(seen.size(), 50000u);
    ASSERT_EQ(seen.find_first_not_of(seen[0]), std::string::npos);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(dir.entries(), 1);
}

TEST(WriteDirectoryAtomic, AppearsWhole) {
  const TempDirectory dir;
  write_directory_atomic(dir / "new/", [&](const Path& fresh) {
    EXPECT_FALSE(std::filesystem::exists(dir / "new"));
    std::filesystem::create_directory(fresh / "sub");
    write_file_atomic(fresh / "sub/file", "x");
  });
  EXPECT_EQ(read_file(dir / "new/sub/file"), "x");
  EXPECT_EQ(dir.entries(), 1);
}

TEST(WriteDirectoryAtomic, ReplacesWhatIsThere) {
  const TempDirectory dir;
  dir.write("d/old", "old");
  write_directory_atomic(dir / "d", [&](const Path& fresh) {
    EXPECT_EQ(read_file(dir / "d/old"), "old");
    write_file_atomic(fresh / "new", "new");
  });
  EXPECT_FALSE(std::filesystem::exists(dir / "d/old"));
  EXPECT_EQ(read_file(dir / "d/new"), "new");
  EXPECT_EQ(dir.entries(), 1);
}

TEST(WriteDirectoryAtomic, AnExceptionLeavesThingsAsTheyWere) {
  const TempDirectory dir;
  dir.write("d/old", "old");
  const auto failing = [](const Path& fresh) {
    write_file_atomic(fresh / "half", "x");
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(write_directory_atomic(dir / "d", failing), std::runtime_error);
  EXPECT_THROW(write_directory_atomic(dir / "e", failing), std::runtime_error);
  EXPECT_EQ(read_file(dir / "d/old"), "old");
  EXPECT_EQ(dir.entries(), 1) << "a temporary directory was left";
}

TEST(RequireWritableDirectory, MakesItAndLeavesNothing) {
  const TempDirectory dir;
  require_writable_directory(dir / "a/b");
  EXPECT_TRUE(std::filesystem::is_empty(dir / "a/b"));
  expect_error<ResourceError>([] { require_writable_directory(kDevNull); }, {"/dev/null", "try:"});
  const Path file = dir.write("file", "");
  expect_error<ResourceError>([&] { require_writable_directory(file); }, {"file"});
}

// What cannot be looked at is not what is missing.
TEST(Exists, OnlyWhatTheSystemSaysIsMissingIsMissing) {
  const TempDirectory dir;
  const Path file = dir.write("x", "1"), ring = dir / "ring";
  std::filesystem::create_symlink(ring, ring);
  EXPECT_TRUE(fs::exists(file) && fs::is_file(file) && !fs::is_directory(file));
  EXPECT_TRUE(fs::exists(dir.path()) && !fs::is_file(dir.path()) && fs::is_directory(dir.path()));
  for (const Path& missing : {dir / "absent", file / "below"}) {
    EXPECT_FALSE(fs::exists(missing) || fs::is_file(missing) || fs::is_directory(missing)) << missing;
    EXPECT_EQ(read_file_if_exists(missing), std::nullopt) << missing;
  }
  EXPECT_EQ(read_file_if_exists(file), "1");
  const auto refused = [&](const auto& look) { expect_error<DataError>(look, {"ring", "symbolic links"}); };
  refused([&] { fs::exists(ring); });
  refused([&] { fs::is_file(ring); });
  refused([&] { fs::is_directory(ring); });
  refused([&] { read_file_if_exists(ring); });
}

TEST(SweepTemporaries, OnlyOfProcessesThatAreGone) {
  const TempDirectory dir;
  const pid_t gone = [] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    return child;
  }();
  const auto named = [](const std::string& name, pid_t process) {
    return "." + name + ".tmp-" + std::to_string(process) + "-0";
  };
  dir.write(named("iter_0000002", gone) + "/adapter/x", "1");
  dir.write(named("marker", gone), "1");
  dir.write(named("iter_0000003", ::getpid()) + "/x", "1");  // of the process that had our number before us
  for (const std::string& kept :
       {named("iter_0000002", 1), named("other", gone), named("iter_1", gone) + ".old", std::string("iter_0000001"),
        std::string(".iter_0000001.tmp-x-0"), std::string(".iter_0000001.tmp-3"), std::string("iter_4.tmp-3-0")})
    dir.write(kept, "1");
  sweep_temporaries(dir.path(), [](const std::string& name) { return name.starts_with("iter_") || name == "marker"; });
  EXPECT_EQ(dir.entries(), 7);
  EXPECT_TRUE(fs::exists(dir / named("iter_0000002", 1)) && fs::exists(dir / named("other", gone)));
}

TEST(File, ReadsAtAnyPlaceAndKnowsWhenItWasCut) {
  const TempDirectory dir;
  const Path path = dir.write("x", std::string(9000, 'a') + "end");
  File file(path);
  EXPECT_EQ(file.size(), 9003u);
  std::string bytes(3, '-');
  file.read(bytes.data(), 9000, 3);
  EXPECT_EQ(bytes, "end");
  File moved = std::move(file);
  std::filesystem::resize_file(path, 4096);
  moved.read(bytes.data(), 4093, 3);
  EXPECT_EQ(bytes, "aaa");
  expect_error<DataError>([&] { moved.read(bytes.data(), 4094, 3); }, {"changed while it was read", "4096 bytes"});
  expect_error<DataError>([&] { File(dir / "absent"); }, {"absent", "No such file"});
  expect_error<DataError>([&] { File(dir.path()); }, {"Is a directory"});
}

TEST(File, OfADescriptorThatIsOpen) {
  const TempDirectory dir;
  const Path path = dir.write("x", "hello");
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "what is x");
  EXPECT_EQ(file.size(), 5u);
  std::filesystem::resize_file(path, 2);
  char byte;
  expect_error<DataError>([&] { file.read(&byte, 4, 1); }, {"what is x", "2 bytes"});
  const int directory = ::open(dir.path().c_str(), O_RDONLY | O_CLOEXEC);
  expect_error<DataError>([&] { File(directory, "no file"); }, {"no file", "Is a directory"});
  EXPECT_EQ(::fcntl(directory, F_GETFD), -1) << "the descriptor was left open";
}

TEST(SamePlace, SpellingDoesNotMatter) {
  const testing::TempDirectory dir;
  const std::string run = (dir.path() / "run").string();  // need not exist
  EXPECT_TRUE(same_place(run, run + "/"));
  EXPECT_TRUE(same_place(run, (dir.path() / "." / "other" / ".." / "run").string()));
  EXPECT_FALSE(same_place(run, run + "2"));
  EXPECT_FALSE(same_place(run, ""));
  EXPECT_FALSE(same_place("", ""));
}

}  // namespace
}  // namespace lockstep::fs
