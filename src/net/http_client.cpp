#include "net/http_client.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "core/base64.h"
#include "core/hidden_secrets.h"

namespace lockstep::net {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Failure = beast::error_code;

// A connection between two requests, or in one.
struct Connection {
  explicit Connection(asio::io_context& io) : stream(io) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
};

using Idle = std::map<std::string, std::deque<std::unique_ptr<Connection>>>;  // by host and port

std::string place_of(const Address& address) {
  return fmt::format("{}:{}", address.host, address.port);
}

// What a request carries that no message may show.
std::vector<std::string> secrets_of(const Address& to, const HttpRequest& request) {
  std::vector<std::string> secrets;
  if (!to.user.empty()) secrets = {base64(to.user), to.user.substr(to.user.find(':') + 1)};
  for (const auto& [name, value] : request.headers)
    if (beast::iequals(name, "Authorization")) secrets.push_back(value.substr(value.rfind(' ') + 1));
  const std::string target = to.target(request.path);
  for (size_t at = target.find('?'); at != std::string::npos;) {
    const size_t next = target.find('&', ++at);
    const std::string field = target.substr(at, next - at);
    const size_t equals = field.find('=');
    if (equals != std::string::npos && names_a_secret(field.substr(0, equals)))
      secrets.push_back(field.substr(equals + 1));
    at = next;
  }
  return secrets;
}

}  // namespace

// One request from its connection to the last byte of its answer. Lives on the client's thread.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  struct Call {
    Address to;
    HttpRequest request;
    HttpClient::OnDone on_done;
    HttpClient::OnBytes on_bytes;
  };
  Exchange(asio::io_context& io, Idle& idle, size_t max_idle, Call call, std::function<void()> forget)
      : io_(io),
        idle_(idle),
        max_idle_(max_idle),
        call_(std::move(call)),
        forget_(std::move(forget)),
        resolver_(io),
        deadline_(io) {}

  void start() {
    message_ = {http::string_to_verb(call_.request.method), call_.to.target(call_.request.path), 11};
    message_.set(http::field::host, call_.to.authority());
    if (!call_.to.user.empty()) message_.set(http::field::authorization, "Basic " + base64(call_.to.user));
    if (!call_.request.body.empty()) message_.set(http::field::content_type, call_.request.content_type);
    for (const auto& [name, value] : call_.request.headers) message_.set(name, value);
    message_.body() = std::move(call_.request.body);
    message_.keep_alive(!call_.request.once);
    message_.prepare_payload();
    deadline_.expires_after(call_.request.timeout);
    deadline_.async_wait([self = shared_from_this()](Failure error) {
      if (!error) self->fail("no answer within " + std::to_string(self->call_.request.timeout.count()) + " ms");
    });
    std::deque<std::unique_ptr<Connection>>& kept = idle_[place_of(call_.to)];
    if (!call_.request.once && !kept.empty()) {
      connection_ = std::move(kept.back());
      kept.pop_back();
      reused_ = true;
      return write();
    }
    connect();
  }

  void drop() {  // no callback follows
    over_ = true;
    deadline_.cancel();
    close();
  }

 private:
  void connect() {
    reused_ = false;
    connection_ = std::make_unique<Connection>(io_);
    connection_->stream.expires_after(call_.request.connect_timeout);
    resolver_.async_resolve(call_.to.host, std::to_string(call_.to.port),
                            [self = shared_from_this()](Failure error, const tcp::resolver::results_type& found) {
                              if (self->over_) return;
                              if (error) return self->fail("the host is not known: " + error.message());
                              self->connection_->stream.expires_after(self->call_.request.connect_timeout);
                              self->connection_->stream.async_connect(
                                  found, [self](Failure failure, const tcp::endpoint&) {
                                    if (self->over_) return;
                                    if (failure) return self->fail("no connection: " + failure.message());
                                    self->connection_->stream.socket().set_option(tcp::no_delay(true));
                                    self->write();
                                  });
                            });
  }

  void write() {
    connection_->stream.expires_never();
    parser_.emplace();
    parser_->body_limit(call_.request.max_body_bytes);
    parser_->eager(true);
    http::async_write(connection_->stream, message_, [self = shared_from_this()](Failure error, size_t) {
      if (self->over_) return;
      if (error) return self->broken(error);
      self->read();
    });
  }

  void read() {
    http::async_read_some(connection_->stream, connection_->buffer, *parser_,
                          [self = shared_from_this()](Failure error, size_t) { self->on_read(error); });
  }

  void on_read(Failure error) {
    if (over_) return;
    if (parser_->got_some()) reused_ = false;  // it has begun to answer: the request is not sent again
    if (error && !parser_->is_done()) return broken(error);
    if (parser_->is_header_done()) pass_on();
    if (over_) return;
    if (!parser_->is_done()) return read();
    finish();
  }

  // Hands the bytes that have come to who reads the body in pieces.
  void pass_on() {
    const bool ok = parser_->get().result_int() / 100 == 2;
    if (!call_.on_bytes || !ok) return;
    const std::string bytes = std::exchange(parser_->get().body(), {});
    if (!bytes.empty()) call_.on_bytes(bytes);
  }

  void finish() {
    const auto& message = parser_->get();
    HttpAnswer answer{.status = static_cast<int>(message.result_int()),
                      .content_type = std::string(message[http::field::content_type]),
                      .body = std::move(parser_->get().body())};
    // Messages quote it.
    if (!answer.ok()) answer.body = hide_values(std::move(answer.body), secrets_of(call_.to, call_.request));
    const bool keep = message.keep_alive() && !call_.request.once;
    over_ = true;
    deadline_.cancel();
    if (keep && connection_->buffer.size() == 0) {
      std::deque<std::unique_ptr<Connection>>& kept = idle_[place_of(call_.to)];
      if (kept.size() < max_idle_) kept.push_back(std::move(connection_));
    }
    close();
    done(std::move(answer));
  }

  // A kept connection may have been closed by the other side just now.
  void broken(Failure error) {
    if (reused_) {
      close();
      return connect();
    }
    if (error == http::error::body_limit) return fail("the answer is too large");
    fail("the connection was cut: " + error.message());
  }

  void fail(const std::string& why) {
    if (over_) return;
    over_ = true;
    deadline_.cancel();
    close();
    done(std::make_exception_ptr(
        Unreachable({.what = "a server does not answer", .where = call_.to.text(call_.request.path), .got = why})));
  }

  void done(HttpClient::Outcome outcome) {
    forget_();
    call_.on_done(std::move(outcome));
  }

  void close() {
    resolver_.cancel();
    if (connection_) connection_->stream.close();
  }

  asio::io_context& io_;
  Idle& idle_;
  const size_t max_idle_;
  Call call_;
  std::function<void()> forget_;
  tcp::resolver resolver_;
  asio::steady_timer deadline_;
  std::unique_ptr<Connection> connection_;
  http::request<http::string_body> message_;
  std::optional<http::response_parser<http::string_body>> parser_;
  bool reused_ = false, over_ = false;
};

