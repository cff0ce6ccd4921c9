// Bytes of a client against a session of the server, over a socket pair. The first byte chooses how they are cut into
// pieces, the next two how small the limits are and what the handler does; the rest is what the client sends.
//   - the handler sees only well-formed requests within the limits;
//   - a session ends when its client does, and nothing is left of it;
//   - where the bytes are cut makes no difference to the requests (a refusal may come earlier or later).
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/utf8.h"
#include "server/http/session.h"

namespace {

using namespace lockstep::server;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Plan {
  size_t piece = 0;      // bytes of one write of the client; 0: all
  bool small = false;    // limits that the input can reach
  unsigned handler = 0;  // send, stream, throw, drop, later
};

void require_well_formed(const HttpRequest& request, const HttpOptions& options) {
  require(!request.method.empty() && request.method.find_first_of(" \r\n\0") == request.method.npos);
  require(request.path.starts_with('/') || (request.path == "*" && request.method == "OPTIONS"));
  require(request.path.find('\0') == request.path.npos);
  require(lockstep::valid_utf8_prefix(request.path) == request.path.size());
  const auto is_control = [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 0x7F; };
  require(std::none_of(request.query.begin(), request.query.end(), [](char c) { return c >= 0 && c <= ' '; }));
  size_t header_bytes = request.query.size();
  for (const auto& [name, value] : request.headers) {
    require(!name.empty() && name.find_first_of(" :\r\n\t") == name.npos);
    require(std::none_of(value.begin(), value.end(), is_control));
    require(request.header(name).data() != nullptr);
    header_bytes += name.size() + value.size();
  }
  require(header_bytes <= options.max_header_bytes && request.body.size() <= options.max_body_bytes);
  (void)request.parameter("a");
}

class Run {
 public:
  explicit Run(const Plan& plan) : plan_(plan) {
    host_.options.max_header_bytes = plan.small ? 64 : size_t{1} << 20;
    host_.options.max_body_bytes = plan.small ? 32 : size_t{1} << 20;
    host_.handler = [this](HttpRequest request, std::shared_ptr<Responder> responder) {
      require_well_formed(request, host_.options);
      requests.push_back(request.method + ' ' + request.path + '?' + request.query + '\n' + request.body);
      answer(*responder, responder);
    };
    host_.mailbox = std::make_shared<Mailbox>([this] {
      boost::asio::post(context_, [this] {
        for (const auto& answer : host_.mailbox->take())
          answer->session != nullptr ? answer->session->on_news() : answer->run_late_callback();
      });
    });
    host_.scratch.resize(size_t{16} << 10);
  }

  ~Run() {
    later_.clear();
    host_.mailbox->close();
  }

  void serve(std::string_view bytes) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    std::make_shared<Session>(
        host_, boost::asio::local::stream_protocol::socket(context_, boost::asio::local::stream_protocol(), ends[0]))
        ->start();
    const size_t piece = plan_.piece == 0 ? std::max<size_t>(bytes.size(), 1) : plan_.piece;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const std::string_view part = bytes.substr(at, piece);
      if (send(ends[1], part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
      settle();
      read_answers(ends[1]);
    }
    shutdown(ends[1], SHUT_WR);
    settle();
    read_answers(ends[1]);
    ::close(ends[1]);
    settle();
    require(host_.sessions.empty() && host_.num_sessions == 0 && host_.bodies_bytes == 0);
  }

  std::vector<std::string> requests;

 private:
  void answer(Responder& responder, const std::shared_ptr<Responder>& owner) {
    responder.on_disconnect([owner] {});
    switch (plan_.handler) {
      case 0: return responder.send({.body = "{}"});
      case 1:
        responder.begin_stream({});
        responder.write("chunk");
        return responder.end_stream();
      case 2: throw 7;
      case 3: return responder.on_disconnect(nullptr);
      default: later_.push_back(owner);
    }
  }

  void settle() {
    context_.restart();
    context_.poll();
    for (size_t i = 0; i < later_.size(); ++i) later_[i]->send({.body = "later"});
    if (std::exchange(later_, {}).empty()) return;
    context_.restart();
    context_.poll();
    if (!later_.empty()) settle();
  }

  void read_answers(int socket) {
    char bytes[4096];
    for (ssize_t size; (size = recv(socket, bytes, sizeof bytes, 0)) > 0;) {
      if (!begun_) require(std::string_view(bytes, static_cast<size_t>(size)).starts_with("HTTP/1.1 "));
      begun_ = true;
    }
  }

  const Plan plan_;
  SessionHost host_;
  boost::asio::io_context context_{1};
  std::vector<std::shared_ptr<Responder>> later_;
  bool begun_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kPlanBytes = 3, kMaxBytes = 4096;
  if (size < kPlanBytes || size > kMaxBytes) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + kPlanBytes, size - kPlanBytes);
  const Plan plan{.piece = data[0], .small = data[1] % 2 == 1, .handler = data[2] % 5u};
  Run run(plan);
  run.serve(bytes);
  if (plan.small || plan.piece == 0) return 0;
  Run whole({.piece = 0, .small = false, .handler = plan.handler});
  whole.serve(bytes);
  require(run.requests == whole.requests);
  return 0;
}
