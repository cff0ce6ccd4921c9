#include "server/access_log.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

namespace lockstep::server {

namespace {

class LoggedResponder : public Responder {
 public:
  LoggedResponder(const HttpRequest& request, std::shared_ptr<Responder> responder,
                  std::function<void(std::string)> log)
      : what_(request.method + " " + request.path), responder_(std::move(responder)), log_(std::move(log)) {}

  void send(HttpResponse response) override {
    tell(fmt::format("{}", response.status));
    responder_->send(std::move(response));
  }
  void begin_stream(HttpResponse head) override {
    status_ = head.status;
    responder_->begin_stream(std::move(head));
  }
  void write(std::string chunk) override { responder_->write(std::move(chunk)); }
  void end_stream() override {
    tell(fmt::format("{} stream", status_.load()));
    responder_->end_stream();
  }
  void on_disconnect(std::function<void()> callback) override {
    responder_->on_disconnect([this, callback = std::move(callback)] {
      tell("client gone");
      callback();
    });
  }

 private:
  void tell(const std::string& how) {
    if (told_.exchange(true)) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - arrived_;
    log_(fmt::format("{} {} {:.3f} s", what_, how, seconds.count()));
  }

  std::string what_;
  std::shared_ptr<Responder> responder_;
  std::function<void(std::string)> log_;
  std::chrono::steady_clock::time_point arrived_ = std::chrono::steady_clock::now();
  std::atomic<int> status_ = 200;
  std::atomic<bool> told_ = false;
};

}  // namespace

std::shared_ptr<Responder> logged(const HttpRequest& request, std::shared_ptr<Responder> responder,
                                  std::function<void(std::string line)> log) {
  return std::make_shared<LoggedResponder>(request, std::move(responder), std::move(log));
}

}  // namespace lockstep::server
