#include "commands/launch/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "commands/launch/job_output.h"
#include "commands/launch/rank_process.h"
#include "core/hmac.h"
#include "parallel/connect.h"

namespace lockstep::commands {

namespace {

using parallel::tcp::Clock;
using parallel::tcp::Deadline;
using parallel::tcp::Socket;

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr std::chrono::seconds kNotice{1};           // for ranks to end by themselves after another has failed
constexpr std::chrono::milliseconds kTogether{200};  // ranks that end within it have ended together
constexpr std::chrono::milliseconds kLook{400};      // between two looks at whether a rank is stopped
constexpr int kStoppedLooks = 3;                     // after which it has failed

// A write that nobody reads fails; unlike an ignored signal, a handler ends with exec, so ranks have the usual effect.
void on_failed_write(int) {}

bool ends(int signal) {
  return signal != SIGUSR1;
}

void require_sensible(const LaunchOptions& o) {
  const auto refuse = [](const char* what, const char* where, const char* attempt) {
    throw ConfigError({.what = what, .where = where, .attempt = attempt});
  };
  if (o.command.empty()) refuse("no command", "lockstep launch", "lockstep launch -n 2 sft --hf-checkpoint DIR ...");
  if (o.node_rank >= o.num_nodes) refuse("the hosts of a job are numbered from 0", "--node-rank", "a smaller one");
  if (o.num_nodes == 1) return;
  if (o.restarts > 0)
    refuse("the launchers of several hosts do not start a job again", "--restarts",
           "a launcher that does (srun, torchrun), or one host");
  if (o.secret_file.empty())
    refuse("several hosts need the job's secret in a file", "--job-secret-file",
           "head -c 32 /dev/urandom > secret; chmod 600 secret; the same file on every host");
  if (o.master_port == 0)
    refuse("several hosts need a port that all of them know", "--master-port", "--master-port 29500");
  if (parallel::tcp::is_loopback(o.master_addr))
    refuse("the other hosts cannot reach host 0 there", "--master-addr", "its name or address in their network");
}

class Job {
 public:
  Job(const LaunchOptions& options, const recipes::Control& control) : options_(options) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : kPassedOn) sigaddset(&signals, signal);
    for (const int signal : {SIGCHLD, SIGTSTP}) sigaddset(&signals, signal);
    ::signal(SIGPIPE, on_failed_write);  // the ranks go on and save when nobody reads what they print
    ::sigprocmask(SIG_BLOCK, &signals, &before_);
    signals_ = Socket(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!signals_.open()) throw ResourceError({.what = "the system refuses a signalfd", .got = std::strerror(errno)});
    output_.emplace(*control.out, *control.info);  // its thread has the signals blocked, too
  }
  ~Job() {
    // What is left is to print what the ranks have said, which a signal from now on ends.
    signalfd_siginfo info;
    while (::read(signals_.fd(), &info, sizeof(info)) == sizeof(info)) continue;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      if (::signal(signal, SIG_DFL) == SIG_IGN) ::signal(signal, SIG_IGN);  // nohup
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int run() {
    for (int restart = 1;; ++restart) {
      const int code = run_once();
      if (restart > options_.restarts || asked_to_end_ || !is_accident(code)) return code;
      say(fmt::format("note    the job ended with exit code {} and is started again ({} of {})\n", code, restart,
                      options_.restarts));
      ranks_.clear();
      told_.clear();
      code_.reset(), ask_at_.reset(), kill_at_.reset();
    }
  }

 private:
  // A rank was killed (128 + a signal), lost the others (1) or its GPU (6). What the command itself says against its
  // options or data it would say again.
  static bool is_accident(int code) { return code > 128 || code == 1 || code == 6; }

  int run_once() {
    start();
    while (std::ranges::any_of(ranks_, [](const RankProcess& rank) { return rank.lives(); })) {
      wait();
      tell_errors();
      take_signals();
      reap();
      end_stopped();
      end_what_is_due();
    }
    for (RankProcess& rank : ranks_)
      for (const int stream : {0, 1})
        if (rank.fd(stream) >= 0) output_->print(stream, rank.read(stream));
    tell_errors();
    return code_.value_or(0);
  }

  // What several ranks end with in the same words, such as an unknown flag, is said once.
  void tell_errors() {
    for (RankProcess& rank : ranks_)
      while (const auto error = rank.take_error()) {
        if (error->last && !told_.insert(error->text).second) continue;
        std::istringstream lines(error->text);
        for (std::string line; std::getline(lines, line);) say(rank.prefix() + line + "\n");
      }
  }

  void say(std::string text) { output_->print(1, std::move(text)); }

  void start() {
    parallel::Secret secret;
    if (options_.secret_file.empty())
      fill_random(secret);
    else
      secret = parallel::read_secret(options_.secret_file);
    const bool alone = options_.num_nodes == 1;
    uint16_t port = options_.master_port;
    Socket listener;
    if (options_.node_rank == 0) {
      listener = parallel::tcp::listen_on(alone ? "127.0.0.1" : "", port);
      port = parallel::tcp::port_of(listener);
    }
    const int size = options_.ranks * options_.num_nodes;
    for (int local = 0; local < options_.ranks; ++local) {
      const int rank = options_.node_rank * options_.ranks + local;
      ranks_.emplace_back(RankCommand{.words = options_.command,
                                      .environment = {{"RANK", std::to_string(rank)},
                                                      {"WORLD_SIZE", std::to_string(size)},
                                                      {"LOCAL_RANK", std::to_string(local)},
                                                      {"LOCAL_WORLD_SIZE", std::to_string(options_.ranks)},
                                                      {"MASTER_ADDR", alone ? "127.0.0.1" : options_.master_addr},
                                                      {"MASTER_PORT", std::to_string(port)}},
                                      .secret = secret,
                                      .listen_fd = rank == 0 ? listener.fd() : -1,
                                      .prefix = size == 1 ? "" : fmt::format("[{}] ", rank)});
    }
  }

  // A rank that is stopped alone keeps the others waiting, who would miss its signs of life only later. Looks are
  // counted, so that a job that was stopped as a whole, with this process, is not taken for one.
  void end_stopped() {
    if (ending() || options_.ranks * options_.num_nodes == 1 || Clock::now() < next_look_) return;
    next_look_ = Clock::now() + kLook;
    size_t alive = 0, suspended = 0;
    for (RankProcess& rank : ranks_) {
      alive += rank.lives() ? 1 : 0;
      rank.suspended_looks = rank.lives() && rank.is_suspended() ? rank.suspended_looks + 1 : 0;
      suspended += rank.suspended_looks > 0 ? 1 : 0;
    }
    if (suspended == alive) return;
    for (size_t local = 0; local < ranks_.size(); ++local) {
      if (ranks_[local].suspended_looks < kStoppedLooks) continue;
      say(fmt::format("error: rank {} was stopped by a signal, and the others wait for it\n",
                      options_.node_rank * options_.ranks + static_cast<int>(local)));
      code_ = 1;
      ask_at_ = Clock::now() + kNotice;
    }
  }

  void wait() {
    std::vector<pollfd> entries{{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    const bool full = output_->is_full();
    for (const RankProcess& rank : ranks_)
      for (const int stream : {0, 1})
        entries.push_back({.fd = full ? -1 : rank.fd(stream), .events = POLLIN, .revents = 0});
    const Deadline next = Clock::now() + (ending() ? std::chrono::milliseconds(50) : kLook);
    ::poll(entries.data(), entries.size(), parallel::tcp::milliseconds_until(next));
    for (size_t i = 1; i < entries.size(); ++i)
      if (entries[i].revents != 0)
        output_->print(static_cast<int>((i - 1) % 2), ranks_[(i - 1) / 2].read(static_cast<int>((i - 1) % 2)));
  }

  void take_signals() {
    signalfd_siginfo info;
    while (::read(signals_.fd(), &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (signal == SIGTSTP) {
        suspend();
        continue;
      }
      if (asked_to_end_ && ends(signal) && signal != SIGHUP)
        say("error: a second signal: the ranks end at once, and what they have not saved is lost\n");
      asked_to_end_ = asked_to_end_ || ends(signal);
      for (const RankProcess& rank : ranks_) rank.signal(signal == SIGHUP ? SIGTERM : signal);
      if (ends(signal) && !kill_at_) kill_at_ = Clock::now() + options_.grace;
    }
  }

  // Ctrl-Z: until SIGCONT.
  void suspend() {
    for (const RankProcess& rank : ranks_) rank.signal(SIGSTOP);
    ::raise(SIGSTOP);
    for (const RankProcess& rank : ranks_) rank.signal(SIGCONT);
  }

  // Who was killed cannot say so itself.
  void tell_killed(const RankProcess& rank, int signal) {
    const auto number = options_.node_rank * options_.ranks + (&rank - &ranks_.front());
    say(fmt::format("error: rank {} was killed by signal {} ({})\n", number, signal, strsignal(signal)));
    if (signal == SIGKILL) say("  try:    dmesg, which tells whether the system had no memory left\n");
  }

  // Of those that ended together the one that was killed failed first, or one with an error of its own: the others
  // notice the end of its connections, perhaps before it is gone, and end with 1.
  void reap() {
    std::optional<int> failed;
    for (RankProcess& rank : ranks_) {
      if (!rank.lives()) continue;
      const std::optional<int> code = rank.exit_code();
      if (code && rank.was_killed() && !ending()) tell_killed(rank, *code - 128);
      if (code && *code != 0 && (!failed || *failed == 1 || rank.was_killed())) failed = code;
    }
    if (!failed) return;
    if (code_ && (*code_ != 1 || *failed == 130 || Clock::now() > failed_at_ + kTogether)) return;
    if (!code_) ask_at_ = (failed_at_ = Clock::now()) + kNotice;
    code_ = failed;
  }

  bool ending() const { return ask_at_ || kill_at_; }

  void end_what_is_due() {
    if (code_)
      for (RankProcess& rank : ranks_)
        if (rank.lives() && rank.is_stopped()) rank.kill_all();
    if (ask_at_ && Clock::now() >= *ask_at_) {
      ask_at_.reset();
      if (!kill_at_) {
        for (const RankProcess& rank : ranks_) rank.signal(SIGTERM);
        kill_at_ = Clock::now() + options_.grace;
      }
    }
    if (kill_at_ && Clock::now() >= *kill_at_)
      for (RankProcess& rank : ranks_)
        if (rank.lives()) rank.kill_all();
  }

  const LaunchOptions& options_;
  std::optional<JobOutput> output_;
  sigset_t before_{};
  Socket signals_;
  std::deque<RankProcess> ranks_;
  std::set<std::string> told_;  // errors of ranks that have ended
  std::optional<int> code_;     // of the first rank that failed
  std::optional<Deadline> ask_at_, kill_at_;
  Deadline next_look_{}, failed_at_{};
  bool asked_to_end_ = false;  // by a signal
};

}  // namespace

int run_launch(const LaunchOptions& options, const recipes::Control& control) {
  require_sensible(options);
  return Job(options, control).run();
}

}  // namespace lockstep::commands
