#include "cli/launcher_variables.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/flags.h"

namespace lockstep::cli {

namespace {

struct Launcher {
  const char *name, *rank, *size, *local_rank, *local_size, *job;
  const char* step = nullptr;  // where a job starts its ranks several times
};

constexpr int64_t kMost = 1 << 20;  // of ranks, hosts and file descriptors
constexpr const char* kTasksOfHosts = "SLURM_STEP_TASKS_PER_NODE";

constexpr Launcher kLaunchers[] = {
    {"RANK and WORLD_SIZE (lockstep launch, torchrun)", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID"},
    {"OMPI_COMM_WORLD_RANK (mpirun)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"PMI_RANK (mpiexec)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
    // SLURM_PROCID alone stands in batch scripts, too.
    {"SLURM_PROCID (srun)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", kTasksOfHosts, "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
};

std::optional<int64_t> number_in(const Variables& variables, const char* name, int64_t most) {
  const std::optional<std::string> text = variables(name);
  if (!text) return std::nullopt;
  return parse_integer(std::string("environment variable ") + name, *text, 0, most);
}

// The number of this host in a list such as "2(x3),1": 2 tasks on each of the first three hosts, 1 on the fourth.
int64_t tasks_of_this_host(const std::string& list, const Variables& variables) {
  const std::string where = std::string("environment variable ") + kTasksOfHosts;
  const std::optional<int64_t> host = number_in(variables, "SLURM_NODEID", kMost);
  int64_t hosts = 0;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    const size_t times = entry.find("(x");
    const int64_t tasks = parse_integer(where, entry.substr(0, times), 1, kMost);
    if (times != std::string::npos && !entry.ends_with(')')) break;
    hosts += times == std::string::npos
                 ? 1
                 : parse_integer(where, entry.substr(times + 2, entry.size() - times - 3), 1, kMost);
    const bool is_all = begin == 0 && end == list.size();  // every host has the same number
    if (host ? *host < hosts : is_all) return tasks;
    begin = end + 1;
  }
  throw ConfigError({.what = "it is not known how many ranks are on this host",
                     .where = where,
                     .got = fmt::format("{} for host {}", list, host ? std::to_string(*host) : "unknown"),
                     .wanted = "numbers for all hosts, such as 2(x3),1, and SLURM_NODEID below their count"});
}

int64_t ranks_of_this_host(const Launcher& launcher, const Variables& variables, int64_t size) {
  if (launcher.local_size == kTasksOfHosts) {
    const std::optional<std::string> list = variables(kTasksOfHosts);
    return list ? tasks_of_this_host(*list, variables) : size;
  }
  return number_in(variables, launcher.local_size, kMost).value_or(size);
}

std::string job_of(const Launcher& launcher, const Variables& variables) {
  const std::string job = variables(launcher.job).value_or("");
  const std::optional<std::string> step = launcher.step == nullptr ? std::nullopt : variables(launcher.step);
  return step ? job + "." + *step : job;
}

// The first name of a list such as "node[03-05,09],other".
std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

std::optional<Launched> read_launcher(const Launcher& launcher, const Variables& variables) {
  const auto rank = number_in(variables, launcher.rank, kMost), size = number_in(variables, launcher.size, kMost);
  if (!rank || !size || *size < 2) return std::nullopt;
  Launched launched{.launch = {.rank = static_cast<int>(*rank), .size = static_cast<int>(*size)},
                    .launcher = launcher.name,
                    .secret = {}};
  launched.launch.local_rank = static_cast<int>(number_in(variables, launcher.local_rank, kMost).value_or(*rank));
  launched.launch.local_size = static_cast<int>(ranks_of_this_host(launcher, variables, *size));
  launched.launch.job = job_of(launcher, variables);
  return launched;
}

// Where no launcher is known by all of its variables: a rank that took itself for the only one would train alone.
void require_both(const Variables& variables) {
  const bool has_rank = variables("RANK").has_value();
  if (has_rank == variables("WORLD_SIZE").has_value()) return;
  throw ConfigError({.what = "only one of the environment variables RANK and WORLD_SIZE is set",
                     .got = has_rank ? "RANK" : "WORLD_SIZE",
                     .wanted = "both for a rank of a job, neither for a run of one process"});
}

void require_agreement(const Launched& first, const Launched& other) {
  if (first.launch.rank == other.launch.rank && first.launch.size == other.launch.size) return;
  const auto place = [](const Launched& l) {
    return fmt::format("rank {} of {} in {}", l.launch.rank, l.launch.size, l.launcher);
  };
  throw ConfigError({.what = "two launchers disagree about this process",
                     .where = "environment variables",
                     .got = place(other),
                     .wanted = place(first),
                     .attempt = "unset the variables of the one that did not start this job"});
}

// A port above those that services have and below those that systems hand out.
uint16_t port_of_job(const std::string& job) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  for (const unsigned char c : job) hash = (hash ^ c) * 1099511628211u;
  return static_cast<uint16_t>(20000 + hash % 10000);
}

void find_master(Launched& launched, const Variables& variables) {
  parallel::Launch& launch = launched.launch;
  if (const auto address = variables("MASTER_ADDR"))
    launch.master = *address;
  else if (const auto hosts = variables("SLURM_STEP_NODELIST"); hosts && launch.local_size < launch.size)
    launch.master = first_host(*hosts);
  else if (launch.local_size < launch.size)
    throw ConfigError({.what = "it is not known on which host rank 0 is",
                       .where = launched.launcher,
                       .attempt = "MASTER_ADDR and MASTER_PORT (mpirun -x MASTER_ADDR -x MASTER_PORT)"});
  const std::optional<int64_t> port = number_in(variables, "MASTER_PORT", 65535);
  // torchrun's agent itself listens there; the number still tells its jobs apart.
  const bool is_taken = port && variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (is_taken) launch.job += ":" + std::to_string(*port);
  if (port && !is_taken)
    launch.port = static_cast<uint16_t>(*port);
  else if (!launch.job.empty())
    launch.port = port_of_job(launch.job);
  else
    throw ConfigError({.what = "it is not known at which port the ranks meet",
                       .where = launched.launcher,
                       .attempt = "MASTER_PORT=29500"});
}

void read_pipe(Launched& launched, const Variables& variables) {
  if (const auto fd = number_in(variables, "LOCKSTEP_LISTEN_FD", kMost); fd && launched.launch.rank == 0)
    launched.launch.listen_fd = static_cast<int>(*fd);
  const auto fd = number_in(variables, "LOCKSTEP_SECRET_FD", kMost);
  if (!fd) return;
  // What was written before this process began is there at once; what another program has taken never comes.
  ::fcntl(static_cast<int>(*fd), F_SETFL, O_NONBLOCK);
  ::fcntl(static_cast<int>(*fd), F_SETFD, FD_CLOEXEC);
  parallel::Secret secret;
  size_t count = 0;
  while (count < secret.size()) {
    const ssize_t got = ::read(static_cast<int>(*fd), secret.data() + count, secret.size() - count);
    if (got <= 0)
      throw ConfigError(
          {.what = "the launcher's pipe does not hold the job's secret",
           .where = "LOCKSTEP_SECRET_FD",
           .attempt = "one program for each rank: what lockstep launch starts has to be lockstep itself"});
    count += static_cast<size_t>(got);
  }
  launched.secret = secret;
  launched.launch.lifeline_fd = static_cast<int>(*fd);
}

}  // namespace

Variables process_variables() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::optional<Launched> launched_by(const Variables& variables) {
  std::optional<Launched> found;
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<Launched> launched = read_launcher(launcher, variables);
    if (!launched) continue;
    if (found) require_agreement(*found, *launched);
    if (!found) found = launched;
  }
  if (!found) {
    require_both(variables);
    return std::nullopt;
  }
  find_master(*found, variables);
  read_pipe(*found, variables);
  return found;
}

}  // namespace lockstep::cli
