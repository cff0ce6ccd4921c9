// One streamed completion against an OpenAI-compatible server: sends a request, reads its events, checks that they are
// complete, and takes the times. One thread; the socket, the timer and the callback are the io_context's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"

namespace lockstep::bench {

struct StreamResult {
  std::string error;        // its kind; empty: all is well
  int64_t tokens = 0;       // by usage
  double first_s = 0;       // to the first token
  double total_s = 0;       // to the end of the answer
  std::vector<float> gaps;  // seconds between events that carry tokens
};

struct StreamOptions {
  boost::asio::ip::tcp::endpoint endpoint;
  bool chat = false;
  int64_t max_tokens = 0;  // exactly so many are wanted
  std::chrono::milliseconds timeout{0};
};

class LoadStream : public std::enable_shared_from_this<LoadStream> {
 public:
  using Done = std::function<void(StreamResult)>;
  // `request` is the whole of it, head and body. `done` is called once.
  static void start(boost::asio::io_context& context, const StreamOptions& options, std::string request, Done done);
  ~LoadStream();
  LoadStream(boost::asio::io_context& context, const StreamOptions& options, std::string request, Done done);

 private:
  using Clock = std::chrono::steady_clock;
  class Parser;
  void connect();
  void send();
  void read();
  void on_body(std::string_view bytes);
  void on_event(std::string_view data);
  void on_token();
  void finish(std::string error);
  void check_end();
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  const StreamOptions options_;
  const std::string request_;
  Done done_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<Parser> parser_;
  std::vector<char> input_;
  size_t input_size_ = 0;  // of it, not parsed yet
  std::string line_;       // the event line that is being read
  std::string refusal_;    // body of an answer that is no 200
  Clock::time_point begin_;
  double last_token_s_ = 0;
  bool has_first_ = false, has_done_ = false, has_finish_ = false;
  int64_t usage_tokens_ = -1;
  StreamResult result_;
};

// Sends `request` and reads about 100 bytes a second of what comes, again and again, until the io_context stops. `lost`
// is called when the server ends the connection before its answer is complete.
void start_slow_client(boost::asio::io_context& context, const boost::asio::ip::tcp::endpoint& endpoint,
                       const std::string& request, std::function<void()> connected, std::function<void()> lost);

}  // namespace lockstep::bench
