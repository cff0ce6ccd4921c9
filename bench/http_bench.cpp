// What the HTTP layer costs per streamed chunk. A thread stands for the engine: once a step it writes one chunk to
// every open stream. The clients are another process, so that the times below are the server's alone. For each number
// of streams, paced (a step every so often, as an engine does) and flat out:
//   write_us   processor time of the engine's thread in write()
//   server_us  processor time of the server's thread, system calls included
//   wall_us    wall time until the clients have everything (flat out)
// per chunk, and resident memory before and after.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <future>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "server/http/http.h"

using namespace lockstep;
using namespace lockstep::server;
using Clock = std::chrono::steady_clock;

namespace {

double processor_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  file >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

int connect_to(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  return connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? client : -1;
}

// Asks for one stream per connection and reads until every one has ended. The exit status of the process.
int read_streams(int port, int num_streams) {
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
  const int poller = epoll_create1(0);
  for (int i = 0; i < num_streams; ++i) {
    const int client = connect_to(port);
    if (client < 0 || send(client, request.data(), request.size(), 0) < 0) return 1;
    epoll_event event{.events = EPOLLIN, .data = {.fd = client}};
    epoll_ctl(poller, EPOLL_CTL_ADD, client, &event);
  }
  std::vector<epoll_event> events(1024);
  std::vector<char> bytes(1 << 16);
  for (int num_open = num_streams; num_open > 0;) {
    const int num_ready = epoll_wait(poller, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < num_ready; ++i) {
      if (recv(events[i].data.fd, bytes.data(), bytes.size(), 0) > 0) continue;
      close(events[i].data.fd);
      --num_open;
    }
  }
  return 0;
}

struct Setting {
  int streams = 0, steps = 0, chunk_bytes = 0;
  std::chrono::microseconds step{0};  // 0: flat out
};

// The responders of the streams that clients have asked for.
class Streams {
 public:
  HttpServer::Handler handler() {
    return [this](HttpRequest, std::shared_ptr<Responder> responder) {
      responder->begin_stream({.content_type = "text/event-stream"});
      const std::lock_guard lock(mutex_);
      open_.push_back(std::move(responder));
      changed_.notify_all();
    };
  }
  std::vector<std::shared_ptr<Responder>> wait_for(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return static_cast<int>(open_.size()) == count; });
    return std::move(open_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Responder>> open_;
};

double server_us(HttpServer& server) {
  std::promise<double> promise;
  server.post([&] { promise.set_value(processor_us()); });
  return promise.get_future().get();
}

OrderedJson measure(const Setting& setting) {
  Streams streams;
  HttpServer server({.port = 0, .max_pending_bytes = size_t{1} << 30}, streams.handler());
  const pid_t clients = fork();  // before there are threads
  if (clients == 0) _exit(read_streams(server.port(), setting.streams));
  std::thread thread([&] { server.run(); });
  auto open = streams.wait_for(setting.streams);
  const std::string chunk = "data: " + std::string(static_cast<size_t>(setting.chunk_bytes), 'x') + "\n\n";
  const double memory_before = resident_mib(), server_before = server_us(server);
  double engine_us = 0;
  const auto begin = Clock::now();
  for (int step = 0; step < setting.steps; ++step) {
    const double before = processor_us();
    for (const auto& responder : open) responder->write(chunk);
    engine_us += processor_us() - before;
    if (setting.step.count() > 0) std::this_thread::sleep_until(begin + (step + 1) * setting.step);
  }
  for (const auto& responder : open) responder->end_stream();
  int status = 0;
  waitpid(clients, &status, 0);
  const double wall_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  const double num_chunks = static_cast<double>(setting.streams) * setting.steps;
  const double server_after = server_us(server);
  server.stop();
  thread.join();
  if (status != 0) throw ResourceError({.what = "the clients failed", .attempt = "a higher limit of open files"});
  OrderedJson row = {{"streams", setting.streams},         {"steps", setting.steps},
                     {"step_us", setting.step.count()},    {"chunk_bytes", chunk.size()},
                     {"write_us", engine_us / num_chunks}, {"server_us", (server_after - server_before) / num_chunks}};
  if (setting.step.count() == 0) row["wall_us"] = wall_us / num_chunks;
  row["rss_before_mib"] = memory_before;
  row["rss_after_mib"] = resident_mib();
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> streams = {1, 32, 1000};
  int num_chunks = 200'000, chunk_bytes = 200, step_ms = 20;
  std::string json;
  CLI::App app("Measures the HTTP layer: processor time per streamed chunk.");
  app.add_option("--streams", streams, "at once")->delimiter(',')->capture_default_str();
  app.add_option("--chunks", num_chunks, "of all streams, flat out; paced a tenth")->capture_default_str();
  app.add_option("--chunk-bytes", chunk_bytes)->capture_default_str();
  app.add_option("--step-ms", step_ms, "time of an engine's step when paced")->capture_default_str();
  app.add_option("--json", json, "also write the rows to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    OrderedJson rows = OrderedJson::array();
    for (const int count : streams) {
      const int steps = std::max(1, num_chunks / count);
      const std::chrono::milliseconds step(step_ms);
      const int paced_steps = std::clamp(steps / 10, 10, 200);
      for (const Setting& setting :
           {Setting{count, paced_steps, chunk_bytes, step}, Setting{count, steps, chunk_bytes}}) {
        rows.push_back(measure(setting));
        std::cout << rows.back().dump() << std::endl;
      }
    }
    if (!json.empty()) std::ofstream(json) << rows.dump(2) << "\n";
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