struct HttpClient::Impl {
  explicit Impl(size_t max) : max_idle(max), thread([this] { io.run(); }) {}
  ~Impl() {
    io.stop();
    thread.join();
    for (auto& [id, exchange] : open) exchange->drop();
  }

  void start(Id id, Exchange::Call call) {
    auto exchange = std::make_shared<Exchange>(io, idle, max_idle, std::move(call), [this, id] { open.erase(id); });
    open.emplace(id, exchange);
    exchange->start();
  }

  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> stays = asio::make_work_guard(io);
  const size_t max_idle;
  std::atomic<Id> next{1};
  // Of the thread's.
  Idle idle;
  std::map<Id, std::shared_ptr<Exchange>> open;
  std::thread thread;
};

HttpClient::HttpClient(size_t max_idle) : impl_(std::make_unique<Impl>(max_idle)) {}
HttpClient::~HttpClient() = default;

HttpClient::Id HttpClient::send(const Address& to, HttpRequest request, OnDone on_done, OnBytes on_bytes) {
  const Id id = impl_->next++;
  asio::post(impl_->io, [impl = impl_.get(), id,
                         call = Exchange::Call{to, std::move(request), std::move(on_done),
                                               std::move(on_bytes)}]() mutable { impl->start(id, std::move(call)); });
  return id;
}

void HttpClient::cancel(Id id) {
  asio::post(impl_->io, [impl = impl_.get(), id] {
    const auto found = impl->open.find(id);
    if (found == impl->open.end()) return;
    const std::shared_ptr<Exchange> exchange = found->second;
    impl->open.erase(found);
    exchange->drop();
  });
}

HttpAnswer HttpClient::ask(const Address& to, HttpRequest request) {
  std::promise<Outcome> promise;
  send(to, std::move(request), [&promise](Outcome outcome) { promise.set_value(std::move(outcome)); });
  Outcome outcome = promise.get_future().get();
  if (auto* error = std::get_if<std::exception_ptr>(&outcome)) std::rethrow_exception(*error);
  return std::get<HttpAnswer>(std::move(outcome));
}

}  // namespace lockstep::net
