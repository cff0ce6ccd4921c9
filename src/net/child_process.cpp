#include "net/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/hidden_secrets.h"

extern char** environ;

namespace lockstep::net {

namespace {

// Entries of this process's environment, those of the options in their place.
std::vector<std::string> environment(const ChildOptions& options) {
  std::vector<std::string> list;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool replaced = std::ranges::any_of(options.environment, [&](const auto& own) { return own.first == name; });
    if (!replaced) list.push_back(text);
  }
  for (const auto& [name, value] : options.environment) list.push_back(name + "=" + value);
  return list;
}

// Whether a process of the group lives. One that is dead stays in it until its parent, often the first process of a
// container, has asked for its exit code, which may never be.
bool group_lives(int group) {
  if (::kill(-group, 0) != 0) return false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    if (std::atoi(entry.path().filename().c_str()) <= 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');  // the name may hold anything
    if (name_end == std::string::npos) continue;
    char state = 0;
    int parent = 0, of = 0;
    std::istringstream(text.substr(name_end + 1)) >> state >> parent >> of;
    if (of == group && state != 'Z' && state != 'X') return true;
  }
  return static_cast<bool>(error);  // without /proc nobody can tell
}

// One program and its arguments: the shell can become it, so that it is the one who hears that this process died.
bool is_simple(const std::string& command) {
  return command.find_first_of(";|&<>()`\n") == std::string::npos &&
         command.substr(0, command.find(' ')).find('=') == std::string::npos;
}

int status_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

ChildProcess::ChildProcess(const ChildOptions& options) : log_(options.log) {
  const auto failed = [&](const std::string& what) {
    throw ResourceError({.what = what, .where = hide_secrets(options.command), .got = std::strerror(errno)});
  };
  std::vector<std::string> entries = environment(options);
  std::vector<char*> pointers;
  for (std::string& entry : entries) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  const std::string command = is_simple(options.command) ? "exec " + options.command : options.command;
  const auto [input, output, error] = options.standard;
  const bool logs = output < 0 || error < 0;
  const int log = logs ? ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (logs && log < 0) failed("the log " + log_.string() + " of a program cannot be written");
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {  // only calls that a signal handler may make: other threads may have held locks
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(input < 0 ? ::open("/dev/null", O_RDONLY) : input, STDIN_FILENO);
    ::dup2(output < 0 ? log : output, STDOUT_FILENO);
    ::dup2(error < 0 ? log : error, STDERR_FILENO);
    ::execle("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr), pointers.data());
    ::_exit(127);
  }
  if (log >= 0) ::close(log);
  if (pid_ < 0) failed("a program cannot be started");
  ::setpgid(pid_, pid_);
}

std::optional<int> ChildProcess::exit_code() {
  int status = 0;
  if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_) exit_code_ = status_code(status);
  return exit_code_;
}

void ChildProcess::end(std::chrono::milliseconds patience) {
  const auto lives = [&] { return !exit_code() || group_lives(pid_); };
  if (!lives()) return;
  ::kill(-pid_, SIGTERM);
  for (const auto until = std::chrono::steady_clock::now() + patience; std::chrono::steady_clock::now() < until;) {
    if (!lives()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::kill(-pid_, SIGKILL);
  int status = 0;
  if (!exit_code_ && ::waitpid(pid_, &status, 0) == pid_) exit_code_ = status_code(status);
}

ChildProcess::~ChildProcess() {
  end();
}

std::string ChildProcess::log_tail(size_t most) const {
  try {
    const fs::File file(log_);
    const size_t bytes = std::min(most, file.size());
    std::string text(bytes, '\0');
    file.read(text.data(), file.size() - bytes, bytes);
    return text;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace lockstep::net
