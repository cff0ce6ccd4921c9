#include "server/access_log.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "server/protocol/json_text.h"

namespace lockstep::server {

namespace {

// A path is decoded: it may hold the end of a line.
std::string one_line(const std::string& path) {
  const std::string quoted = json_string(path);
  return quoted.substr(1, quoted.size() - 2);
}

// Written once, by the first of two: the answer that is complete, or the client that goes away.
class Line {
 public:
  Line(const HttpRequest& request, std::function<void(std::string)> log)
      : what_(request.method + " " + one_line(request.path)), log_(std::move(log)) {}

  void write(const std::string& how) {
    if (written_.exchange(true)) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - arrived_;
    log_(fmt::format("{} {} {:.3f} s", what_, how, seconds.count()));
  }

 private:
  std::string what_;
  std::function<void(std::string)> log_;
  std::chrono::steady_clock::time_point arrived_ = std::chrono::steady_clock::now();
  std::atomic<bool> written_ = false;
};

class LoggedResponder : public Responder {
 public:
  LoggedResponder(std::shared_ptr<Line> line, std::shared_ptr<Responder> responder)
      : line_(std::move(line)), responder_(std::move(responder)) {}

  void send(HttpResponse response) override {
    line_->write(fmt::format("{}", response.status));
    responder_->send(std::move(response));
  }
  void begin_stream(HttpResponse head) override {
    status_ = head.status;
    responder_->begin_stream(std::move(head));
  }
  void write(std::string chunk) override { responder_->write(std::move(chunk)); }
  void end_stream() override {
    line_->write(fmt::format("{} stream", status_.load()));
    responder_->end_stream();
  }
  void on_disconnect(std::function<void()> callback) override {
    responder_->on_disconnect([line = line_, callback = std::move(callback)] {
      line->write("client gone");
      callback();
    });
  }

 private:
  std::shared_ptr<Line> line_;
  std::shared_ptr<Responder> responder_;
  std::atomic<int> status_ = 200;
};

}  // namespace

std::shared_ptr<Responder> logged(const HttpRequest& request, std::shared_ptr<Responder> responder,
                                  std::function<void(std::string line)> log) {
  return std::make_shared<LoggedResponder>(std::make_shared<Line>(request, std::move(log)), std::move(responder));
}

}  // namespace lockstep::server
