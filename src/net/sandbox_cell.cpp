#include "net/sandbox_cell.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

namespace lockstep::net {

namespace {

constexpr int kNotStarted = 126;
constexpr uid_t kNobody = 65534;

// Of the child: says what failed on its standard error, and ends.
[[noreturn]] void give_up(const char* what) {
  const std::string line = std::string("sandbox: ") + what + ": " + std::strerror(errno) + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(kNotStarted);
}

void must(bool done, const char* what) {
  if (!done) give_up(what);
}

bool write_text(const char* path, const std::string& text) {
  const int file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return false;
  bool good = true;
  for (size_t at = 0; good && at < text.size();) {
    const ssize_t bytes = ::write(file, text.data() + at, text.size() - at);
    good = bytes > 0;
    at += good ? static_cast<size_t>(bytes) : 0;
  }
  return ::close(file) == 0 && good;
}

void enter_namespaces() {
  if (::geteuid() == 0) {
    must(::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
             ::setresuid(kNobody, kNobody, kNobody) == 0,
         "becoming nobody");
    ::prctl(PR_SET_DUMPABLE, 1);         // or the maps below would be root's
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // forgotten by a change of identity
  }
  const std::string uid = std::to_string(::geteuid()), gid = std::to_string(::getegid());
  must(::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) == 0,
       "namespaces");
  must(write_text("/proc/self/setgroups", "deny"), "setgroups");
  must(write_text("/proc/self/uid_map", "1000 " + uid + " 1"), "uid_map");
  must(write_text("/proc/self/gid_map", "1000 " + gid + " 1"), "gid_map");
}

// A mount of a user namespace keeps the flags that it has.
unsigned long locked_flags(const std::string& path) {
  struct statvfs info {};
  must(::statvfs(path.c_str(), &info) == 0, "statvfs");
  unsigned long flags = 0;
  if (info.f_flag & ST_NODEV) flags |= MS_NODEV;
  if (info.f_flag & ST_NOEXEC) flags |= MS_NOEXEC;
  if (info.f_flag & ST_NOATIME) flags |= MS_NOATIME;
  if (info.f_flag & ST_NODIRATIME) flags |= MS_NODIRATIME;
  if (info.f_flag & ST_RELATIME) flags |= MS_RELATIME;
  return flags;
}

void show(const std::string& root, const char* path) {
  struct stat info {};
  if (::lstat(path, &info) != 0) return;  // not every machine has a /lib64
  const std::string place = root + path;
  if (S_ISLNK(info.st_mode)) {
    std::array<char, 4096> target{};
    const ssize_t size = ::readlink(path, target.data(), target.size() - 1);
    must(size > 0 && ::symlink(target.data(), place.c_str()) == 0, path);
    return;
  }
  if (S_ISDIR(info.st_mode))
    must(::mkdir(place.c_str(), 0755) == 0, path);
  else
    must(write_text(place.c_str(), ""), path);
  must(::mount(path, place.c_str(), nullptr, MS_BIND, nullptr) == 0, path);
  const unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | locked_flags(place);
  must(::mount(nullptr, place.c_str(), nullptr, flags, nullptr) == 0, path);
}

// A new root of a few read-only folders and an empty one to work in.
void build_root(const SandboxJob& job) {
  const std::string root = "/tmp";
  must(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
  must(::mount("tmpfs", root.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") == 0, "a new root");
  for (const char* path : {"/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"}) show(root, path);
  must(::mkdir((root + "/dev").c_str(), 0755) == 0, "/dev");
  for (const char* path : {"/dev/null", "/dev/zero", "/dev/urandom"}) show(root, path);
  for (const char* path : {"/box", "/old"}) must(::mkdir((root + path).c_str(), 0755) == 0, path);
  must(::mount("tmpfs", (root + "/box").c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=64m,mode=700") == 0, "/box");
  must(::symlink("/box", (root + "/tmp").c_str()) == 0, "/tmp");
  must(write_text((root + "/box/main.py").c_str(), job.code), "main.py");
  must(::syscall(SYS_pivot_root, root.c_str(), (root + "/old").c_str()) == 0, "pivot_root");
  must(::chdir("/") == 0 && ::umount2("/old", MNT_DETACH) == 0 && ::rmdir("/old") == 0, "leaving the old root");
  must(::mount(nullptr, "/", nullptr, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr) == 0, "a read-only root");
  must(::chdir("/box") == 0, "the working directory");
}

void set_limit(__rlimit_resource which, rlim_t limit) {
  const rlimit both{.rlim_cur = limit, .rlim_max = limit};
  must(::setrlimit(which, &both) == 0, "rlimits");
}

void set_limits(const SandboxJob& job) {
  constexpr rlim_t kMiB = 1 << 20;
  set_limit(RLIMIT_CPU, static_cast<rlim_t>((job.timeout.count() + 999) / 1000));
  set_limit(RLIMIT_AS, static_cast<rlim_t>(job.memory_mb) * kMiB);
  set_limit(RLIMIT_NPROC, 32);
  set_limit(RLIMIT_FSIZE, 16 * kMiB);
  set_limit(RLIMIT_NOFILE, 64);
  set_limit(RLIMIT_CORE, 0);
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

constexpr int kForbidden[] = {SYS_socket,
                              SYS_connect,
                              SYS_bind,
                              SYS_mount,
                              SYS_umount2,
                              SYS_pivot_root,
                              SYS_chroot,
                              SYS_unshare,
                              SYS_setns,
                              SYS_ptrace,
                              SYS_process_vm_readv,
                              SYS_process_vm_writev,
                              SYS_keyctl,
                              SYS_add_key,
                              SYS_request_key,
                              SYS_bpf,
                              SYS_perf_event_open,
                              SYS_userfaultfd,
                              SYS_io_uring_setup,
                              SYS_init_module,
                              SYS_finit_module,
                              SYS_delete_module,
                              SYS_kexec_load,
                              SYS_reboot,
                              SYS_swapon,
                              SYS_swapoff,
                              SYS_open_by_handle_at,
                              SYS_name_to_handle_at,
                              SYS_personality,
                              SYS_syslog,
                              SYS_acct,
                              SYS_quotactl,
                              SYS_settimeofday,
                              SYS_clock_settime,
                              SYS_sethostname,
                              SYS_move_mount,
                              SYS_open_tree,
                              SYS_fsopen,
                              SYS_fsmount,
                              SYS_fsconfig,
                              SYS_mount_setattr,
                              SYS_pidfd_getfd,
                              SYS_kcmp};

// Forbidden calls fail with EPERM; a clone into a new user namespace and clone3, whose flags a filter cannot see, too.
void filter_calls() {
  std::array<sock_filter, 2 * std::size(kForbidden) + 16> code{};
  size_t size = 0;
  const auto add = [&](sock_filter line) { code[size++] = line; };
  const sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)));
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
#if defined(__x86_64__)
  constexpr uint32_t kX32 = 0x40000000;
  add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1));
  add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
#endif
  for (const int call : kForbidden) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    add(refuse);
  }
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1));
  add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));
  add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])));
  add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWUSER, 0, 1));
  add(refuse);
  add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{.len = static_cast<unsigned short>(size), .filter = code.data()};
  must(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
}

