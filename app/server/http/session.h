// One connection: reads a request, passes it to the handler, writes the answer, and repeats. On the server's thread.
//
//   reading   a read is always pending, even while an answer is generated, so that a client that leaves is noticed
//   writing   directly to the socket when there is data; only what the socket does not take waits
//   time      one deadline, which moves with the session's phases; the server checks all of them a few times a second
#pragma once

#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <chrono>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/http/answer.h"
#include "server/http/reader.h"

namespace lockstep::server {

// What the sessions of a server share.
struct SessionHost {
  HttpOptions options;
  HttpServer::Handler handler;
  std::shared_ptr<Mailbox> mailbox;
  std::unordered_map<Session*, std::shared_ptr<Session>> sessions = {};  // the open ones
  std::atomic<size_t> num_sessions = 0;
  size_t bodies_bytes = 0;              // of requests being read
  const Session* large_body = nullptr;  // who reads one
  size_t unsent_bytes = 0;              // of streams, not yet read by clients
  std::vector<char> scratch = {};       // read buffer of all sessions
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Clock = std::chrono::steady_clock;
  using Socket = boost::asio::generic::stream_protocol::socket;

  Session(SessionHost& host, Socket socket);
  void start();          // registers with the host and starts to read; call once
  void start_refused();  // the same, but the client gets a 503
  void on_news();        // call when the taken part of its answer has changed
  void on_time(Clock::time_point now);
  void close();  // immediately; an incomplete answer is told that its client has gone

 private:
  enum class Phase { idle, header, body, answering, lingering };
  void enter(Phase phase);
  void set_deadline(std::chrono::milliseconds from_now);
  void wait_readable();
  void on_readable();
  void on_end(bool reset);
  void advance();
  void dispatch();
  void refuse(const HttpRefusal& refusal);
  bool account_body();
  void release_body();
  void flush();
  size_t write_some();
  bool is_behind(size_t taken);
  void account_unsent();
  void on_flushed();
  void cut();
  void linger();

  SessionHost& host_;
  Socket socket_;
  RequestReader reader_;
  std::shared_ptr<HttpAnswer> answer_;  // while answering
  Phase phase_ = Phase::header;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();  // for the next bytes that the client reads
  // While a stream is more than max_pending_bytes behind: how much it was beyond them, less what was read since.
  size_t behind_bytes_ = 0;
  Clock::time_point behind_deadline_ = Clock::time_point::max();
  size_t accounted_bytes_ = 0;   // of host.bodies_bytes
  size_t accounted_unsent_ = 0;  // of host.unsent_bytes
  bool wait_pending_ = false, write_pending_ = false;
  bool discard_ = false;     // incoming bytes are discarded
  bool peer_ended_ = false;  // the client has closed its sending side; a complete answer is still written
  bool closed_ = false;
};

}  // namespace lockstep::server
