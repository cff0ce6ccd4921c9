#include "server/http/session.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/socket_base.hpp>
#include <exception>
#include <utility>

namespace lockstep::server {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

constexpr size_t kWriteBytes = size_t{1} << 20;  // of one system call; the kernel takes no more at once anyway
constexpr size_t kTurnBytes = size_t{8} << 20;   // of one turn of the loop

bool would_block(const error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again || error == asio::error::interrupted;
}

}  // namespace

Session::Session(SessionHost& host, Socket socket)
    : host_(host),
      socket_(std::move(socket)),
      reader_(host.options.max_header_bytes, host.options.max_body_bytes,
              {host.options.large_paths, host.options.max_large_body_bytes, host.options.admits}) {}

void Session::start() {
  host_.sessions.emplace(this, shared_from_this());
  ++host_.num_sessions;
  error_code error;
  socket_.non_blocking(true, error);
  enter(Phase::header);
  wait_readable();
}

void Session::start_refused() {
  start();
  refuse({503, "too many connections"});
}

void Session::set_deadline(std::chrono::milliseconds from_now) {
  deadline_ = Clock::now() + from_now;
}

void Session::enter(Phase phase) {
  phase_ = phase;
  switch (phase) {
    case Phase::idle: return set_deadline(host_.options.idle_timeout);
    case Phase::header: return set_deadline(host_.options.header_timeout);
    case Phase::body: return set_deadline(host_.options.body_timeout);
    case Phase::lingering: return set_deadline(host_.options.linger_timeout);
    case Phase::answering: deadline_ = Clock::time_point::max();  // flush() sets one while bytes wait
  }
}

void Session::on_time(Clock::time_point now) {
  if (closed_ || now < deadline_) return;
  const auto self = shared_from_this();
  const Phase phase = phase_;
  phase == Phase::answering ? flush() : on_readable();  // what was ready before the server had time to look
  if (closed_ || phase_ != phase || now < deadline_) return;
  if (phase_ == Phase::body) return refuse({408, "the body did not come in time"});
  close();
}

void Session::close() {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();  // the host's may be the last
  host_.sessions.erase(this);
  --host_.num_sessions;
  release_body();
  host_.unsent_bytes -= std::exchange(accounted_unsent_, 0);
  error_code error;
  socket_.close(error);
  if (const auto answer = std::move(answer_)) {
    answer->session = nullptr;
    answer->disconnect();
  }
}

// The client must not take what it has for the whole answer.
void Session::cut() {
  error_code error;
  socket_.set_option(asio::socket_base::linger(true, 0), error);
  close();
}

// Closing with bytes unread would reset the connection, and the client could lose the answer it has not read yet.
void Session::linger() {
  discard_ = true;
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error || peer_ended_) return close();
  enter(Phase::lingering);
  wait_readable();
}

void Session::wait_readable() {
  if (closed_ || wait_pending_ || peer_ended_) return;
  // A client that sends on and on while its answer is made waits in the kernel; then only writing shows that it left.
  if (phase_ == Phase::answering && reader_.waiting_bytes() > host_.options.max_header_bytes) return;
  wait_pending_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
    self->wait_pending_ = false;
    if (!error && !self->closed_) self->on_readable();
  });
}

void Session::on_readable() {
  error_code error;
  const size_t size = socket_.read_some(asio::buffer(host_.scratch), error);
  if (error && !would_block(error)) return on_end(error != asio::error::eof);
  if (size > 0 && !discard_) {
    reader_.append({host_.scratch.data(), size});
    if (phase_ != Phase::answering) advance();
  }
  wait_readable();
}

void Session::on_end(bool reset) {
  const bool writes_on = phase_ == Phase::answering && !reset && answer_->is_complete();
  if (!writes_on) return close();
  peer_ended_ = true;
}

bool Session::account_body() {
  if (reader_.is_large()) {
    if (host_.large_body && host_.large_body != this) return false;
    host_.large_body = this;
    return true;
  }
  host_.bodies_bytes += reader_.body_bytes() - accounted_bytes_;
  accounted_bytes_ = reader_.body_bytes();
  return host_.bodies_bytes <= host_.options.max_bodies_bytes;
}

void Session::release_body() {
  host_.bodies_bytes -= std::exchange(accounted_bytes_, 0);
  if (host_.large_body == this) host_.large_body = nullptr;
}

void Session::advance() {
  const RequestReader::Status status = reader_.parse();
  if (status == RequestReader::Status::refused) return refuse(reader_.refusal());
  if (!account_body()) return refuse({503, "too many bodies are being read"});
  if (status == RequestReader::Status::request) return dispatch();
  if (reader_.has_header()) {
    if (phase_ != Phase::body) enter(Phase::body);
    if (!reader_.expects_continue()) return;
    error_code error;  // everything before it was taken, so there is room
    if (socket_.write_some(asio::buffer(kContinue), error) != kContinue.size()) close();
  } else if (reader_.begun() && phase_ == Phase::idle) {
    enter(Phase::header);
  }
}