void drop_privileges() {
  for (int capability = 0; ::prctl(PR_CAPBSET_DROP, capability) == 0;) ++capability;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> none{};
  must(::syscall(SYS_capset, &header, none.data()) == 0, "capabilities");
  must(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
}

// The first process of the new pid namespace: with it all others end. `parent` is a pipe that the parent holds open: it
// has no process id here, and may have ended before its end could be a signal.
[[noreturn]] void become_program(const SandboxJob& job, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd alive{.fd = parent, .events = POLLIN, .revents = 0};
  if (::poll(&alive, 1, 0) != 0) ::_exit(kNotStarted);
  build_root(job);
  set_limits(job);
  must(::syscall(SYS_close_range, 3U, ~0U, 0U) == 0, "closing descriptors");
  drop_privileges();
  filter_calls();
  const char* arguments[] = {"/usr/bin/python3", "-I", "-B", "main.py", nullptr};
  const char* environment[] = {nullptr};
  ::execve(arguments[0], const_cast<char**>(arguments), const_cast<char**>(environment));
  give_up("/usr/bin/python3");
}

struct Ends {
  int read = -1, write = -1;
  Ends() {
    std::array<int, 2> both{};
    if (::pipe2(both.data(), O_CLOEXEC) != 0) return;
    read = both[0];
    write = both[1];
  }
  ~Ends() {
    shut(read);
    shut(write);
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  static void shut(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

[[noreturn]] void enter_cell(const SandboxJob& job, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotStarted);
  // The helper's ends of the pipes among them: while they are open here, the program's input does not end.
  must(::syscall(SYS_close_range, 3U, ~0U, 0U) == 0, "closing descriptors");
  enter_namespaces();
  if (::getppid() != parent) ::_exit(kNotStarted);
  Ends alive;
  const pid_t program = ::fork();
  must(program >= 0, "fork");
  if (program == 0) {
    Ends::shut(alive.write);
    become_program(job, alive.read);
  }
  for (const int descriptor : {0, 1, 2}) ::close(descriptor);
  int status = 0;
  while (::waitpid(program, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) ::kill(::getpid(), SIGKILL);
  ::_exit(WEXITSTATUS(status));
}

using Clock = std::chrono::steady_clock;

// Feeds and reads the program until its output ends, it says too much, or its time is up.
class Conversation {
 public:
  Conversation(const SandboxJob& job, Ends& in, Ends& out, Ends& err) : job_(job), in_(in), out_(out), err_(err) {}

  // nullopt: its output has ended.
  std::optional<SandboxResult::End> hold(SandboxResult& result, Clock::time_point until) {
    ::fcntl(in_.write, F_SETFL, O_NONBLOCK);
    if (job_.input.empty()) Ends::shut(in_.write);
    while (out_.read >= 0 || err_.read >= 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      if (left <= 0) return SandboxResult::End::timed_out;
      std::array<pollfd, 3> ends = {{{in_.write, POLLOUT, 0}, {out_.read, POLLIN, 0}, {err_.read, POLLIN, 0}}};
      if (::poll(ends.data(), ends.size(), static_cast<int>(left)) < 0) continue;
      if (ends[0].revents != 0) feed();
      if (ends[1].revents != 0) read(out_.read, result.output);
      if (ends[2].revents != 0) read(err_.read, result.error);
      if (result.error.size() > kErrors) result.error.erase(0, result.error.size() - kErrors);
      if (std::ssize(result.output) > job_.max_output_bytes) {
        result.output.resize(static_cast<size_t>(job_.max_output_bytes));
        return SandboxResult::End::too_much_output;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kErrors = 2000;

  void feed() {
    const ssize_t bytes = ::write(in_.write, job_.input.data() + fed_, job_.input.size() - fed_);
    if (bytes > 0) fed_ += static_cast<size_t>(bytes);
    if (fed_ == job_.input.size() || (bytes < 0 && errno != EAGAIN && errno != EINTR)) Ends::shut(in_.write);
  }
  static void read(int& end, std::string& into) {
    std::array<char, 65536> piece;
    const ssize_t bytes = ::read(end, piece.data(), piece.size());
    if (bytes > 0) into.append(piece.data(), static_cast<size_t>(bytes));
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR)) Ends::shut(end);
  }

  const SandboxJob& job_;
  Ends &in_, &out_, &err_;
  size_t fed_ = 0;
};

}  // namespace

SandboxResult run_in_cell(const SandboxJob& job) {
  ::signal(SIGPIPE, SIG_IGN);
  Ends in, out, err;
  SandboxResult result;
  const pid_t parent = ::getpid();
  const pid_t cell = in.write < 0 || out.write < 0 || err.write < 0 ? -1 : ::fork();
  if (cell < 0) {
    result.error = std::strerror(errno);
    return result;
  }
  if (cell == 0) {
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(in.read, STDIN_FILENO);
    ::dup2(out.write, STDOUT_FILENO);
    ::dup2(err.write, STDERR_FILENO);
    enter_cell(job, parent);
  }
  Ends::shut(in.read);
  Ends::shut(out.write);
  Ends::shut(err.write);
  const Clock::time_point until = Clock::now() + job.timeout;
  std::optional<SandboxResult::End> stopped = Conversation(job, in, out, err).hold(result, until);
  int status = 0;
  bool ended = false;
  while (!stopped && !ended) {  // a program may close its output and go on
    ended = ::waitpid(cell, &status, WNOHANG) == cell;
    if (!ended && Clock::now() >= until) stopped = SandboxResult::End::timed_out;
    if (!ended) ::usleep(200);
  }
  if (stopped) ::kill(cell, SIGKILL);  // and with it, its child, and with that the whole pid namespace
  while (!ended && ::waitpid(cell, &status, 0) < 0 && errno == EINTR) {
  }
  if (stopped) {
    result.end = *stopped;
  } else if (WIFSIGNALED(status)) {
    result.end = SandboxResult::End::killed;
    result.code = WTERMSIG(status);
  } else if (WEXITSTATUS(status) == kNotStarted && result.error.starts_with("sandbox: ")) {
    result.end = SandboxResult::End::not_started;
  } else {
    result.end = SandboxResult::End::exited;
    result.code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace lockstep::net
