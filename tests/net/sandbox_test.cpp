// Strangers' code: what it may do, and what it tries in vain.
#include "net/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::net {
namespace {

using End = SandboxResult::End;
using namespace std::chrono_literals;

class SandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      sandbox_ = std::make_unique<Sandbox>();
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  SandboxResult run(const std::string& code, std::chrono::milliseconds timeout = 30s) {
    return sandbox_->run({.code = code, .timeout = timeout, .memory_mb = 512});
  }
  // What is printed where the code's every attempt is expected to fail.
  std::string attempt(const std::string& code) {
    const SandboxResult result = run("import os, sys\ntry:\n    " + code +
                                     "\n    print('done')\nexcept BaseException as e:\n"
                                     "    print('refused', type(e).__name__)\n");
    return result.output + result.error;
  }

  std::unique_ptr<Sandbox> sandbox_;
};

TEST_F(SandboxTest, RunsAProgram) {
  SandboxResult result = sandbox_->run(
      {.code = "import sys\nprint(sum(map(int, sys.stdin.read().split())))", .input = "1 2 3", .timeout = 60s});
  EXPECT_EQ(result.end, End::exited) << result.error;
  EXPECT_EQ(result.output, "6\n");
  result = run("import sys\nsys.stderr.write('oh')\nsys.exit(3)");
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.error, "oh");
  result = run("import os\nos.kill(os.getpid(), 9)\nimport ctypes\nctypes.string_at(0)");
  EXPECT_EQ(result.end, End::killed) << result.code;
  result =
      run("import json, asyncio, threading, subprocess\n"
          "async def f(): return 1\n"
          "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
          "print(asyncio.run(f()), subprocess.run(['/bin/echo', 'hi'], capture_output=True).stdout)\n"
          "open('note', 'w').write('x'); print(open('note').read())");
  EXPECT_EQ(result.output, "thread\n1 b'hi\\n'\nx\n") << result.error;
  EXPECT_EQ(run("import os\nprint(os.listdir('.'))").output, "['main.py']\n") << "nothing is left of the last one";
  std::string large(1 << 20, 'x');
  EXPECT_EQ(sandbox_->run({.code = "import sys\nprint(len(sys.stdin.read()))", .input = large, .timeout = 60s}).output,
            "1048576\n");
}

TEST_F(SandboxTest, SeesNothingOfThisMachine) {
  const testing::TempDirectory run_directory;
  const auto key = run_directory.write("key", "secret");
  std::filesystem::permissions(run_directory.path(), std::filesystem::perms::all);
  std::filesystem::permissions(key, std::filesystem::perms::all);
  EXPECT_EQ(attempt("print(open('" + key.string() + "').read())"), "refused FileNotFoundError\n");
  EXPECT_EQ(attempt("open('" + (run_directory.path() / "new").string() + "', 'w')"), "refused FileNotFoundError\n");
  EXPECT_FALSE(std::filesystem::exists(run_directory.path() / "new"));
  for (const char* path :
       {"/root", "/home", "/etc/passwd", "/etc/shadow", "/proc/1/environ", "/sys", "/run", "/var", "/old"})
    EXPECT_EQ(attempt("print(os.stat('" + std::string(path) + "'))"), "refused FileNotFoundError\n") << path;
  for (const char* path : {"/x", "/usr/x", "/bin/x", "/dev/x"})
    EXPECT_EQ(attempt("open('" + std::string(path) + "', 'w')"), "refused OSError\n") << path;
  EXPECT_EQ(run("import os\nprint(dict(os.environ), os.getuid(), os.getppid(), os.getpid())").output,
            "{'LC_CTYPE': 'C.UTF-8'} 1000 0 1\n");
  EXPECT_EQ(run("import os\ndef there(fd):\n    try: os.fstat(fd); return True\n    except OSError: return False\n"
                "print([fd for fd in range(64) if there(fd)])")
                .output,
            "[0, 1, 2]\n");
}

TEST_F(SandboxTest, ConnectsToNobody) {
  EXPECT_EQ(attempt("import socket; socket.create_connection(('127.0.0.1', 22), 1)"), "refused PermissionError\n");
  EXPECT_EQ(attempt("import socket; socket.socket(socket.AF_UNIX)"), "refused PermissionError\n");
}

TEST_F(SandboxTest, GainsNothing) {
  const std::string libc = "import ctypes; c = ctypes.CDLL(None, use_errno=True); ";
  EXPECT_EQ(run(libc + "print(c.unshare(0x10000000), c.mount(b'x', b'/box', b'tmpfs', 0, None), c.setuid(0), "
                       "c.ptrace(0, 0, 0, 0), c.chroot(b'/box'))")
                .output,
            "-1 -1 -1 -1 -1\n");
}

TEST_F(SandboxTest, EndsInTime) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run("while True: pass", 500ms).end, End::timed_out);
  EXPECT_EQ(run("import os, time\nos.close(1); os.close(2)\ntime.sleep(100)", 500ms).end, End::timed_out);
  EXPECT_EQ(
      run("import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: "
          "pass\ntime.sleep(100)",
          1s)
          .end,
      End::timed_out);
  EXPECT_EQ(run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", 1s).end, End::timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  EXPECT_EQ(run("while True: print('x' * 65536)").end, End::too_much_output);
  const SandboxResult memory = run("x = bytearray(4 << 30)");
  EXPECT_EQ(memory.code, 1);
  EXPECT_NE(memory.error.find("MemoryError"), std::string::npos);
  EXPECT_NE(run("f = open('big', 'wb')\nwhile True: f.write(b'x' * 65536)").code, 0) << "a file has a limit";
  EXPECT_EQ(run("print(1)").output, "1\n") << "the next one is as good as new";
}

// Process ids that descend from `ancestor`.
std::set<pid_t> descendants(pid_t ancestor) {
  std::set<pid_t> found = {ancestor};
  for (size_t before = 0; before != found.size();) {
    before = found.size();
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream stat(entry.path() / "stat");
      std::string text((std::istreambuf_iterator<char>(stat)), {});
      const size_t bracket = text.rfind(')');
      if (bracket == std::string::npos || text.size() < bracket + 4) continue;
      if (found.contains(std::atoi(text.c_str() + bracket + 4))) found.insert(std::stoi(name));
    }
  }
  found.erase(ancestor);
  return found;
}

bool wait_until(const std::function<bool()>& done) {
  for (int i = 0; i < 2000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

TEST_F(SandboxTest, NobodyOutlivesTheParent) {
  const pid_t parent = ::fork();
  if (parent == 0) {
    Sandbox sandbox;
    sandbox.run({.code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: "
                         "time.sleep(1000)\ntime.sleep(1000)",
                 .timeout = 1000s});
    ::_exit(0);
  }
  // Helper, cell, program and its two children; fewer may be processes on the way there.
  EXPECT_TRUE(wait_until([&] { return descendants(parent).size() >= 5; })) << descendants(parent).size();
  const std::set<pid_t> all = descendants(parent);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(wait_until([&] {
    for (const pid_t pid : all)
      if (::kill(pid, 0) == 0) return false;
    return true;
  }));
}

TEST_F(SandboxTest, IsMadeBeforeThreads) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) std::this_thread::sleep_for(1ms);
  });
  testing::expect_error<ConfigError>([] { Sandbox sandbox; }, {"before there are threads"});
  stop = true;
  other.join();
}

}  // namespace
}  // namespace lockstep::net
