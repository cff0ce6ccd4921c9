// Answers on their way from any thread to the server's: what is written gathers here until the server's loop takes all
// of it at once. Nothing here touches a socket, so a Responder may outlive the server.
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

// The answers with news. One lock guards it and the shared half of every answer: it is held for an append or a swap.
class Mailbox {
 public:
  // `wake` is called from any thread when there is news after none; it must only make the server's thread call take().
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}
  // The answers with news, whose taken half is brought up to date. Server's thread.
  std::vector<std::shared_ptr<HttpAnswer>> take();
  void close();  // from now on nobody is woken and nothing is kept

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

  // Any thread; as Responder's.
  void send(HttpResponse response);
  void begin_stream(HttpResponse head);
  void write(std::string_view chunk);
  void end_stream();
  void on_disconnect(std::function<void()> callback);
  void fail(const std::string& message);  // a 500; of a stream that has begun: the connection is cut

  // Server's thread. False when the answer is complete, so that nobody needs to know.
  bool disconnect();
  bool is_complete() const;
  void run_late_callback();

  enum class State { waiting, streaming, complete, cut };
  struct Taken {  // by Mailbox::take()
    std::string bytes;
    size_t sent = 0;   // of them
    std::string body;  // a large one, behind them
    std::shared_ptr<const void> held;
    State state = State::waiting;
    bool stream = false;
    bool close = false;  // the connection ends with this answer

    size_t waiting() const { return bytes.size() - sent + body.size(); }
  } taken;
  Session* session;  // null once it has let go of this answer

 private:
  friend class Mailbox;
  bool over() const { return gone_ || state_ == State::complete || state_ == State::cut; }
  void complete(HttpResponse response);
  void notify();
  void finish(State state, std::function<void()>& callback);

  const std::shared_ptr<Mailbox> mailbox_;
  const RequestReader::Framing framing_;
  // Guarded by the mailbox's lock. Callbacks are called and destroyed outside it: they may own a Responder.
  std::string pending_, body_;  // body_ goes behind pending_
  std::shared_ptr<const void> held_;
  State state_ = State::waiting;
  bool has_body_ = false;  // chunks are sent (not for HEAD)
  bool stream_ = false, chunked_ = false;
  bool close_ = false;
  bool queued_ = false;
  bool gone_ = false;
  std::function<void()> callback_;
};

// What a handler holds of an answer.
std::shared_ptr<Responder> make_responder(std::shared_ptr<HttpAnswer> answer);

}  // namespace lockstep::server
