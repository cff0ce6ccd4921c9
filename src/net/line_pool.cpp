#include "net/line_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "core/error.h"
#include "net/child_process.h"

namespace lockstep::net {

namespace {

using Clock = std::chrono::steady_clock;

// Closes what it holds.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw ResourceError({.what = "no pipe to a program", .got = std::strerror(errno)});
  return {.read = Descriptor(ends[0]), .write = Descriptor(ends[1])};
}

void do_not_block(const Descriptor& end) {
  ::fcntl(end.get(), F_SETFL, ::fcntl(end.get(), F_GETFL) | O_NONBLOCK);
}

// A running program and the ends of its pipes.
struct Program {
  explicit Program(const LinePoolOptions& options) {
    Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
    process =
        std::make_unique<ChildProcess>(ChildOptions{.command = options.command,
                                                    .environment = options.environment,
                                                    .standard = {in.read.get(), out.write.get(), err.write.get()}});
    input = std::move(in.write);
    output = std::move(out.read);
    error = std::move(err.read);
    for (const Descriptor* end : {&input, &output, &error}) do_not_block(*end);
  }
  ~Program() { process->end(std::chrono::milliseconds(0)); }

  Descriptor input, output, error;
  std::unique_ptr<ChildProcess> process;
};

struct Line {
  std::string text;
  LinePool::OnDone on_done;
};

struct Worker {
  std::unique_ptr<Program> program;
  std::optional<Line> line;      // that it has to answer
  std::string outgoing;          // of the line, what the pipe has not taken yet
  std::string incoming, errors;  // what the program wrote
  Clock::time_point sent, not_before;
  int failures = 0;  // in a row

  bool idle() const { return !line; }
};

constexpr size_t kPiece = 65536, kErrors = 2000;

// What there is to read; false: the other end is closed.
bool read_some(int fd, std::string& into) {
  std::array<char, kPiece> piece;
  const ssize_t bytes = ::read(fd, piece.data(), piece.size());
  if (bytes > 0) into.append(piece.data(), static_cast<size_t>(bytes));
  return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

class LinePool::Impl {
 public:
  explicit Impl(LinePoolOptions options) : options_(std::move(options)), workers_(options_.num_programs) {
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (wake_.get() < 0) throw ResourceError({.what = "no event descriptor", .got = std::strerror(errno)});
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    stopping_ = true;
    wake();
    thread_.join();
  }

  void send(Line line) {
    {
      const std::lock_guard lock(mutex_);
      arrived_.push_back(std::move(line));
    }
    wake();
  }
  int64_t num_started() const { return num_started_; }

 private:
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    // Writing to a program that has ended is an error of the call, not the end of this process.
    sigset_t pipes;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipes, nullptr);
    while (!stopping_) {
      {
        const std::lock_guard lock(mutex_);
        std::ranges::move(arrived_, std::back_inserter(waiting_));
        arrived_.clear();
      }
      if (!hopeless_.empty())
        for (Line& line : std::exchange(waiting_, {})) line.on_done({.failure = hopeless_});
      assign();
      wait();
      for (Worker& worker : workers_)
        if (worker.line && Clock::now() - worker.sent >= options_.timeout) time_out(worker);
    }
    end_programs();
  }

  // Those that end when their input does get a second to do so.
  void end_programs() {
    constexpr std::chrono::seconds kPatience(1);
    for (Worker& worker : workers_)
      if (worker.program) worker.program->input = Descriptor();
    const auto running = [](const Worker& worker) { return worker.program && !worker.program->process->exit_code(); };
    for (const auto until = Clock::now() + kPatience; Clock::now() < until && std::ranges::any_of(workers_, running);)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    workers_.clear();
  }

  void assign() {
    for (Worker& worker : workers_) {
      if (waiting_.empty()) return;
      if (!worker.idle() || Clock::now() < worker.not_before) continue;
      if (!worker.program && !start(worker)) continue;
      worker.line = std::move(waiting_.front());
      waiting_.pop_front();
      worker.outgoing = worker.line->text + "\n";
      worker.sent = Clock::now();
      write(worker);
    }
  }

  bool start(Worker& worker) {
    try {
      worker.program = std::make_unique<Program>(options_);
      worker.incoming.clear();
      worker.errors.clear();
      ++num_started_;
      return true;
    } catch (const Error& error) {
      Line line = std::move(waiting_.front());
      waiting_.pop_front();
      line.on_done({.failure = error.what()});
      pause(worker);
      return false;
    }
  }

  void wait() {
    std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    for (const Worker& worker : workers_) {
      const Program* program = worker.program.get();
      const auto add = [&](int fd, short events) { polled.push_back({.fd = fd, .events = events, .revents = 0}); };
      add(program != nullptr ? program->output.get() : -1, POLLIN);
      add(program != nullptr ? program->error.get() : -1, POLLIN);
      add(program != nullptr && !worker.outgoing.empty() ? program->input.get() : -1, POLLOUT);
    }
    ::poll(polled.data(), polled.size(), patience());
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t woken = ::read(wake_.get(), &count, sizeof count);
    for (size_t i = 0; i < workers_.size(); ++i) {
      const auto ready = [&](size_t which) { return polled[1 + 3 * i + which].revents != 0; };
      Worker& worker = workers_[i];
      if (ready(1)) read_errors(worker);
      if (worker.program && ready(0)) read(worker);
      if (worker.program && ready(2)) write(worker);
    }
  }

