#include "server/http/reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <optional>
#include <utility>

#include "core/json.h"
#include "core/utf8.h"
#include "server/http/text.h"

namespace lockstep::server {

namespace beast = boost::beast;
namespace http = beast::http;
using beast::error_code;

namespace {

// A body that is announced and never sent must not cost its memory.
constexpr size_t kReservedBodyBytes = size_t{1} << 20;
constexpr size_t kShortestChunkedBody = 5;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

// "/path?query" or "http://host/path?query" (what a proxy is sent). Nothing: not well formed.
bool read_target(std::string_view target, HttpRequest& request) {
  if (target.find('#') != target.npos) return false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!same_name(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.size(), target.find_first_of("/?")));
    if (target.empty()) target = "/";
    break;
  }
  if (target == "*" && request.method == "OPTIONS") return request.path = "*", true;
  if (target.empty() || target[0] != '/') return false;
  const size_t mark = std::min(target.find('?'), target.size());
  const std::optional<std::string> path = percent_decoded(target.substr(0, mark));
  if (!path || path->find('\0') != path->npos || valid_utf8_prefix(*path) != path->size()) return false;
  request.path = *path;
  request.query = target.substr(std::min(mark + 1, target.size()));
  return true;
}

}  // namespace

HttpResponse refusal_response(const HttpRefusal& refusal) {
  const auto phrase = http::obsolete_reason(static_cast<http::status>(refusal.status));
  std::string type(phrase.data(), phrase.size());
  if (refusal.status == 400) type = "BadRequestError";
  if (refusal.status == 500) type = "InternalServerError";
  const OrderedJson body = {
      {"error", {{"message", refusal.message}, {"type", type}, {"param", nullptr}, {"code", refusal.status}}}};
  return {.status = refusal.status, .body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

// Beast cuts the bytes into fields and body; what a field or a target may hold is decided here.
class RequestReader::Parser : public http::basic_parser<true> {
 public:
  HttpRequest request;
  HttpRefusal refusal;  // status 0: none
  bool expects_continue = false;
  bool http_1_0 = false;
  bool is_large = false;
  size_t header_bytes = 0;  // of the lines that are complete

  explicit Parser(const LargeBodies& large) : large_(large) {}

 private:
  void refuse(int status, std::string message, error_code& ec) {
    refusal = {status, std::move(message)};
    ec = http::error::bad_value;
  }

  void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int version,
                       error_code& ec) override {
    http_1_0 = version == 10;
    header_bytes = method.size() + target.size() + std::string_view("  HTTP/1.1\r\n").size();
    request.method = view(method);
    if (!read_target(view(target), request)) return refuse(400, "the request's target is not a path", ec);
    is_large = std::ranges::find(large_.paths, request.path) != large_.paths.end();
    if (is_large) body_limit(large_.max_bytes);
  }

  void on_field_impl(http::field name, beast::string_view text, beast::string_view value, error_code& ec) override {
    if (is_header_done()) return;  // a trailer, after the body
    header_bytes += text.size() + value.size() + std::string_view(": \r\n").size();
    if (name == http::field::transfer_encoding && !same_name(view(value), "chunked")) {
      return refuse(400, "this Transfer-Encoding is not supported; wanted: chunked", ec);
    }
    if (name == http::field::expect) {
      if (!same_name(view(value), "100-continue")) return refuse(417, "of Expect only 100-continue is known", ec);
      expects_continue = true;
    }
    if (name == http::field::host && std::exchange(has_host_, true)) return refuse(400, "two Host headers", ec);
    request.headers.emplace_back(view(text), view(value));
  }

  void on_header_impl(error_code& ec) override {
    if (!http_1_0 && !has_host_) return refuse(400, "a request of HTTP/1.1 needs a Host header", ec);
    if (http_1_0 && chunked()) return refuse(400, "HTTP/1.0 has no Transfer-Encoding", ec);
    if (is_large && large_.admits && !large_.admits(request)) return refuse(401, "Unauthorized", ec);
    expects_continue = expects_continue && !http_1_0 && !is_done();
  }

  void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code&) override {
    // Memory that is reserved and not written costs none; growing would hold a large body twice.
    if (length) request.body.reserve(is_large ? *length : std::min<size_t>(*length, kReservedBodyBytes));
  }

  size_t on_body_impl(beast::string_view bytes, error_code&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  size_t on_chunk_body_impl(std::uint64_t, beast::string_view bytes, error_code& ec) override {
    return on_body_impl(bytes, ec);
  }

  void on_response_impl(int, beast::string_view, int, error_code&) override {}
  void on_chunk_header_impl(std::uint64_t, beast::string_view, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  const LargeBodies& large_;
  bool has_host_ = false;
};

RequestReader::RequestReader(size_t max_header_bytes, size_t max_body_bytes, LargeBodies large)
    : max_header_bytes_(max_header_bytes), max_body_bytes_(max_body_bytes), large_(std::move(large)) {}
RequestReader::~RequestReader() = default;

void RequestReader::append(std::string_view bytes) {
  buffer_ += bytes;
}

// Some clients end a body with a line break that is not part of it.
void RequestReader::skip_empty_lines() {
  buffer_.erase(0, std::min(buffer_.find_first_not_of("\r\n"), buffer_.size()));
}

RequestReader::Framing RequestReader::framing() const {
  return framing_;
}

RequestReader::Status RequestReader::refuse(HttpRefusal refusal) {
  refusal_ = std::move(refusal);
  drop();
  return Status::refused;
}

RequestReader::Status RequestReader::parse() {
  if (refusal_.status != 0) return Status::refused;
  if (!parser_) {
    skip_empty_lines();
    if (buffer_.empty()) return Status::more;
    parser_ = std::make_unique<Parser>(large_);
    framing_ = {};
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(std::min<size_t>(max_header_bytes_, UINT32_MAX)));
    parser_->body_limit(max_body_bytes_);
  }
  // Beast's assertions want the end of a chunked body without chunks in one piece ("0\r\n\r\n"); no body is shorter.
  const bool no_chunk_yet = parser_->is_header_done() && parser_->chunked() && parser_->request.body.empty();
  if (no_chunk_yet && buffer_.size() < kShortestChunkedBody) return Status::more;
  error_code ec;
  while (!buffer_.empty() && !parser_->is_done() && !ec) {
    buffer_.erase(0, parser_->put(boost::asio::buffer(buffer_), ec));
  }
  if (parser_->is_header_done()) {
    framing_ = {
        .head = parser_->request.method == "HEAD", .http_1_0 = parser_->http_1_0, .keep_alive = parser_->keep_alive()};
  }
  if (parser_->refusal.status != 0) return refuse(parser_->refusal);
  if (ec == http::error::body_limit) {
    return refuse(
        {413, "the body is larger than " + std::to_string(is_large() ? large_.max_bytes : max_body_bytes_) + " bytes"});
  }
  const bool over = ec == http::error::header_limit;
  if (over || ((!ec || ec == http::error::need_more) && is_header_too_large())) {
    return refuse({431, "the headers are larger than " + std::to_string(max_header_bytes_) + " bytes"});
  }
  if (ec && ec != http::error::need_more) return refuse({400, "this is not a request of HTTP/1.1: " + ec.message()});
  return parser_->is_done() ? Status::request : Status::more;
}

// Beast's limit is that of a line. What is left of the bytes before the end of a request is part of one: of the
// headers, or of a chunk's head or a trailer.
bool RequestReader::is_header_too_large() const {
  const size_t unread = parser_->is_done() ? 0 : buffer_.size();
  const size_t complete = parser_->is_header_done() && unread > 0 ? 0 : parser_->header_bytes;
  return complete + unread > max_header_bytes_;
}

HttpRequest RequestReader::take() {
  HttpRequest request = std::move(parser_->request);
  parser_.reset();
  if (buffer_.empty()) buffer_.shrink_to_fit();  // a connection that waits costs little
  return request;
}

void RequestReader::drop() {
  parser_.reset();
  std::string().swap(buffer_);
}

bool RequestReader::begun() const {
  return parser_ != nullptr && !parser_->is_done();
}

bool RequestReader::is_large() const {
  return parser_ != nullptr && parser_->is_large;
}

bool RequestReader::has_header() const {
  return parser_ != nullptr && parser_->is_header_done();
}

bool RequestReader::expects_continue() {
  return parser_ != nullptr && body_bytes() == 0 && std::exchange(parser_->expects_continue, false);
}

size_t RequestReader::body_bytes() const {
  return parser_ == nullptr ? 0 : parser_->request.body.size();
}

}  // namespace lockstep::server
