#include "server/dashboard/dashboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "server/dashboard/page.h"
#include "server/dashboard/run_files.h"
#include "server/http/loop.h"

namespace lockstep::server {

namespace {

using std::chrono::milliseconds;
using Reply = std::shared_ptr<Responder>;

constexpr milliseconds kBetweenReads{1000};
constexpr int kReadsPerHeartbeat = 15;
constexpr size_t kMaxStreams = 64;

// The page loads nothing of another origin and runs no inline script; no other page may frame it; browsers neither
// cache an answer nor guess its type.
constexpr std::pair<const char*, const char*> kHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action "
     "'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cache-Control", "no-store"}};

HttpResponse answer(int status, std::string body, std::string_view type = "application/json") {
  HttpResponse response{.status = status, .body = std::move(body), .content_type = std::string(type)};
  for (const auto& [name, value] : kHeaders) response.headers.emplace_back(name, value);
  return response;
}

HttpResponse refusal(int status, const std::string& message) {
  return answer(status, json_text(OrderedJson{{"error", message}}));
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == "[::1]";
}

// "localhost:7860" -> "localhost", "[::1]:7860" -> "[::1]".
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  return colon == std::string_view::npos || (bracket != std::string_view::npos && colon < bracket)
             ? host
             : host.substr(0, colon);
}

std::string digest(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

// Compares digests, so that the time it takes does not tell where the texts differ.
bool same_secret(std::string_view a, std::string_view b) {
  const std::string x = digest(a), y = digest(b);
  unsigned difference = 0;
  for (size_t i = 0; i < x.size(); ++i) difference |= static_cast<unsigned>(x[i] ^ y[i]);
  return difference == 0;
}

struct BadRequest {
  std::string message;
};

int64_t number_of(std::string_view text, const std::string& name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0)
    throw BadRequest{name + " must be a number that is not negative"};
  return number;
}

int64_t parameter(const HttpRequest& request, const char* name, std::optional<int64_t> fallback = {}) {
  const std::optional<std::string> text = request.parameter(name);
  if (text) return number_of(*text, name);
  if (!fallback) throw BadRequest{std::string(name) + " is missing"};
  return *fallback;
}

GroupFilter filter_of(const HttpRequest& request) {
  using Show = GroupFilter::Show;
  constexpr std::pair<std::string_view, Show> kShow[] = {{"all", Show::all},
                                                         {"mixed", Show::mixed},
                                                         {"equal", Show::equal},
                                                         {"truncated", Show::truncated},
                                                         {"unknown", Show::unknown}};
  GroupFilter filter{.first = parameter(request, "first", 0), .count = parameter(request, "count", 100)};
  if (request.parameter("step")) filter.step = parameter(request, "step");
  const std::string show = request.parameter("show").value_or("all"),
                    order = request.parameter("order").value_or("newest");
  const auto* found = std::ranges::find(kShow, show, &std::pair<std::string_view, Show>::first);
  if (found == std::end(kShow)) throw BadRequest{"show must be all, mixed, equal, truncated or unknown"};
  if (order != "newest" && order != "oldest") throw BadRequest{"order must be newest or oldest"};
  filter.show = found->second;
  filter.oldest_first = order == "oldest";
  return filter;
}

std::string samples_json(const fs::Path& directory, const recipes::SampleGroup& group) {
  std::string text = recipes::read_sample_group(directory, group);
  while (text.ends_with('\n')) text.pop_back();
  std::ranges::replace(text, '\n', ',');  // inside a line it is an escape
  std::string body = "{\"samples\":[" + text + "]}";
  if (!Json::accept(body)) throw FormatError({.what = "a group of samples is no JSON", .where = directory.string()});
  return body;
}

}  // namespace

struct Dashboard::Impl {
  explicit Impl(DashboardOptions given)
      : options(std::move(given)),
        http({.host = options.host, .port = options.port, .max_body_bytes = 1 << 16, .max_connections = 256},
             [this](HttpRequest request, Reply reply) { handle(request, reply); }) {
    for (const std::string& run : options.runs) runs.emplace_back(run, options.may_be_empty);
    refresh();
  }

  bool refresh() {
    bool changed = false;
    for (RunFiles& run : runs) {
      try {
        changed |= run.refresh();
      } catch (const Error&) {
        // A file that is being replaced, or that somebody damaged: what was read stays, and the next look may succeed.
      }
    }
    return changed;
  }

  void watch() {
    const bool changed = refresh();
    const bool heartbeat = ++reads % kReadsPerHeartbeat == 0;
    if (changed || heartbeat) {
      const std::string event = changed ? "data: " + states() + "\n\n" : ": still here\n\n";
      for (const Reply& stream : streams) stream->write(event);
    }
    http.post_after(kBetweenReads, [this] { watch(); });
  }

  void stop_when(const std::function<bool()>& interrupted) {
    constexpr milliseconds kBetween(50);
    if (interrupted()) return http.stop();
    http.post_after(kBetween, [this, &interrupted] { stop_when(interrupted); });
  }

  std::string states() const {
    std::string out = "{\"runs\":[";
    for (size_t i = 0; i < runs.size(); ++i) out += (i > 0 ? "," : "") + runs[i].state_json(i);
    return out + "]}";
  }

  std::string summaries() const {
    std::string out = "{\"runs\":[";
    for (size_t i = 0; i < runs.size(); ++i) out += (i > 0 ? "," : "") + runs[i].summary_json(i);
    return out + "]}";
  }

  // Against DNS rebinding: a page of another site whose name resolves to this machine must not read what is served
  // here. It has no token, so with one any name is allowed: this program does not know all names of its machine.
  bool is_allowed_host(std::string_view host) const {
    const std::string_view name = without_port(host);
    return !name.empty() && (!options.token.empty() || is_loopback(name) || name == options.host);
  }

