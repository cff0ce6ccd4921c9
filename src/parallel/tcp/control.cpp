#include "parallel/tcp/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/make_error.h"

namespace lockstep::parallel::tcp {

namespace {

constexpr std::chrono::seconds kFarewell{1};  // for the last words of a rank

// Numbers and the rest of a message.
struct FailureHead {
  int32_t rank = 0, left = 0;
  char kind[24] = "";
};

std::vector<std::byte> bytes_with(const void* head, size_t size, const Report& report) {
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), head, size);
  const std::vector<std::byte> rest = pack_report(report);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

template <class T>
T read_head(const Frame& frame) {
  T value;
  if (frame.bytes.size() < sizeof(T)) throw FormatError({.what = "a message of another rank ends early"});
  std::memcpy(&value, frame.bytes.data(), sizeof(T));
  return value;
}

// Texts of a report that fit a message whatever they say.
Report trimmed(Report report) {
  constexpr size_t kMaxBytes = 16 << 10;
  Fault& fault = report.fault;
  for (std::string* text : {&fault.what, &fault.where, &fault.got, &fault.wanted, &fault.attempt})
    if (text->size() > kMaxBytes) text->resize(kMaxBytes);
  return report;
}

size_t known_group(int16_t group) {
  const auto index = static_cast<size_t>(group);
  if (index >= kGroups) throw FormatError({.what = "a message of another rank names a group that there is not"});
  return index;
}

void signal_event(const Socket& event) {
  const uint64_t one = 1;
  (void)!::write(event.fd(), &one, sizeof(one));
}

Socket new_event() {
  Socket event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.open()) throw ResourceError({.what = "the system refuses an eventfd", .got = std::strerror(errno)});
  return event;
}

}  // namespace

Control::Control(std::vector<Socket> links, Options options)
    : options_(std::move(options)),
      wake_event_(new_event()),
      failed_event_(new_event()),
      next_beat_(Clock::now() + options_.timeouts.beat) {
  calls_.fill(OpenCall(options_.size));
  for (Socket& socket : links) {
    if (socket.open()) require_receipts(socket, options_.timeouts.receipt);
    links_.push_back({.socket = std::move(socket), .out = {}});
  }
  thread_ = std::thread([this] { serve(); });
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    send_to_all(encode(FrameType::leave));
    stopping_ = true;
  }
  signal_event(wake_event_);
  thread_.join();
  // What others still send must not meet a closed socket before they have read our last words.
  const Deadline until = Clock::now() + kFarewell;
  for (Link& link : links_) {
    if (!link.socket.open()) continue;
    try {
      send_all(link.socket, link.out, until);
      ::shutdown(link.socket.fd(), SHUT_WR);
      std::byte rest[4096];
      while (Clock::now() < until && receive_some(link.socket, rest) >= 0) {
        pollfd entry{.fd = link.socket.fd(), .events = POLLIN, .revents = 0};
        if (::poll(&entry, 1, milliseconds_until(until)) <= 0) break;
      }
    } catch (const Error&) {  // it has gone before us
    }
  }
}

void Control::send(Link& link, const std::vector<std::byte>& frame) {
  if (!link.socket.open()) return;
  link.out.insert(link.out.end(), frame.begin(), frame.end());
  flush(link);
}

void Control::send_to_all(const std::vector<std::byte>& frame) {
  for (Link& link : links_) send(link, frame);
}

void Control::flush(Link& link) {
  while (!link.out.empty()) {
    const ptrdiff_t sent = send_some(link.socket, link.out);
    if (sent <= 0) break;  // a connection that has ended is found by whoever reads it
    link.out.erase(link.out.begin(), link.out.begin() + sent);
  }
  if (!link.out.empty()) signal_event(wake_event_);  // the thread sends the rest as there is room
}

void Control::end(Failure failure) {
  if (failure_ && (!failure_->left || failure.left)) return;
  failure.report = trimmed(std::move(failure.report));
  if (is_hub()) {
    FailureHead head{.rank = failure.rank, .left = failure.left ? 1 : 0};
    failure.kind.copy(head.kind, sizeof(head.kind) - 1);
    send_to_all(encode(FrameType::end, bytes_with(&head, sizeof(head), failure.report)));
  }
  failure_ = std::move(failure);
  failed_at_ = Clock::now();
  signal_event(failed_event_);
  signal_event(wake_event_);
  changed_.notify_all();
}

