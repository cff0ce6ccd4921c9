#include "commands/launch/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"

extern char** environ;

namespace lockstep::commands {

namespace {

using Pipe = parallel::tcp::Socket;

std::pair<Pipe, Pipe> new_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw ResourceError({.what = "the system refuses a pipe for a rank", .got = std::strerror(errno)});
  return {Pipe(ends[0]), Pipe(ends[1])};
}

std::vector<std::string> rank_environment(const std::vector<std::pair<std::string, std::string>>& own) {
  std::vector<std::string> list;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (const auto& [name, value] : own) replaced = replaced || text.starts_with(name + "=");
    if (!replaced) list.push_back(text);
  }
  for (const auto& [name, value] : own) list.push_back(name + "=" + value);
  return list;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// In the child. Its own group: a terminal's Ctrl-C reaches the launcher alone, which passes it on once.
[[noreturn]] void become(const std::vector<char*>& words, const std::vector<char*>& variables, pid_t parent,
                         const std::array<int, 2>& output, const std::array<int, 2>& kept) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(137);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(output[0], STDOUT_FILENO);
  ::dup2(output[1], STDERR_FILENO);
  for (const int fd : kept)
    if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvpe(words[0], words.data(), variables.data());
  const char* const reason = std::strerror(errno);
  for (const char* const text : {"error: ", static_cast<const char*>(words[0]), " cannot be started: ", reason, "\n"})
    (void)!::write(STDERR_FILENO, text, std::strlen(text));
  ::_exit(127);
}

}  // namespace

RankProcess::RankProcess(const RankCommand& command) : prefix_(command.prefix) {
  auto [secret, lifeline] = new_pipe();
  auto [out, out_end] = new_pipe();
  auto [err, err_end] = new_pipe();
  if (::write(lifeline.fd(), command.secret.data(), command.secret.size()) !=
      static_cast<ssize_t>(command.secret.size()))
    throw ResourceError({.what = "a rank cannot be given the job's secret", .got = std::strerror(errno)});
  std::vector<std::pair<std::string, std::string>> variables = command.environment;
  variables.emplace_back("LOCKSTEP_SECRET_FD", std::to_string(secret.fd()));
  if (command.listen_fd >= 0) variables.emplace_back("LOCKSTEP_LISTEN_FD", std::to_string(command.listen_fd));
  std::vector<std::string> words = command.words, entries = rank_environment(variables);
  const std::vector<char*> word_pointers = pointers_to(words), entry_pointers = pointers_to(entries);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(word_pointers, entry_pointers, parent, {out_end.fd(), err_end.fd()}, {secret.fd(), command.listen_fd});
  if (pid_ < 0) throw ResourceError({.what = "the system refuses a process for a rank", .got = std::strerror(errno)});
  ::setpgid(pid_, pid_);
  for (const Pipe* const end : {&out, &err}) ::fcntl(end->fd(), F_SETFL, O_NONBLOCK);
  output_[0] = std::move(out);
  output_[1] = std::move(err);
  lifeline_ = std::move(lifeline);
}

RankProcess::~RankProcess() {
  if (pid_ <= 0) return;
  kill_all();
  int status = 0;
  if (!exit_code_) ::waitpid(pid_, &status, 0);
}

std::string RankProcess::read(int stream) {
  std::string lines;
  std::array<char, 64 << 10> buffer;
  std::string& rest = rest_[stream];
  for (;;) {
    const ssize_t got = ::read(output_[stream].fd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      output_[stream].close();
      break;
    }
    rest.append(buffer.data(), static_cast<size_t>(got));
  }
  if (fd(stream) < 0 && !rest.empty() && !rest.ends_with('\n')) rest += '\n';
  size_t begin = 0;
  for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(rest).substr(begin, end + 1 - begin);
    const bool begins = stream == 1 && error_.empty() && line.starts_with("error: ");
    if (begins) error_since_ = std::chrono::steady_clock::now();
    if (begins || (stream == 1 && !error_.empty()))
      error_ += line;
    else
      lines.append(prefix_).append(line);
  }
  rest.erase(0, begin);
  return lines;
}

std::optional<RankProcess::ErrorText> RankProcess::take_error() {
  constexpr std::chrono::seconds kLongest{1};
  const bool last = fd(1) < 0;
  if (error_.empty() || (!last && std::chrono::steady_clock::now() < error_since_ + kLongest)) return std::nullopt;
  return ErrorText{.text = std::exchange(error_, ""), .last = last};
}

char RankProcess::state() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');  // of the name, which may hold anything
  return end != std::string::npos && end + 2 < text.size() ? text[end + 2] : char{0};
}

bool RankProcess::is_stopped() const {
  const char now = state();
  return now == 'T' || now == 't';
}

bool RankProcess::is_suspended() const {
  return state() == 'T';
}

void RankProcess::signal(int number) const {
  if (lives()) ::kill(pid_, number);
}

void RankProcess::kill_all() {
  ::kill(-pid_, SIGKILL);
  if (lives()) ::kill(pid_, SIGKILL);
}

std::optional<int> RankProcess::exit_code() {
  int status = 0;
  if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    by_signal_ = WIFSIGNALED(status);
    exit_code_ = by_signal_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    ::kill(-pid_, SIGKILL);  // what it has started and left behind
  }
  return exit_code_;
}

}  // namespace lockstep::commands
