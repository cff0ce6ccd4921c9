#include "load_stream.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cstring>
#include <limits>
#include <utility>

namespace lockstep::bench {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;

using nlohmann::literals::operator""_json_pointer;

namespace {
constexpr size_t kInputBytes = size_t{64} << 10;
constexpr int kSlowBytes = 100;  // a second
}  // namespace

class LoadStream::Parser : public http::basic_parser<false> {
 public:
  explicit Parser(LoadStream& stream) : stream_(stream) {
    eager(true);
    body_limit(std::numeric_limits<std::uint64_t>::max());  // none refuses every Content-Length in Boost 1.74
  }
  int status = 0;

 private:
  void on_response_impl(int code, beast::string_view, int, error_code&) override { status = code; }
  size_t on_body_impl(beast::string_view bytes, error_code&) override {
    stream_.on_body({bytes.data(), bytes.size()});
    return bytes.size();
  }
  size_t on_chunk_body_impl(std::uint64_t, beast::string_view bytes, error_code& ec) override {
    return on_body_impl(bytes, ec);
  }
  void on_request_impl(http::verb, beast::string_view, beast::string_view, int, error_code&) override {}
  void on_field_impl(http::field, beast::string_view, beast::string_view, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  void on_chunk_header_impl(std::uint64_t, beast::string_view, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  LoadStream& stream_;
};

LoadStream::LoadStream(asio::io_context& context, const StreamOptions& options, std::string request, Done done)
    : options_(options),
      request_(std::move(request)),
      done_(std::move(done)),
      socket_(context),
      timer_(context),
      parser_(std::make_unique<Parser>(*this)),
      input_(kInputBytes) {}
LoadStream::~LoadStream() = default;

void LoadStream::start(asio::io_context& context, const StreamOptions& options, std::string request, Done done) {
  std::make_shared<LoadStream>(context, options, std::move(request), std::move(done))->connect();
}

void LoadStream::connect() {
  begin_ = Clock::now();
  timer_.expires_after(options_.timeout);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->finish("timeout");
  });
  socket_.async_connect(options_.endpoint, [self = shared_from_this()](error_code error) {
    if (error) return self->finish("connect: " + error.message());
    self->socket_.set_option(tcp::no_delay(true), error);
    self->send();
  });
}

void LoadStream::send() {
  asio::async_write(socket_, asio::buffer(request_), [self = shared_from_this()](error_code error, size_t) {
    if (error) return self->finish("send: " + error.message());
    self->read();
  });
}

void LoadStream::read() {
  if (input_size_ == input_.size()) return finish("the answer's head is too large");
  socket_.async_read_some(
      asio::buffer(input_) + input_size_, [self = shared_from_this()](error_code error, size_t size) {
        if (!self->done_) return;
        if (error == asio::error::eof) {
          if (self->parser_->got_some()) self->parser_->put_eof(error);
          return self->parser_->is_done() ? self->check_end() : self->finish("the answer was cut");
        }
        if (error) return self->finish("read: " + error.message());
        self->input_size_ += size;
        while (self->done_ && self->input_size_ > 0 && !self->parser_->is_done() && !error) {
          const size_t used = self->parser_->put(asio::buffer(self->input_.data(), self->input_size_), error);
          self->input_size_ -= used;
          std::memmove(self->input_.data(), self->input_.data() + used, self->input_size_);
        }
        if (!self->done_) return;
        if (error && error != http::error::need_more) return self->finish("bad HTTP: " + error.message());
        self->parser_->is_done() ? self->check_end() : self->read();
      });
}

void LoadStream::on_body(std::string_view bytes) {
  if (parser_->status != 200) {
    refusal_ += bytes;
    return;
  }
  while (!bytes.empty() && done_) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (end == bytes.npos) return;
    bytes.remove_prefix(end + 1);
    const std::string line = std::exchange(line_, {});
    if (line.starts_with("data:")) on_event(std::string_view(line).substr(line.starts_with("data: ") ? 6 : 5));
  }
}

