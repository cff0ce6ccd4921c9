// The servers that generate for a run: which of them answer, which adapters each has loaded, and what brings one back
// that was away. A server gets no prompt before it has every adapter that can be asked for, and whoever checks servers
// (set_on_arrival) has looked at it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lora/policy.h"
#include "net/http_client.h"
#include "rollout/remote/dialect.h"

namespace lockstep::rollout {

using std::chrono::milliseconds;

struct FleetOptions {
  EngineKind kind = EngineKind::vllm;
  std::vector<net::Address> addresses = {};  // at least one
  std::string api_key = {};
  milliseconds start_timeout = std::chrono::seconds(900);     // until every server has answered for the first time
  milliseconds outage_timeout = std::chrono::seconds(1800);   // without any server that answers
  milliseconds request_timeout = std::chrono::seconds(3600);  // of one answer with all its samples
  milliseconds control_timeout = std::chrono::seconds(600);   // of loading an adapter
  milliseconds retry_interval = std::chrono::seconds(2);      // between two looks at a server that is away
  int64_t max_samples = 256;                                  // in flight at each server; further ones wait here
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
  // Called again and again while nothing but waiting can be done; may throw.
  std::function<void()> between = [] {};
};

// An adapter in a directory that servers can read. A name is never used again: vLLM finds keys and values by it.
struct HeldAdapter {
  lora::PolicyId policy;
  std::string name, directory;
};

class Fleet {
 public:
  using Clock = std::chrono::steady_clock;
  struct Server {
    net::Address address;
    ServerFacts facts = {};
    bool up = false, seen = false;      // now; ever
    int64_t samples = 0;                // in flight
    std::set<std::string> loaded = {};  // of held(), since it came up
    Clock::time_point next_look = {};
    std::string last_error = {};
  };

  explicit Fleet(FleetOptions options);

  // Waits until every server has answered. ResourceError after start_timeout; ConfigError: another server than the
  // kind says, a wrong key, servers of different models.
  void connect();

  const FleetOptions& options() const { return options_; }
  const Dialect& dialect() const { return *dialect_; }
  net::HttpClient& client() { return client_; }
  const std::vector<Server>& servers() const { return servers_; }
  Server& server(size_t index) { return servers_[index]; }
  size_t num_up() const;

  // Every server that is up loads it, or none holds it; others do when they come back. Waits for one if all are away.
  // ConfigError: a server refuses it, with the server's words.
  void load(const HeldAdapter& adapter);
  void unload(const lora::PolicyId& policy) noexcept;
  const HeldAdapter* find(const lora::PolicyId& policy) const;  // nullptr: not held
  const std::vector<HeldAdapter>& held() const { return held_; }

  // One request to one server, which is waited for. net::Unreachable; ConfigError: the server refuses it; FormatError.
  RemoteAnswer generate(size_t server, const SampleRequest& request, const std::string& adapter);
  // Loads and unloads at one server what is not held: for checks.
  void load_at(size_t server, const HeldAdapter& adapter);
  void unload_at(size_t server, const std::string& name) noexcept;

  // The server does not answer, or has forgotten its adapters: it gets nothing before it was looked at again.
  void lost(size_t server, const std::string& why);
  // Looks at servers that are away and whose time has come. ResourceError: none has answered for outage_timeout.
  void look();
  Clock::time_point next_look() const;  // of any server that is away; max() if none is
  // Called for a server that answers for the first time, or that had forgotten an adapter, when it has them all and
  // before it counts as up. What it throws leaves connect() or look().
  void set_on_arrival(std::function<void(size_t server)> on_arrival) { on_arrival_ = std::move(on_arrival); }

  void authorize(net::HttpRequest& request) const;

 private:
  net::HttpAnswer ask(size_t server, net::HttpRequest request, milliseconds timeout);
  ServerFacts read_facts(size_t server);
  void check_model(size_t server);
  bool try_arrive(size_t server);
  void arrive(size_t server);
  void wait_for_one();

  const FleetOptions options_;
  const std::unique_ptr<const Dialect> dialect_;
  net::HttpClient client_;
  std::vector<Server> servers_;
  std::vector<HeldAdapter> held_;
  Clock::time_point all_away_since_ = Clock::time_point::max();
  std::function<void(size_t)> on_arrival_ = [](size_t) {};
};

}  // namespace lockstep::rollout