void Session::dispatch() {
  enter(Phase::answering);
  const RequestReader::Framing framing = reader_.framing();
  HttpRequest request = reader_.take();
  release_body();
  const auto answer = answer_ = std::make_shared<HttpAnswer>(host_.mailbox, framing, this);
  const auto responder = make_responder(answer);
  try {
    host_.handler(std::move(request), responder);
  } catch (const std::exception& error) {
    answer->fail(error.what());
  } catch (...) {
    answer->fail("the handler failed");
  }
}

// The last answer of this connection: where the next request begins is not known.
void Session::refuse(const HttpRefusal& refusal) {
  const RequestReader::Framing framing = reader_.framing();
  reader_.drop();  // what is not counted must not be held either, until the client has read its answer
  release_body();
  discard_ = true;
  enter(Phase::answering);
  answer_ = std::make_shared<HttpAnswer>(host_.mailbox, RequestReader::Framing{.head = framing.head}, this);
  answer_->send(refusal_response(refusal));
}

void Session::on_news() {
  if (!closed_) flush();
}

// As many bytes as the socket takes, but not so many that a fast client keeps others waiting; an error closes the
// session.
size_t Session::write_some() {
  HttpAnswer::Taken& taken = answer_->taken;
  size_t written = 0;
  while (taken.waiting() > 0 && written < kTurnBytes) {
    if (taken.sent == taken.bytes.size()) {
      taken.bytes = std::exchange(taken.body, {});
      taken.sent = 0;
    }
    error_code error;
    const auto piece = asio::buffer(asio::buffer(taken.bytes) + taken.sent, kWriteBytes);
    const size_t size = socket_.write_some(piece, error);
    if (would_block(error)) break;
    if (error) {
      close();  // `taken` may be gone with its answer
      return written;
    }
    taken.sent += size;
    written += size;
  }
  // A stream may go on for long without ever being all taken.
  if (taken.sent >= kWriteBytes && taken.sent >= taken.bytes.size() / 2)
    taken.bytes.erase(0, std::exchange(taken.sent, 0));
  return written;
}

void Session::account_unsent() {
  const size_t unsent = answer_->taken.stream ? answer_->taken.waiting() : 0;
  host_.unsent_bytes += unsent - std::exchange(accounted_unsent_, unsent);
}

// Whether the client of a stream, which took `taken` bytes just now, is too slow. How large an update is says nothing
// of that: what counts is what was there to take some time ago.
bool Session::is_behind(size_t taken) {
  const HttpOptions& options = host_.options;
  const bool too_much = accounted_unsent_ > options.max_pending_bytes;
  if (too_much && host_.unsent_bytes > options.max_unsent_bytes) return true;
  // A stream that is complete is like any whole answer: write_timeout.
  if (!too_much || answer_->taken.state != HttpAnswer::State::streaming) {
    behind_deadline_ = Clock::time_point::max();
    return false;
  }
  const Clock::time_point now = Clock::now();
  const bool caught_up = behind_deadline_ == Clock::time_point::max() || behind_bytes_ <= taken;
  if (!caught_up) {
    behind_bytes_ -= taken;
    return now >= behind_deadline_;
  }
  behind_bytes_ = accounted_unsent_ - options.max_pending_bytes;
  behind_deadline_ = now + options.pending_timeout;
  return false;
}

void Session::flush() {
  const size_t written = write_some();
  if (closed_) return;
  account_unsent();
  if (answer_->taken.waiting() == 0) return on_flushed();
  if (is_behind(written)) return cut();
  if (written > 0 || !write_pending_) write_deadline_ = Clock::now() + host_.options.write_timeout;
  deadline_ = std::min(write_deadline_, behind_deadline_);
  if (write_pending_) return;
  write_pending_ = true;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](error_code error) {
    self->write_pending_ = false;
    if (!error && !self->closed_ && self->answer_) self->flush();
  });
}

void Session::on_flushed() {
  HttpAnswer::Taken& taken = answer_->taken;
  taken.bytes.clear();
  taken.sent = 0;
  deadline_ = behind_deadline_ = Clock::time_point::max();
  if (taken.state == HttpAnswer::State::cut) return cut();
  if (taken.state != HttpAnswer::State::complete) return;
  const bool last = taken.close || peer_ended_;
  taken.held.reset();
  answer_->session = nullptr;
  answer_.reset();
  if (last) return linger();
  enter(Phase::idle);
  advance();
  wait_readable();
}

}  // namespace lockstep::server