void Control::come(int rank, const CallShape& call) {
  if (failure_) return;
  const size_t group = known_group(call.group);
  OpenCall& open = calls_[group];
  const bool first = !open.is_open();
  const bool whole = open.come(rank, call, Clock::now() + options_.timeouts.call);
  if (first) signal_event(wake_event_);  // the thread has a deadline now
  if (!whole) return;
  if (const std::optional<Fault> fault = open.difference())
    return end({.kind = "ShapeError", .report = {.kind = "ShapeError", .fault = *fault, .exit_code = 5}});
  open.close();
  ++entered_[group];
  send_to_all(encode(FrameType::go, std::as_bytes(std::span(&call.group, 1))));
  changed_.notify_all();
}

void Control::end_by_deadline() {
  for (const OpenCall& open : calls_)
    if (!failure_ && open.is_open() && Clock::now() >= open.until())
      end({.kind = "Cancelled",
           .report = {.kind = "Cancelled", .fault = open.missing(options_.timeouts.call), .exit_code = 130}});
}

void Control::throw_failure(size_t group) {
  if (!failure_->left && group == 0) delivered_ = true;
  if (const std::exception_ptr error = make_error(failure_->kind, failure_->report.fault))
    std::rethrow_exception(error);
  throw PeerFailed(failure_->rank, failure_->report.fault, failure_->report.exit_code);
}

void Control::enter(const CallShape& call) {
  std::unique_lock lock(mutex_);
  const auto group = static_cast<size_t>(call.group);
  if (failure_) throw_failure(group);
  const int64_t turn = entered_[group];
  if (is_hub())
    come(0, call);
  else
    send(links_[0], encode(FrameType::enter, std::as_bytes(std::span(&call, 1))));
  changed_.wait(lock, [&] { return entered_[group] != turn || failure_; });
  if (entered_[group] == turn) throw_failure(group);  // else all had come, even if the group failed right after
}

void Control::fail(size_t group, int blamed, Report report) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (group == 0) delivered_ = true;
    Failure failure{.kind = "PeerFailed", .rank = blamed, .report = trimmed(std::move(report))};
    if (is_hub()) return end(std::move(failure));
    FailureHead head{.rank = blamed};
    send(links_[0], encode(FrameType::fail, bytes_with(&head, sizeof(head), failure.report)));
    changed_.wait_for(lock, kFarewell, [&] { return failure_ && !failure_->left; });
    end(std::move(failure));  // where rank 0 does not answer
  } catch (...) {             // no memory for the words: the end of the connection says it
  }
}

void Control::interrupt() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (std::exchange(interrupted_, true)) return;
    send_to_all(encode(FrameType::interrupt));
  } catch (...) {  // no memory: the next interrupt tries again
  }
}

bool Control::interrupted() const noexcept {
  const std::lock_guard lock(mutex_);
  return interrupted_;
}

bool Control::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

bool Control::failed_by_error() const noexcept {
  const std::lock_guard lock(mutex_);
  return failure_ && !failure_->left;
}

void Control::throw_if_failed(size_t group) {
  const std::lock_guard lock(mutex_);
  if (failure_ && !failure_->left) throw_failure(group);
}

void Control::receive_at_hub(int rank, const Frame& frame) {
  Link& link = links_[static_cast<size_t>(rank)];
  switch (frame.type) {
    case FrameType::enter: return come(rank, read_head<CallShape>(frame));
    case FrameType::fail: {
      const auto head = read_head<FailureHead>(frame);
      return end({.kind = "PeerFailed",
                  .rank = head.rank,
                  .report = unpack_report(std::span(frame.bytes).subspan(sizeof(head)))});
    }
    case FrameType::interrupt:
      if (!std::exchange(interrupted_, true)) send_to_all(encode(FrameType::interrupt));
      return;
    case FrameType::leave:
      link.left = true;
      return end(
          {.kind = "PeerFailed", .rank = rank, .left = true, .report = {.fault = {.what = "it has left the group"}}});
    default: return;
  }
}

