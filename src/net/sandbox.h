// Programs of strangers, on this machine and away from everything on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::net {

struct SandboxJob {
  std::string code;                           // of Python; it is main.py in the working directory
  std::string input;                          // on its standard input
  std::chrono::milliseconds timeout{10'000};  // wall time; processor time is bounded by it, rounded up to seconds
  int64_t memory_mb = 1024;                   // of the address space of each process
  int64_t max_output_bytes = 1 << 20;         // of standard output; more ends the program
};

struct SandboxResult {
  enum class End { exited, killed, timed_out, too_much_output, not_started };
  End end = End::not_started;
  int code = 0;        // of exited; of killed, the signal
  std::string output;  // what it printed
  std::string error;   // of not_started: why; otherwise the last two thousand bytes of its standard error
};

// Runs one job at a time, each in a process of its own with
//   namespaces   user, mount, pid, network, IPC and UTS: it sees no process but its own, and no network
//   files        /usr, /bin, /lib*, /sbin and three devices, read-only; an empty tmpfs of 64 MiB to work in; nothing
//   else
//                of this machine
//   identity     nobody, if this process is root's; no capabilities, no_new_privs
//   calls        a seccomp filter: no sockets, mounts, namespaces, tracing, keys, BPF, io_uring, or modules
//   limits       processor time, address space, 32 processes, 16 MiB a file, 64 descriptors, no core
//   inheritance  an empty environment, descriptors 0 to 2
// All of its processes are killed when the job ends, and when this process ends in any way, SIGKILL included: it is
// started by a helper that dies with its parent, and that was forked before this process had threads.
class Sandbox {
 public:
  // ConfigError: there are threads already, or this machine cannot isolate a program (it says what it refused).
  Sandbox();
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // From one thread at a time. ResourceError: the helper is gone.
  SandboxResult run(const SandboxJob& job);

 private:
  int socket_ = -1, helper_ = -1;
};

}  // namespace lockstep::net
