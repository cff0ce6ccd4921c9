// Answers on their way from any thread to the server's thread: what is written is collected here until the event loop
// takes all of it at once. Nothing here touches a socket, so a Responder may outlive the server.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/reader.h"

namespace lockstep::server {

class HttpAnswer;
class Session;

// The answers that have changed. One lock guards it and the shared part of every answer; it is held only for an append
class Mailbox {
 public:
  // `wake` is called from any thread after the first change; it must only make the server's thread call take().
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}
  // The answers that have changed, with their taken part brought up to date. Server's thread.
  std::vector<std::shared_ptr<HttpAnswer>> take();
  void close();  // from now on nothing is collected and wake is not called

 private:
  friend class HttpAnswer;
  std::mutex mutex_;
  std::function<void()> wake_;  // empty: closed
  std::vector<std::shared_ptr<HttpAnswer>> news_;
};

class HttpAnswer : public std::enable_shared_from_this<HttpAnswer> {
 public:
  HttpAnswer(std::shared_ptr<Mailbox> mailbox, RequestReader::Framing framing, Session* session)
      : session(session), mailbox_(std::move(mailbox)), framing_(framing) {}

  // Any thread; as in Responder.
  void send(HttpResponse response);
  void begin_stream(HttpResponse head);
  void write(std::string_view chunk);
  void end_stream();
  void on_disconnect(std::function<void()> callback);
  void fail(const std::string& message);  // answers 500; if a stream has begun, the connection is closed

  // Server's thread. False if the answer is complete, so that there is nothing to report.
  bool disconnect();
  bool is_complete() const;
  void run_late_callback();

  enum class State { waiting, streaming, complete, cut };
  struct Taken {  // what take() has moved here
    std::string bytes;
    size_t sent = 0;   // of them
    std::string body;  // a large body, sent after them
    std::shared_ptr<const void> held;
    State state = State::waiting;
    bool stream = false;
    bool close = false;  // close the connection after this answer

    size_t waiting() const { return bytes.size() - sent + body.size(); }
  } taken;
  Session* session;  // null once the session has released this answer

 private:
  friend class Mailbox;
  bool over() const { return gone_ || state_ == State::complete || state_ == State::cut; }
  void complete(HttpResponse response);
  void notify();
  void finish(State state, std::function<void()>& callback);

  const std::shared_ptr<Mailbox> mailbox_;
  const RequestReader::Framing framing_;
  // Guarded by the mailbox's lock. Callbacks are called and destroyed outside of it, because they may own a Responder.
  std::string pending_, body_;  // body_ is sent after pending_
  std::shared_ptr<const void> held_;
  State state_ = State::waiting;
  bool has_body_ = false;  // whether chunks are sent (not for HEAD)
  bool stream_ = false, chunked_ = false;
  bool close_ = false;
  bool queued_ = false;
  bool gone_ = false;
  std::function<void()> callback_;
};

// The handle that a handler has of an answer.
std::shared_ptr<Responder> make_responder(std::shared_ptr<HttpAnswer> answer);

}  // namespace lockstep::server