  bool is_authorized(const HttpRequest& request) const {
    constexpr std::string_view kScheme = "Bearer ";
    const std::string_view given = request.header("authorization");
    return options.token.empty() ||
           (given.starts_with(kScheme) && same_secret(given.substr(kScheme.size()), options.token));
  }

  void handle(const HttpRequest& request, const Reply& reply) {
    if (!is_allowed_host(request.header("host"))) return reply->send(refusal(403, "this name is not served here"));
    if (request.method != "GET" && request.method != "HEAD") {
      HttpResponse response = refusal(405, "only GET is served here");
      response.headers.emplace_back("Allow", "GET, HEAD");
      return reply->send(std::move(response));
    }
    for (const PageFile& file : page_files())
      if (request.path == file.path) return reply->send(answer(200, std::string(file.bytes), file.type));
    if (!request.path.starts_with("/api/")) return reply->send(refusal(404, "there is no such page"));
    if (!is_authorized(request)) {
      HttpResponse response = refusal(401, "a token is needed: open the address that was printed, with its #token=");
      response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return reply->send(std::move(response));
    }
    try {
      serve(request, reply);
    } catch (const BadRequest& error) {
      reply->send(refusal(400, error.message));
    }
  }

  void serve(const HttpRequest& request, const Reply& reply) {
    const std::string_view path = std::string_view(request.path).substr(5);
    if (path == "runs") return reply->send(answer(200, summaries()));
    if (path == "events") return begin_events(reply);
    const size_t slash = path.find('/', 5);
    if (path.starts_with("runs/") && slash != std::string_view::npos) {
      const auto id = static_cast<size_t>(number_of(path.substr(5, slash - 5), "the number of the run"));
      if (id < runs.size()) return serve_run(runs[id], path.substr(slash + 1), request, reply);
    }
    reply->send(refusal(404, "there is no such page"));
  }

  void serve_run(const RunFiles& run, std::string_view what, const HttpRequest& request, const Reply& reply) {
    if (what == "metrics")
      return reply->send(answer(200, run.metrics_json(static_cast<size_t>(parameter(request, "from", 0)))));
    if (what == "groups") return reply->send(answer(200, run.groups_json(filter_of(request))));
    if (what != "samples") return reply->send(refusal(404, "there is no such page"));
    const recipes::SampleGroup* group = run.find(parameter(request, "step"), parameter(request, "group"));
    if (group == nullptr) return reply->send(refusal(404, "these samples are not kept"));
    worker->post([directory = run.samples_directory(), entry = *group, reply] {
      try {
        reply->send(answer(200, samples_json(directory, entry)));
      } catch (const Error& error) {
        reply->send(refusal(422, error.what()));
      } catch (const std::exception& error) {
        reply->send(refusal(500, error.what()));
      }
    });
  }

  void begin_events(const Reply& reply) {
    if (streams.size() >= kMaxStreams) return reply->send(refusal(503, "too many pages are open"));
    reply->begin_stream(answer(200, "", "text/event-stream"));
    reply->write("data: " + states() + "\n\n");
    streams.push_back(reply);
    reply->on_disconnect([this, stream = reply.get()] {
      std::erase_if(streams, [stream](const Reply& other) { return other.get() == stream; });
    });
  }

  const DashboardOptions options;
  std::vector<RunFiles> runs;
  std::vector<Reply> streams;
  int reads = 0;
  HttpServer http;
  std::optional<Worker> worker;  // while it runs; ends first: its tasks hold answers
};

Dashboard::Dashboard(DashboardOptions options) {
  if (!is_loopback(options.host) && options.token.empty())
    throw ConfigError({.what = "a dashboard that other machines can reach needs a token",
                       .where = "its address",
                       .got = options.host,
                       .wanted = "127.0.0.1, ::1 or localhost, or a token"});
  impl_ = std::make_unique<Impl>(std::move(options));
}
Dashboard::~Dashboard() = default;

int Dashboard::port() const {
  return impl_->http.port();
}

std::string Dashboard::address() const {
  const std::string& host = impl_->options.host;
  const bool ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return fmt::format("http://{}{}{}:{}/{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port(),
                     impl_->options.token.empty() ? "" : "#token=...");
}

void Dashboard::run(const std::function<bool()>& interrupted) {
  impl_->worker.emplace();
  impl_->http.post([this] { impl_->watch(); });
  if (interrupted) impl_->http.post([this, &interrupted] { impl_->stop_when(interrupted); });
  impl_->http.run();
}

void Dashboard::stop() {
  impl_->http.stop();
}

void run_dashboard(DashboardOptions options, const recipes::Control& control) {
  Dashboard dashboard(std::move(options));
  *control.out << "dashboard at " << dashboard.address() << std::endl;
  dashboard.run(control.interrupted);
}

void with_dashboard(DashboardOptions options, const recipes::Control& control,
                    const std::function<void(const recipes::Control&)>& work) {
  Dashboard dashboard(std::move(options));
  *control.info << "dashboard " << dashboard.address() << std::endl;
  std::string failure;
  std::thread server;
  recipes::Control inner = control;
  inner.working = [&] {
    control.working();
    server = std::thread([&] {
      try {
        dashboard.run();
      } catch (const std::exception& error) {
        failure = error.what();
      }
    });
  };
  const auto end = [&] {
    if (!server.joinable()) return;
    dashboard.stop();
    server.join();
    if (!failure.empty()) *control.info << "note    the dashboard ended early: " << failure << std::endl;
  };
  try {
    work(inner);
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace lockstep::server
