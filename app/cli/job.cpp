#include "cli/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <thread>

#include "commands/commands.h"
#include "commands/launch/launch.h"
#include "core/error.h"
#include "parallel/visible_gpu.h"

namespace lockstep::cli {

namespace {

constexpr int kRestarts = 3;  // as AReaL's default

void choose_gpu(const parallel::Launch& launch, int64_t ranks_per_gpu, const Variables& variables) {
  if (const auto mine = parallel::visible_gpu(launch, ranks_per_gpu, variables("CUDA_VISIBLE_DEVICES")))
    ::setenv("CUDA_VISIBLE_DEVICES", mine->c_str(), 1);
  // Multicast in the switch gains nothing for bytes that are only moved, and a rank that cannot set it up may hang.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
}

parallel::Secret secret_of(const Launched& launched, const recipes::RankOptions& options) {
  if (launched.secret) return *launched.secret;
  if (!options.secret_file.empty()) return parallel::read_secret(options.secret_file);
  const parallel::Launch& launch = launched.launch;
  if (launch.local_size == launch.size && parallel::is_this_host(launch.master)) return {};
  throw ConfigError({.what = "ranks on several hosts need the job's secret",
                     .where = launched.launcher,
                     .attempt = "--job-secret-file FILE (docs/distributed.md)"});
}

}  // namespace

void become_rank(const Launched& launched, recipes::BaseOptions& base, recipes::TrainingOptions& training,
                 const Console& console, std::ostream& nowhere, recipes::Control& control) {
  const parallel::Launch& launch = launched.launch;
  recipes::RankOptions& options = training.ranks;
  options.size = launch.size;
  if (base.device != "cpu") choose_gpu(launch, options.ranks_per_device, console.variables);
  parallel::Connection connection{.launch = launch,
                                  .secret = secret_of(launched, options),
                                  .build = commands::build_commit(),
                                  .identity = {},
                                  .timeouts = {},
                                  .stuck = console.stuck};
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_minutes * 60'000));
  connection.timeouts.call = connection.timeouts.meet = timeout;
  control.rank = launch.rank;
  if (launch.rank != 0) {  // what it would say, rank 0 says; errors go to stderr
    control.info = &nowhere;
    control.terminal = false;
  } else {
    connection.say = [info = control.info](const std::string& line) { *info << "note    " << line << std::endl; };
  }
  if (base.stream.threads == 0)
    base.stream.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / launch.local_size);
  control.join = [connection, &console](const parallel::Identity& identity) {
    parallel::Connection mine = connection;
    mine.identity = identity;
    // Ranks that wait for one that never comes have nothing to save.
    console.end_at_once(true);
    if (console.interrupted()) throw Cancelled({.what = "interrupted before the ranks of the job have met"});
    std::unique_ptr<parallel::Group> group = parallel::connect(mine);
    console.end_at_once(false);
    return group;
  };
}

int start_ranks(const recipes::Layout& layout, const recipes::RankOptions& options, const Values& words,
                const Console& console) {
  if (layout.hosts > 1)
    throw ConfigError({.what = "the ranks of several hosts are started by a launcher on each",
                       .where = "--actor-num-nodes",
                       .got = std::to_string(layout.hosts),
                       .attempt = fmt::format(
                           "lockstep launch -n {} --num-nodes {} --node-rank R --master-addr HOST --master-port 29500 "
                           "--job-secret-file FILE {} ... on each of them, srun or mpirun (docs/distributed.md)",
                           layout.ranks_per_host(), layout.hosts, words[0])});
  commands::LaunchOptions launch{.ranks = static_cast<int>(layout.ranks()),
                                 .restarts = options.fault_tolerance ? kRestarts : 0,
                                 .command = {std::filesystem::read_symlink("/proc/self/exe").string()}};
  launch.command.insert(launch.command.end(), words.begin(), words.end());
  return commands::run_launch(launch, {.out = console.out, .info = console.err});
}

}  // namespace lockstep::cli
