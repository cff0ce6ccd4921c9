#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "core/error.h"
#include "server/http/http.h"
#include "server/http/session.h"

namespace lockstep::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr size_t kScratchBytes = size_t{256} << 10;
constexpr milliseconds kAcceptPause{100};    // when the process has no more files
constexpr size_t kRefusedConnections = 256;  // beyond max_connections, while they read their 503

// A connection is a file, and 1,024 of them is a common limit.
void raise_file_limit(size_t num_files) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, num_files);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);  // refused: accept() says so when they are used up
}

tcp::acceptor listen(asio::io_context& context, const HttpOptions& options) {
  const std::string where = options.host + ":" + std::to_string(options.port);
  const auto fail = [&](const error_code& error) -> ConfigError {
    return ConfigError({.what = "cannot listen",
                        .where = where,
                        .got = error.message(),
                        .attempt = "another --port, or an address of this machine as --host"});
  };
  if (options.port < 0 || options.port > 65535) throw fail(make_error_code(boost::system::errc::invalid_argument));
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) throw fail(error);
  for (const auto& entry : found) {
    tcp::acceptor acceptor(context);
    acceptor.open(entry.endpoint().protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(entry.endpoint(), error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) return acceptor;
  }
  throw fail(error ? error : make_error_code(boost::system::errc::address_not_available));
}

// Deadlines are looked at this often: late by a quarter at most, and never more often than needed.
milliseconds tick_of(const HttpOptions& o) {
  const milliseconds shortest = std::min(
      {o.header_timeout, o.body_timeout, o.idle_timeout, o.write_timeout, o.linger_timeout, o.pending_timeout});
  return std::clamp(shortest / 4, milliseconds(5), milliseconds(1000));
}

}  // namespace

struct HttpServer::Impl {
  SessionHost host;
  asio::io_context context{1};
  tcp::acceptor acceptor;
  asio::steady_timer tick{context}, accept_pause{context};
  const milliseconds tick_interval;
  const int port;

  Impl(HttpOptions options, Handler handler)
      : host{.options = std::move(options), .handler = std::move(handler), .mailbox = nullptr},
        acceptor(listen(context, host.options)),
        tick_interval(tick_of(host.options)),
        port(acceptor.local_endpoint().port()) {
    host.mailbox = std::make_shared<Mailbox>([this] { asio::post(context, [this] { deliver(); }); });
    host.scratch.resize(kScratchBytes);
    raise_file_limit(host.options.max_connections + 2 * kRefusedConnections);
    accept();
    watch();
  }

  // Sessions go before the context: their sockets are its.
  ~Impl() {
    host.mailbox->close();
    std::exchange(host.sessions, {}).clear();
  }

  void deliver() {
    for (const auto& answer : host.mailbox->take()) {
      if (answer->session != nullptr) {
        answer->session->on_news();
      } else {
        answer->run_late_callback();
      }
    }
  }

  void accept() {
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor.is_open()) return;
      if (error == asio::error::no_descriptors || error == asio::error::no_buffer_space ||
          error == asio::error::no_memory) {
        accept_pause.expires_after(kAcceptPause);
        accept_pause.async_wait([this](error_code) {
          if (acceptor.is_open()) accept();
        });
        return;
      }
      if (!error) admit(std::move(socket));
      accept();
    });
  }

  void admit(tcp::socket socket) {
    const size_t limit = host.options.max_connections;
    if (host.sessions.size() >= limit + kRefusedConnections) return;  // the socket closes
    error_code error;
    socket.set_option(tcp::no_delay(true), error);
    const bool refused = host.sessions.size() >= limit;
    const auto session = std::make_shared<Session>(host, Session::Socket(std::move(socket)));
    refused ? session->start_refused() : session->start();
  }

  void watch() {
    tick.expires_after(tick_interval);
    tick.async_wait([this](error_code error) {
      if (error) return;
      const auto now = Session::Clock::now();
      for (const auto& session : open_sessions()) session->on_time(now);
      watch();
    });
  }

  // A session that closes leaves the map.
  std::vector<std::shared_ptr<Session>> open_sessions() const {
    std::vector<std::shared_ptr<Session>> sessions;
    sessions.reserve(host.sessions.size());
    for (const auto& [key, session] : host.sessions) sessions.push_back(session);
    return sessions;
  }

  void close_all() {
    error_code error;
    acceptor.close(error);
    for (const auto& session : open_sessions()) session->close();
    context.stop();
  }
};

HttpServer::HttpServer(HttpOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->port;
}

void HttpServer::run() {
  impl_->context.run();
}

void HttpServer::post(std::function<void()> task) {
  asio::post(impl_->context, std::move(task));
}

void HttpServer::post_after(milliseconds delay, std::function<void()> task) {
  post([impl = impl_.get(), delay, task = std::move(task)]() mutable {
    const auto timer = std::make_shared<asio::steady_timer>(impl->context, delay);
    timer->async_wait([timer, task = std::move(task)](error_code error) {
      if (!error) task();
    });
  });
}

void HttpServer::close_listener() {
  post([impl = impl_.get()] {
    error_code error;
    impl->acceptor.close(error);
  });
}

void HttpServer::stop() {
  post([impl = impl_.get()] { impl->close_all(); });
}

size_t HttpServer::connections() const {
  return impl_->host.num_sessions;
}

}  // namespace lockstep::server
