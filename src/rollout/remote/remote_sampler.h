// The Sampler that generates on servers: it sends prompts as token ids to the least loaded server and reports whole
// answers, not single tokens.
//
// A request that got no answer (a server that is away, 5xx, 429, too slow) is sent again, to another server if one is
// up, after a pause that grows; nothing of it was reported before, so nothing is lost or reported twice. After
// ten attempts without an answer it fails. While no server answers, requests wait (FleetOptions::outage_timeout). Where
// weights are delivered instead of adapters, a request that was not sent yet is sent of the version that is there then,
// and one that is in flight goes the way of FleetOptions::on_version_change. An adapter stays at the servers until the
// requests that named it are answered, however often others were published meanwhile.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "rollout/remote/fleet.h"
#include "rollout/sampler.h"

namespace lockstep::rollout {

struct RemoteStats {
  int64_t requests = 0;   // answered
  int64_t retries = 0;    // sent again
  int64_t straddled = 0;  // in flight while weights took the place of those that they began with
};

class RemoteSampler final : public Sampler {
 public:
  // The fleet is connected and outlives it. `exact`: its servers' log-probs are the trainer's, bit for bit.
  RemoteSampler(Fleet& fleet, Capabilities capabilities);
  ~RemoteSampler() override;

  Capabilities capabilities() const override { return capabilities_; }
  // What Sampler says. ConfigError also for what servers are not asked for here: log-probs of prompts, the most likely
  // tokens beside each one, following a policy, a temperature between 0 and 0.01 (but of a Lockstep server).
  Ticket submit(SampleRequest request) override;
  void release_memory() override {}  // the servers' memory is theirs

  RemoteStats stats() const;

 private:
  using Clock = Fleet::Clock;
  struct Open {
    SampleRequest request;
    int attempts = 0;
    Clock::time_point not_before = {};
    std::optional<size_t> server = {};  // it is in flight there
    std::optional<size_t> failed = {};  // it got no answer there: another is asked if there is one
    net::HttpClient::Id call = 0;
    int64_t times_lost = 0;                    // of the server, when it was sent, and
    int64_t weight_loads = 0;                  // of the fleet
    std::optional<lora::PolicyId> keeps = {};  // the adapter that stays for its sake
  };
  struct Arrival {
    Ticket ticket;
    net::HttpClient::Id call;
    net::HttpClient::Outcome outcome;
  };

  std::span<const Event> next_events(Deadline deadline) override;
  void end(Ticket ticket) override;

  void dispatch();
  void send(Ticket ticket, Open& open, size_t server);
  std::optional<size_t> least_loaded(const Open& open) const;
  void take(Arrival arrival);
  void take_answer(Ticket ticket, Open& open, size_t server, const net::HttpAnswer& answer);
  bool comes_to_nothing(Open& open, const RemoteAnswer& answer);
  void again(Open& open);
  void fail(Ticket ticket, std::exception_ptr error);
  void recall();
  void close(Ticket ticket);
  void wait_for_arrival(Clock::time_point until);
  Clock::time_point next_try() const;

  Fleet& fleet_;
  const Capabilities capabilities_;
  RemoteStats stats_;
  std::map<Ticket, Open> open_;
  Ticket next_ = 1;
  std::vector<Event> events_, given_;  // not told yet; told last

  // What the client's thread says.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable came;
    std::deque<Arrival> arrivals;
  };
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

}  // namespace lockstep::rollout
