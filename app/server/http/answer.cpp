#include "server/http/answer.h"

#include <charconv>
#include <stdexcept>
#include <utility>

#include "server/http/text.h"

namespace lockstep::server {

namespace {

void append_chunk(std::string& out, std::string_view chunk) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, chunk.size(), 16).ptr;
  out.append(digits, end).append("\r\n").append(chunk).append("\r\n");
}

class Handle : public Responder {
 public:
  explicit Handle(std::shared_ptr<HttpAnswer> answer) : answer_(std::move(answer)) {}
  ~Handle() override { answer_->fail("the request was not answered"); }
  void send(HttpResponse response) override { answer_->send(std::move(response)); }
  void begin_stream(HttpResponse head) override { answer_->begin_stream(std::move(head)); }
  void write(std::string chunk) override { answer_->write(chunk); }
  void end_stream() override { answer_->end_stream(); }
  void on_disconnect(std::function<void()> callback) override { answer_->on_disconnect(std::move(callback)); }

 private:
  const std::shared_ptr<HttpAnswer> answer_;
};

}  // namespace

std::shared_ptr<Responder> make_responder(std::shared_ptr<HttpAnswer> answer) {
  return std::make_shared<Handle>(std::move(answer));
}

std::vector<std::shared_ptr<HttpAnswer>> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  for (const auto& answer : news_) {
    answer->queued_ = false;
    HttpAnswer::Taken& taken = answer->taken;
    if (taken.bytes.empty()) {
      taken.bytes.swap(answer->pending_);
    } else {
      taken.bytes += answer->pending_;
      answer->pending_.clear();
    }
    taken.body.swap(answer->body_);
    taken.held.swap(answer->held_);
    taken.state = answer->state_;
    taken.stream = answer->stream_;
    taken.close = answer->close_;
  }
  std::vector<std::shared_ptr<HttpAnswer>> news;
  news.reserve(news_.size());
  news.swap(news_);
  return news;
}

void Mailbox::close() {
  std::vector<std::shared_ptr<HttpAnswer>> news;
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  news.swap(news_);
}

// Under the lock.
void HttpAnswer::notify() {
  if (queued_ || !mailbox_->wake_) return;
  queued_ = true;
  mailbox_->news_.push_back(shared_from_this());
  if (mailbox_->news_.size() == 1) mailbox_->wake_();
}

// Under the lock; the callback, which is not needed any more, leaves it with the caller.
void HttpAnswer::finish(State state, std::function<void()>& callback) {
  state_ = state;
  callback.swap(callback_);
  notify();
}

// Sends a whole answer, or cuts a stream that has begun. A large body is not copied behind its head: it costs one more
// system call.
void HttpAnswer::complete(HttpResponse response) {
  constexpr size_t kCopied = size_t{64} << 10;
  const bool close = !framing_.keep_alive;
  std::string bytes = response_head(response, {.close = close, .announce_keep_alive = framing_.http_1_0 && !close});
  if (framing_.head || has_no_body(response.status)) response.body.clear();
  if (response.body.size() <= kCopied) bytes += std::exchange(response.body, {});
  std::function<void()> unneeded;
  const std::lock_guard lock(mailbox_->mutex_);
  if (over()) return;
  if (state_ == State::streaming) return finish(State::cut, unneeded);
  pending_ = std::move(bytes);
  body_ = std::move(response.body);
  held_ = std::move(response.held);
  close_ = close;
  finish(State::complete, unneeded);
}

void HttpAnswer::send(HttpResponse response) {
  {
    const std::lock_guard lock(mailbox_->mutex_);
    if (!over() && state_ != State::waiting) throw std::logic_error("send() after begin_stream()");
  }
  complete(std::move(response));
}

void HttpAnswer::begin_stream(HttpResponse response) {
  if (!response.body.empty()) throw std::logic_error("the head of a stream has a body");
  const bool has_body = !framing_.head && !has_no_body(response.status);
  const bool chunked = !framing_.http_1_0 && !has_no_body(response.status);
  const bool close = !framing_.keep_alive || framing_.http_1_0;
  std::string bytes = response_head(response, {.stream = true, .chunked = chunked, .close = close});
  const std::lock_guard lock(mailbox_->mutex_);
  if (over()) return;
  if (state_ != State::waiting) throw std::logic_error("begin_stream() twice");
  pending_ = std::move(bytes);
  state_ = State::streaming;
  stream_ = true;
  has_body_ = has_body;
  chunked_ = chunked;
  close_ = close;
  notify();
}

void HttpAnswer::write(std::string_view chunk) {
  const std::lock_guard lock(mailbox_->mutex_);
  if (over()) return;
  if (state_ != State::streaming) throw std::logic_error("write() before begin_stream()");
  if (!has_body_ || chunk.empty()) return;  // an empty chunk would end the stream
  if (chunked_) {
    append_chunk(pending_, chunk);
  } else {
    pending_ += chunk;
  }
  notify();
}

void HttpAnswer::end_stream() {
  std::function<void()> unneeded;
  const std::lock_guard lock(mailbox_->mutex_);
  if (over()) return;
  if (state_ != State::streaming) throw std::logic_error("end_stream() before begin_stream()");
  if (has_body_ && chunked_) pending_ += "0\r\n\r\n";
  finish(State::complete, unneeded);
}

void HttpAnswer::on_disconnect(std::function<void()> callback) {
  const std::lock_guard lock(mailbox_->mutex_);
  if (state_ == State::complete || state_ == State::cut)
    return;  // the argument is destroyed after the lock is released
  callback_.swap(callback);
  if (gone_) notify();
}

void HttpAnswer::fail(const std::string& message) {
  {
    const std::lock_guard lock(mailbox_->mutex_);
    if (over()) return;
  }
  complete(refusal_response({500, message}));
}

bool HttpAnswer::disconnect() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mailbox_->mutex_);
    if (state_ == State::complete || gone_) return false;
    gone_ = true;
    callback.swap(callback_);
    pending_.clear();
    body_.clear();
  }
  if (callback) callback();
  return true;
}

bool HttpAnswer::is_complete() const {
  const std::lock_guard lock(mailbox_->mutex_);
  return state_ == State::complete;
}

void HttpAnswer::run_late_callback() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mailbox_->mutex_);
    if (!gone_) return;
    callback.swap(callback_);
  }
  if (callback) callback();
}

}  // namespace lockstep::server
