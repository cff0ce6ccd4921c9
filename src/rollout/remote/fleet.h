// The servers that generate for a run: which of them answer, which adapters each has loaded, and what brings one back
// that was away. A server gets no prompt before it has every adapter that can be asked for, and whoever checks servers
// (set_on_arrival) has looked at it.
//
// Servers are asked at once, each by a thread of its own; these and all callers take turns (rollout/remote/turns.h), so
// that one may sample while another publishes. A server that hangs holds up nobody: what brings it back goes on beside
// prompts for the others, and one that is slower than the others by straggler_timeout is lost.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lora/policy.h"
#include "net/http_client.h"
#include "rollout/remote/dialect.h"
#include "rollout/remote/turns.h"

namespace lockstep::rollout {

using std::chrono::milliseconds;

struct FleetOptions {
  EngineKind kind = EngineKind::vllm;
  std::vector<net::Address> addresses = {};  // at least one
  std::string api_key = {};
  milliseconds start_timeout = std::chrono::seconds(900);     // until every server has answered for the first time
  milliseconds outage_timeout = std::chrono::seconds(1800);   // without any server that answers
  milliseconds request_timeout = std::chrono::seconds(3600);  // of one answer with all its samples
  milliseconds control_timeout = std::chrono::seconds(600);   // of loading an adapter, and of a check's few tokens
  milliseconds unload_timeout = std::chrono::seconds(60);     // of unloading one; a run that is being stopped: 5 s
  // After each server that ends what all were told, the others get this long, or as long as it took if that is longer.
  milliseconds straggler_timeout = std::chrono::seconds(30);
  milliseconds retry_interval = std::chrono::seconds(2);  // between two looks at a server that is away
  milliseconds first_pause{100};                          // before a request that failed is sent again; it doubles
  int64_t max_samples = 256;                              // in flight at each server; further ones wait here
  int64_t vocab_size = 0;                                 // of the run's model; 0: not known
  OnVersionChange on_version_change = OnVersionChange::cut;
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
  // Called again and again while a server is waited for, for whatever reason, by the thread that waits; may throw.
  std::function<void()> between = [] {};
  // Whether the run is about to end: from then on no server is waited for. Loading then only records the adapter
  // without contacting servers, so that the caller reaches its own stop check.
  std::function<bool()> stopping = [] { return false; };
};

// A version where servers can read it. A name is never used again: vLLM finds keys and values by it.
struct HeldAdapter {
  lora::PolicyId policy;
  std::string name, directory;  // no name: it is the servers' base
  Delivery delivery = Delivery::adapter_files;
  std::shared_ptr<const std::string> tensors = {};  // of adapter_tensors: what Dialect::load_tensors takes
  int64_t requests = 0;                             // that are not answered yet (Fleet::begin_request)
  bool dropped = false;                             // it is unloaded when they are
};

class Fleet {
 public:
  using Clock = std::chrono::steady_clock;
  // The answer to /health that a server which is away was asked for.
  struct Look {
    std::atomic<bool> done = false;  // by the client's thread, after `error`
    std::string error;               // empty: it is healthy
  };
  // What is done at one server beside others, on a thread of its own. Its fields are read and written in turns.
  struct Helper {
    std::thread thread;
    bool arrives = false;  // else it does its part of at_each()
    std::string given_up;  // not empty: why nobody waits for it any longer; it ends at once
    bool done = false;
    std::exception_ptr error;  // it ended with
  };
  struct Server {
    net::Address address;
    ServerFacts facts = {};
    bool up = false;                    // now
    bool checked = false;               // as set_on_arrival() says, with what it has loaded
    bool paused = false;                // by us, and not told to go on yet
    int64_t times_lost = 0;             // what was sent before the last time is not waited for
    int64_t samples = 0;                // in flight
    int forgot = 0;                     // times in a row that it did not know an adapter
    std::set<std::string> loaded = {};  // names that it was told to load and not to unload; it may have lost them
    std::optional<lora::PolicyId> weights = {};  // that took the base's place
    Clock::time_point next_look = {};
    std::shared_ptr<Look> look = {};      // that is under way
    std::shared_ptr<Helper> helper = {};  // as well
    std::string last_error = {};
  };

  explicit Fleet(FleetOptions options);
  ~Fleet();  // ends what is under way
  // Waits until every server has answered. ResourceError after start_timeout; ConfigError: another server than the
  // kind says, a wrong key, servers of different models.
  void connect();

  const FleetOptions& options() const { return options_; }
  const Dialect& dialect() const { return *dialect_; }
  net::HttpClient& client() { return client_; }
  Turns& turns() const { return turns_; }
  const std::vector<Server>& servers() const { return servers_; }
  Server& server(size_t index) { return servers_[index]; }
  size_t num_up() const;

