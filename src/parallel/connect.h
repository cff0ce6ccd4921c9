// A Group of processes over TCP, on one host or many.
//
// Rank 0 listens and the others connect to it. Each side of a connection proves that it knows the job's secret before
// any other byte is read; then the newcomer says who it is, and rank 0 refuses one that is not of this job or is not
// the same as itself (another build, device, base), and goes on waiting. When all ranks are there and every
// two of them are connected, nobody listens any more. Nothing is encrypted: the network has to be a trusted one.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group.h"

namespace lockstep::parallel {

using Secret = std::array<std::byte, 32>;

// Which rank of which job this process is, as its launcher says.
struct Launch {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master = "127.0.0.1";  // where rank 0 is
  uint16_t port = 0;
  std::string job;       // other jobs that meet at the same port are refused
  int listen_fd = -1;    // rank 0: a socket that the launcher has bound; -1: connect() binds `port`
  int lifeline_fd = -1;  // a pipe that the launcher holds open: the job ends when it closes; -1: none
};

// What has to be the same on all ranks: a field's name and what this rank has there.
using Identity = std::vector<std::pair<std::string, std::string>>;

struct Connection {
  Launch launch;
  Secret secret{};
  std::string build;  // of this program: ranks of different builds are told so, whatever else they could not read
  Identity identity;
  Timeouts timeouts;
  // A failure that this process's own thread has not heard of in Timeouts::exit_after: `stuck` is told the fault and
  // the exit code, on a thread of the group, and is expected to end the process. Empty: nobody is told.
  std::function<void(const Fault& fault, int exit_code)> stuck;
  std::function<void(const std::string& line)> say;  // a connection that was refused, and why. Empty: nobody is told
};

// Returns when all ranks are connected. ConfigError: an impossible rank or size, or rank 0 refuses this one (naming
// rank and field). Cancelled: not all have come in time, with the last one that was refused. ResourceError: the port.
// A group of one needs nobody: it is solo().
std::unique_ptr<Group> connect(const Connection& connection);

// Whether this is a loopback address, at which only processes of this host are heard.
bool is_this_host(const std::string& address);

// At least 16 bytes of anything, of which the secret is made. ConfigError: the file is
// another user's, or others may read or write it (wanted: mode 0600), or it is too short.
Secret read_secret(const std::string& file);

// Collective. ConfigError, the same on every rank, that names the first rank and field with another value than rank 0.
void require_same(Group& group, const Identity& mine);

}  // namespace lockstep::parallel