void LoadStream::on_event(std::string_view data) {
  while (data.ends_with('\r')) data.remove_suffix(1);
  if (has_done_) return finish("an event after [DONE]");
  if (data == "[DONE]") return void(has_done_ = true);
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) return finish("an event is no JSON");
  if (event.contains("error")) return finish("an error in the stream: " + event["error"].dump());
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    usage_tokens_ = usage->value("completion_tokens", int64_t{-1});
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return;
  const Json& choice = choices->front();
  if (!choice.is_object()) return finish("a choice is no object");
  const auto finish_reason = choice.find("finish_reason");
  if (finish_reason != choice.end() && finish_reason->is_string()) has_finish_ = true;
  // The first event of a chat has the role and no token.
  if (options_.chat) {
    const Json content = choice.value("/delta/content"_json_pointer, Json());
    if (!content.is_string() || (!has_first_ && content == "")) return;
  }
  on_token();
}

void LoadStream::on_token() {
  const double now = seconds();
  if (!std::exchange(has_first_, true)) {
    result_.first_s = now;
  } else {
    result_.gaps.push_back(static_cast<float>(now - last_token_s_));
  }
  last_token_s_ = now;
}

void LoadStream::check_end() {
  if (parser_->status != 200) {
    const std::string text = refusal_.substr(0, 200);
    return finish("HTTP " + std::to_string(parser_->status) + ": " + text);
  }
  if (!has_done_) return finish("no [DONE]");
  if (!has_finish_) return finish("no finish_reason");
  if (usage_tokens_ < 0) return finish("no usage");
  if (!has_first_) return finish("no tokens");
  result_.tokens = usage_tokens_;
  if (usage_tokens_ != options_.max_tokens) {
    return finish(std::to_string(usage_tokens_) + " tokens instead of " + std::to_string(options_.max_tokens));
  }
  finish("");
}

void LoadStream::finish(std::string error) {
  if (!done_) return;
  result_.error = std::move(error);
  result_.total_s = seconds();
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  std::exchange(done_, nullptr)(std::move(result_));
}

namespace {

class SlowClient : public std::enable_shared_from_this<SlowClient> {
 public:
  SlowClient(asio::io_context& context, const tcp::endpoint& endpoint, std::string request,
             std::function<void()> connected, std::function<void()> lost)
      : endpoint_(endpoint),
        request_(std::move(request)),
        connected_(std::move(connected)),
        lost_(std::move(lost)),
        socket_(context),
        timer_(context) {}

  void connect() {
    tail_.clear();
    error_code ignored;
    socket_.close(ignored);
    socket_.open(endpoint_.protocol(), ignored);
    socket_.set_option(asio::socket_base::receive_buffer_size(4096), ignored);  // the rest waits at the server
    socket_.async_connect(endpoint_, [self = shared_from_this()](error_code error) {
      if (error) return self->again();
      asio::async_write(self->socket_, asio::buffer(self->request_), [self](error_code, size_t) {
        if (self->connected_) std::exchange(self->connected_, nullptr)();
        self->read();
      });
    });
  }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(input_), [self = shared_from_this()](error_code error, size_t size) {
      self->tail_.append(self->input_, size);
      if (self->tail_.size() > kTailBytes) self->tail_.erase(0, self->tail_.size() - kTailBytes);
      const bool complete = self->tail_.find("[DONE]") != self->tail_.npos;
      if (error && !complete) self->lost_();
      if (error || complete) return self->again();
      self->wait([self] { self->read(); });
    });
  }

  void again() {
    wait([self = shared_from_this()] { self->connect(); });
  }

  template <class Next>
  void wait(Next next) {
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([next](error_code error) {
      if (!error) next();
    });
  }

  static constexpr size_t kTailBytes = 2 * kSlowBytes;
  const tcp::endpoint endpoint_;
  const std::string request_;
  std::function<void()> connected_, lost_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::string tail_;
  char input_[kSlowBytes];
};

}  // namespace

void start_slow_client(asio::io_context& context, const tcp::endpoint& endpoint, const std::string& request,
                       std::function<void()> connected, std::function<void()> lost) {
  std::make_shared<SlowClient>(context, endpoint, request, std::move(connected), std::move(lost))->connect();
}

}  // namespace lockstep::bench
