// A Sampler of many ranks: each generates its share of the requests with a Sampler of its own, and all get all events.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "parallel/group.h"
#include "rollout/sampler.h"

namespace lockstep::rollout {

// Ticket t belongs to rank t % size. A sample is a function of its request, so nothing depends on who makes it, nor on
// how many ranks there are. submit, wait, put_back and cancel are called on all ranks alike and in the same order; wait
// is collective, and its events are the same everywhere: those of each rank since the last wait, rank by rank. Ranks
// meet seldom, so unless its deadline has passed already it may outlast it, by 1.6 s at most. It throws Cancelled on
// all ranks once one was asked to stop. What a rank's own Sampler throws, all throw (parallel::agree), also from
// submit, whose error comes with the next wait. Prompt log-probs and most likely tokens beside the drawn one do not
// travel (capabilities() says so; ConfigError).
class DealtSampler final : public Sampler {
 public:
  // `interrupted`: whether this rank or another was asked to stop; asked several times a second. All outlive it.
  DealtSampler(Sampler& own, parallel::Group& group, std::function<bool()> interrupted);

  Capabilities capabilities() const override;
  Ticket submit(SampleRequest request) override;
  void release_memory() override { own_.release_memory(); }

 private:
  std::span<const Event> next_events(Deadline deadline) override;
  void end(Ticket ticket) override;
  void generate(Deadline deadline);
  void exchange();

  Sampler& own_;
  parallel::Group& group_;
  const std::function<bool()> interrupted_;
  std::chrono::milliseconds slice_;  // until the next meeting, the same on all ranks
  // How many samples of a ticket have not finished.
  struct Open {
    Ticket ticket = 0;
    int64_t left = 0;
  };
  // Takes note of an event of the ticket; true: it was the last.
  static bool ends(Open& open, const Event& event);

  Ticket next_ = 0;
  std::map<Ticket, Open> own_tickets_;  // in flight, by the tickets of own_
  std::map<Ticket, Open> open_;         // of all ranks
  std::exception_ptr failed_;           // in submit
  std::vector<Event> made_, all_;
};

}  // namespace lockstep::rollout
