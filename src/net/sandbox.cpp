#include "net/sandbox.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "net/sandbox_cell.h"

namespace lockstep::net {

namespace {

bool send_all(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t bytes = ::send(socket, at, size, MSG_NOSIGNAL);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    at += bytes;
    size -= static_cast<size_t>(bytes);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t bytes = ::recv(socket, at, size, 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return false;
    at += bytes;
    size -= static_cast<size_t>(bytes);
  }
  return true;
}

// Numbers, then texts behind their lengths: both ends are this program.
using Numbers = std::array<int64_t, 4>;

bool send_message(int socket, const Numbers& numbers, const std::string& first, const std::string& second) {
  const std::array<uint64_t, 2> sizes = {first.size(), second.size()};
  return send_all(socket, numbers.data(), sizeof numbers) && send_all(socket, sizes.data(), sizeof sizes) &&
         send_all(socket, first.data(), first.size()) && send_all(socket, second.data(), second.size());
}

bool receive_message(int socket, Numbers& numbers, std::string& first, std::string& second) {
  std::array<uint64_t, 2> sizes{};
  if (!receive_all(socket, numbers.data(), sizeof numbers) || !receive_all(socket, sizes.data(), sizeof sizes))
    return false;
  first.resize(sizes[0]);
  second.resize(sizes[1]);
  return receive_all(socket, first.data(), first.size()) && receive_all(socket, second.data(), second.size());
}

[[noreturn]] void serve(int socket) {
  Numbers numbers{};
  SandboxJob job;
  while (receive_message(socket, numbers, job.code, job.input)) {
    job.timeout = std::chrono::milliseconds(numbers[0]);
    job.memory_mb = numbers[1];
    job.max_output_bytes = numbers[2];
    const SandboxResult result = run_in_cell(job);
    if (!send_message(socket, {static_cast<int64_t>(result.end), result.code, 0, 0}, result.output, result.error))
      break;
  }
  ::_exit(0);
}

size_t num_threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

}  // namespace

Sandbox::Sandbox() {
  if (num_threads() != 1)
    throw ConfigError({.what = "a sandbox is made before there are threads", .got = std::to_string(num_threads())});
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw ResourceError({.what = "no socket to a sandbox", .got = std::strerror(errno)});
  const pid_t parent = ::getpid();
  helper_ = ::fork();
  if (helper_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::setpgid(0, 0);  // a Ctrl-C is the parent's
    for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
    ::close(ends[0]);
    serve(ends[1]);
  }
  ::close(ends[1]);
  socket_ = ends[0];
  if (helper_ < 0) throw ResourceError({.what = "a sandbox cannot be started", .got = std::strerror(errno)});
  const SandboxResult probe = run({.code = "print(6 * 7)"});
  if (probe.end != SandboxResult::End::exited || probe.output != "42\n")
    throw ConfigError({.what = "this machine cannot keep strangers' code apart",
                       .got = probe.error.empty() ? probe.output : probe.error,
                       .wanted = "user, mount, pid and network namespaces, seccomp, and /usr/bin/python3",
                       .attempt = "sandbox_fusion, which runs code elsewhere"});
}

Sandbox::~Sandbox() {
  if (socket_ >= 0) ::close(socket_);
  if (helper_ <= 0) return;
  ::kill(helper_, SIGKILL);
  ::waitpid(helper_, nullptr, 0);
}

SandboxResult Sandbox::run(const SandboxJob& job) {
  SandboxResult result;
  Numbers numbers = {job.timeout.count(), job.memory_mb, job.max_output_bytes, 0};
  if (!send_message(socket_, numbers, job.code, job.input) ||
      !receive_message(socket_, numbers, result.output, result.error))
    throw ResourceError({.what = "the sandbox's helper is gone"});
  result.end = static_cast<SandboxResult::End>(numbers[0]);
  result.code = static_cast<int>(numbers[1]);
  return result;
}

}  // namespace lockstep::net