void Control::receive(int rank, const Frame& frame) {
  if (frame.type == FrameType::beat) return;
  if (is_hub()) return receive_at_hub(rank, frame);
  switch (frame.type) {
    case FrameType::go: ++entered_[known_group(read_head<int16_t>(frame))]; return changed_.notify_all();
    case FrameType::end: {
      auto head = read_head<FailureHead>(frame);
      head.kind[sizeof(head.kind) - 1] = 0;
      return end({.kind = head.kind,
                  .rank = head.rank,
                  .left = head.left != 0,
                  .report = unpack_report(std::span(frame.bytes).subspan(sizeof(head)))});
    }
    case FrameType::interrupt: interrupted_ = true; return;
    case FrameType::leave:
      links_[0].left = true;
      return end(
          {.kind = "PeerFailed", .rank = 0, .left = true, .report = {.fault = {.what = "it has left the group"}}});
    default: return;
  }
}

void Control::lost(int rank) {
  Link& link = links_[is_hub() ? static_cast<size_t>(rank) : 0];
  link.socket.close();
  if (link.left) return;
  end({.kind = "PeerFailed",
       .rank = rank,
       .report = {
           .fault = {.what = "its process has ended, or the network to it is cut", .where = "control channel"}}});
}

void Control::read(size_t index) {
  Link& link = links_[index];
  try {
    const bool open = read_into(link.reader, link.socket);
    link.silent_beats = 0;
    while (const std::optional<Frame> frame = link.reader.next()) receive(rank_of(index), *frame);
    if (!open) lost(rank_of(index));
  } catch (const Error& error) {
    lost(rank_of(index));
  }
}

// Silence is counted in this process's own beats: one that was stopped as a whole, with the others, has missed none.
void Control::beat() {
  if (Clock::now() < next_beat_) return;
  next_beat_ = Clock::now() + options_.timeouts.beat;
  send_to_all(encode(FrameType::beat));
  const int64_t most = std::max<int64_t>(2, options_.timeouts.silence / options_.timeouts.beat);
  for (size_t index = 0; index < links_.size(); ++index) {
    Link& link = links_[index];
    if (!link.socket.open() || link.left || ++link.silent_beats <= most) continue;
    end({.kind = "PeerFailed",
         .rank = rank_of(index),
         .report = {.fault = {.what = "it gives no sign of life",
                              .where = "control channel",
                              .got = std::to_string(options_.timeouts.silence.count()) + " ms of silence",
                              .attempt = "see whether its process is stopped, or its host or network is down"}}});
    link.silent_beats = 0;
  }
}

void Control::watch_lifeline(short events) {
  if ((events & (POLLHUP | POLLERR | POLLNVAL)) == 0) return;
  end({.kind = "PeerFailed",
       .rank = options_.rank,
       .report = {.fault = {.what = "the launcher of this job has ended"}, .exit_code = 137}});
}

int Control::wait_ms() const {
  Deadline until = next_beat_;
  for (const OpenCall& open : calls_)
    if (open.is_open() && !failure_) until = std::min(until, open.until());
  return milliseconds_until(until);
}

void Control::call_stuck(std::unique_lock<std::mutex>& lock) {
  if (!failure_ || failure_->left || delivered_ || told_stuck_ || !options_.stuck) return;
  if (Clock::now() < failed_at_ + options_.timeouts.exit_after) return;
  told_stuck_ = true;
  const Report report = failure_->report;
  const int rank = failure_->rank;
  lock.unlock();
  options_.stuck(PeerFailed(rank, report.fault, report.exit_code).fault(), report.exit_code);
  lock.lock();
}

void Control::serve() {
  std::unique_lock lock(mutex_);
  bool lifeline = options_.lifeline_fd >= 0;
  while (!stopping_) {
    std::vector<pollfd> entries{{.fd = wake_event_.fd(), .events = POLLIN, .revents = 0},
                                {.fd = lifeline ? options_.lifeline_fd : -1, .events = 0, .revents = 0}};
    for (const Link& link : links_) {
      const auto events = static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT);
      entries.push_back({.fd = link.socket.fd(), .events = events, .revents = 0});
    }
    const int wait = wait_ms();
    lock.unlock();
    ::poll(entries.data(), entries.size(), wait);
    lock.lock();
    if (entries[0].revents != 0) {
      uint64_t count = 0;
      (void)!::read(wake_event_.fd(), &count, sizeof(count));
    }
    if (lifeline && entries[1].revents != 0) {
      lifeline = false;
      watch_lifeline(entries[1].revents);
    }
    for (size_t index = 0; index < links_.size(); ++index) {
      if (entries[index + 2].revents == 0 || !links_[index].socket.open()) continue;
      flush(links_[index]);
      read(index);
    }
    end_by_deadline();
    beat();
    call_stuck(lock);
  }
}

}  // namespace lockstep::parallel::tcp