  // Every server that is up loads it, or none holds it; others do when they come back. Waits for one if all are away,
  // unless the run is being stopped.
  // Weights take the place of those before, which no request can name any more. ConfigError: a server refuses it, with
  // the server's words; those that had taken weights get back the ones before.
  void load(const HeldAdapter& adapter);
  bool delivers_weights() const { return delivers_weights_; }  // the servers' base is not the trainer's any more
  int64_t weight_loads() const { return weight_loads_; }       // that have taken the place of others
  // By the server's names; empty: it has none. ConfigError: it refuses.
  std::map<std::string, std::string> checksums(size_t server);
  // By servers that are up; those that are away do so before they are up again, if they still have it. No request can
  // name it any more. Those that have begun keep it: it is unloaded at the first load() or unload() after their end.
  void unload(const lora::PolicyId& policy) noexcept;
  void begin_request(const lora::PolicyId& policy);  // which is held and not dropped
  void end_request(const lora::PolicyId& policy);    // nothing if it is not held any more
  // As if load() had refused it: weights give way to those before them.
  void revert(const lora::PolicyId& policy) noexcept;
  // Also of one that is dropped and has requests; nullptr: not held. Until the next wait.
  const HeldAdapter* find(const lora::PolicyId& policy) const;
  bool holds(const lora::PolicyId& policy);  // find() has it
  const std::vector<HeldAdapter>& held() const { return held_; }

  bool stopping() const { return options_.stopping(); }

  // The job for every server that is up, for all at once; returns when all have ended. A server that throws
  // net::Unreachable or is too slow is lost (`and_checks`: unchecked). Of what else is thrown, the first server's is.
  void at_each(const std::function<void(size_t server)>& job, bool and_checks = false);

  // What an answer that is ok() says. FormatError naming the server: what Dialect::read_answer throws, and tokens that
  // the run's model does not have.
  RemoteAnswer read_answer(size_t server, const net::HttpAnswer& answer, const SampleRequest& request) const;
  // One short request to one server, which is waited for. net::Unreachable; ConfigError: the server refuses it;
  // FormatError.
  RemoteAnswer generate(size_t server, const SampleRequest& request, const std::string& adapter);
  // Loads and unloads at one server what is not held: for checks.
  void load_at(size_t server, const HeldAdapter& adapter);
  void unload_at(size_t server, const std::string& name) noexcept;

  // The server does not answer: it gets nothing before it was looked at again.
  void lost(size_t server, const std::string& why);
  // The same, in the middle of a check: it is checked before it is up again, whatever it has kept.
  void lost_unchecked(size_t server, const std::string& why);
  // The same for one that does not know an adapter that it had loaded, as it says. ResourceError: not the first time in
  // a row.
  void forgot(size_t server, const std::string& adapter, const std::string& says);
  void answered(size_t server) { servers_[server].forgot = 0; }
  // Looks at servers that are away and whose time has come; whether one answers at all is asked without waiting.
  // ResourceError: none has answered for outage_timeout. A server that comes back and is not what it was stays away
  // while others are up; else what is wrong is thrown.
  void look();
  Clock::time_point next_look() const;  // of any server that is away; max() if none is
  // Called for a server that answers for the first time, or that had forgotten an adapter, when it has them all and
  // before it counts as up. What it throws leaves connect() or look().
  void set_on_arrival(std::function<void(size_t server)> on_arrival) { on_arrival_ = std::move(on_arrival); }

  void authorize(net::HttpRequest& request) const;

 private:
  static constexpr milliseconds kPatience{20'000}, kPoll{20}, kTurn{1};  // kPatience: with what takes no work
  net::HttpAnswer ask(size_t server, net::HttpRequest request, milliseconds timeout);
  net::HttpAnswer wait_for(size_t server, net::HttpRequest request, bool patient);
  std::string given_up(size_t server) const;
  void begin(size_t server, bool arrives, std::function<void()> job);
  void await_all(const std::vector<size_t>& servers);
  void sweep() noexcept;
  void unload_everywhere(const std::string& name) noexcept;
  const HeldAdapter* missing(size_t server) const;
  std::vector<std::string> left_over(size_t server) const;
  ServerFacts read_facts(size_t server);
  void check_model(size_t server);
  std::optional<std::string> health(size_t server);
  bool try_arrive(size_t server);
  bool try_return(size_t server);
  void hold(const HeldAdapter& adapter);
  void go_on(size_t server);
  void deliver(size_t server, const HeldAdapter& adapter, net::HttpRequest request);
  void replace_weights(size_t server, const HeldAdapter& weights);
  void take_back(const HeldAdapter& adapter) noexcept;
  void arrive(size_t server);
  void wait_for_one();

  const FleetOptions options_;
  const std::unique_ptr<const Dialect> dialect_;
  mutable Turns turns_;
  net::HttpClient client_;
  std::vector<Server> servers_;
  std::vector<HeldAdapter> held_;
  std::vector<HeldAdapter> replaced_;  // by weights that were loaded last
  bool delivers_weights_ = false;
  int64_t weight_loads_ = 0;
  bool ending_ = false, loading_ = false, at_each_ = false;  // the destructor, load() or at_each() is under way
  Clock::time_point all_away_since_ = Clock::time_point::max();
  std::function<void(size_t)> on_arrival_ = [](size_t) {};
};

}  // namespace lockstep::rollout
