// lockstep launch: the ranks of a job on this host, as processes that end together.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "recipes/control.h"

namespace lockstep::commands {

struct LaunchOptions {
  int ranks = 1;                          // processes on this host
  int num_nodes = 1, node_rank = 0;       // hosts of the job, and which of them this is
  std::string master_addr = "127.0.0.1";  // host 0, as the others reach it
  uint16_t master_port = 0;               // where its rank 0 listens; 0: a free port (one host)
  std::string secret_file;                // of the job (parallel::read_secret); empty: random, for one host
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  int restarts = 0;                  // of a job of one host, after a rank was killed or lost its GPU or the others
  std::vector<std::string> command;  // one of this program's commands with its arguments, or a program
};

// Starts the ranks and returns the job's exit code when all have ended: 0 if all returned 0, else that of the rank that
// failed first, 128 + the signal's number for one that was killed. Lines that ranks print are printed with "[rank] "
// before them. When a rank fails, the others, which notice it by themselves, are asked to end after two seconds
// (SIGTERM) and killed `grace` later; stopped ones at once. A rank that is stopped for more than a second while others
// run fails (exit code 1). After a failure that is not the command's own the job is started again, as often as
// `restarts` says: a command with --load goes on from its last checkpoint. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2
// are passed on to the ranks; after one that ends them they have `grace`, too. Ranks die with this process, even if
// that is killed. Each rank finds its place in the variables that app/cli/launcher_variables.h reads, and the secret in
// a pipe. ConfigError: impossible numbers, or several hosts without a secret file or a port, or with restarts.
// ResourceError: no process, no port.
int run_launch(const LaunchOptions& options, const recipes::Control& control);

}  // namespace lockstep::commands