  // Milliseconds until a time-out or the end of a pause.
  int patience() const {
    Clock::time_point next = Clock::now() + std::chrono::hours(1);
    for (const Worker& worker : workers_) {
      if (worker.line) next = std::min(next, worker.sent + options_.timeout);
      if (worker.idle() && !waiting_.empty()) next = std::min(next, worker.not_before);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
  }

  void write(Worker& worker) {
    while (!worker.outgoing.empty()) {
      const ssize_t bytes = ::write(worker.program->input.get(), worker.outgoing.data(), worker.outgoing.size());
      // A program that closes its input may still answer; if it does not, its end or the time-out says so.
      if (bytes <= 0) {
        if (errno != EAGAIN && errno != EINTR) worker.outgoing.clear();
        return;
      }
      worker.outgoing.erase(0, static_cast<size_t>(bytes));
    }
  }

  static void read_errors(Worker& worker) {
    if (!read_some(worker.program->error.get(), worker.errors)) worker.program->error = Descriptor();
    if (worker.errors.size() > kErrors) worker.errors.erase(0, worker.errors.size() - kErrors);
  }

  void read(Worker& worker) {
    const bool open = read_some(worker.program->output.get(), worker.incoming);
    const size_t end = worker.incoming.find('\n');
    if (worker.line && end != std::string::npos && end <= options_.max_line_bytes) {
      Line line = *std::exchange(worker.line, std::nullopt);
      std::string answer = worker.incoming.substr(0, end);
      worker.incoming.erase(0, end + 1);
      timeouts_ = 0;
      any_answer_ = true;
      if (line.on_done({.line = std::move(answer)}) && worker.outgoing.empty())
        worker.failures = 0;
      else
        return replace(worker, "");
    }
    if (worker.line && worker.incoming.size() > options_.max_line_bytes)
      return replace(worker, fmt::format("the program wrote more than {} bytes without the end of a line",
                                         options_.max_line_bytes));
    if (worker.idle() && !worker.incoming.empty()) return replace(worker, "");
    if (open) return;
    constexpr int kPatience = 20;  // for its exit code, which may come a moment after the end of its output
    for (int ms = 0; ms < kPatience && !worker.program->process->exit_code(); ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    replace(worker, "the program ended before it answered");
  }

  void time_out(Worker& worker) {
    const std::string failure = fmt::format("the program did not answer within {} ms", options_.timeout.count());
    replace(worker, failure);
    if (++timeouts_ < least_failures()) return;
    for (Line& line : std::exchange(waiting_, {})) line.on_done({.failure = failure + " to another line"});
  }

  // Lines in a row without an answer that are no chance any more.
  size_t least_failures() const { return std::max<size_t>(3, 2 * workers_.size()); }

  // Kills the program; the line that it has not answered is given up.
  void replace(Worker& worker, const std::string& failure) {
    if (worker.program->error.get() >= 0) read_errors(worker);
    const std::string said = worker.errors;
    const std::optional<int> code = worker.program->process->exit_code();
    worker.program.reset();
    worker.incoming.clear();
    worker.outgoing.clear();
    if (const auto line = std::exchange(worker.line, std::nullopt)) {
      const std::string why = failure + (code ? fmt::format(" (exit code {})", *code) : "") +
                              (said.empty() ? "" : "; it wrote to stderr: " + said);
      // 126, 127: how a shell says that there is no such program, or that it cannot be run.
      if (code && !any_answer_ && (++ends_ >= least_failures() || *code == 126 || *code == 127)) hopeless_ = why;
      line->on_done({.failure = why});
      pause(worker);
    }
  }

  static void pause(Worker& worker) {
    constexpr int kFirst = 50, kLongest = 5000;  // ms
    const int64_t wait = std::min<int64_t>(kLongest, int64_t{kFirst} << std::min(worker.failures, 10));
    ++worker.failures;
    worker.not_before = Clock::now() + std::chrono::milliseconds(worker.failures > 1 ? wait : 0);
  }

  const LinePoolOptions options_;
  std::vector<Worker> workers_;
  std::deque<Line> waiting_;
  size_t timeouts_ = 0;  // since the last answer of any program
  bool any_answer_ = false;
  size_t ends_ = 0;       // of programs that ended by themselves, before any answer
  std::string hopeless_;  // why no line will be answered
  Descriptor wake_;
  std::mutex mutex_;
  std::vector<Line> arrived_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> num_started_ = 0;
  std::thread thread_;
};

LinePool::LinePool(LinePoolOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
LinePool::~LinePool() = default;

void LinePool::send(std::string line, OnDone on_done) {
  impl_->send({.text = std::move(line), .on_done = std::move(on_done)});
}

int64_t LinePool::num_started() const {
  return impl_->num_started();
}

}  // namespace lockstep::net
