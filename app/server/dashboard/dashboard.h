// `lockstep dashboard`: a page that shows runs out of their files (docs/dashboard.md).
//
//   GET /, /NAME             the page and its files, which hold no data of a run
//   GET /api/runs            {"runs": [...]}
//   GET /api/runs/N/metrics  ?from=LINE
//   GET /api/runs/N/groups   ?first=&count=&step=&show=all|mixed|equal|truncated|unknown&order=newest|oldest
//   GET /api/runs/N/samples  ?step=&group=: {"samples": [...]}
//   GET /api/events          server-sent events: {"runs": [...]} whenever a file has grown
//
//   threads   one thread serves; a worker reads pieces of samples
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "recipes/control.h"
#include "server/http/http.h"

namespace lockstep::server {

struct DashboardOptions {
  std::vector<std::string> runs;  // --save directories
  std::string host = "127.0.0.1";
  int port = 7860;            // 0: any free one
  std::string token = {};     // that requests for data must carry: Authorization: Bearer; empty: none is asked for
  bool may_be_empty = false;  // a run that begins has no files yet
};

class Dashboard {
 public:
  // Binds; threads begin with run(). ConfigError: the address cannot be used, another host than the loopback without a
  // token, a directory that is no run's.
  explicit Dashboard(DashboardOptions options);
  ~Dashboard();

  int port() const;
  std::string address() const;  // "http://127.0.0.1:7860/", with #token= if one is asked for
  // Serves on this thread until stop(), or until `interrupted` says so, which is asked 20 times a second.
  void run(const std::function<bool()>& interrupted = {});
  void stop();  // any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Serves until `control.interrupted()`. Prints one line with the address to `control.out`.
void run_dashboard(DashboardOptions options, const recipes::Control& control);

// Runs `work` with a control of its own; from its Control::working() on a thread serves. The address goes to
// `control.info` first. What `work` throws; that the dashboard fails meanwhile is a line of `control.info` at the end.
void with_dashboard(DashboardOptions options, const recipes::Control& control,
                    const std::function<void(const recipes::Control&)>& work);

}  // namespace lockstep::server
