// --rm-type command, --custom-rm-path: a program of the user's grades samples, in any language.
#pragma once

#include "net/line_pool.h"
#include "rl/reward_inbox.h"

namespace lockstep::rl {

struct CommandRewardOptions {
  net::LinePoolOptions pool;
  bool groups = false;          // all samples of a prompt in one request
  std::string reward_key = {};  // of rewards that are objects
};

// Each program reads one request a line and writes one answer a line, JSON both:
//   {"id": 7, "prompt": ..., "response": ..., "label": ..., ...}  (sample_json)   {"id": 7, "reward": 0.5}
//   with groups: {"id": 7, "samples": [{...}, ...]}                                {"id": 7, "rewards": [0.5, null]}
// A reward is what score_of_json reads; "failure" may say why it is null. Anything else (no JSON, another id, a wrong
// number of rewards) leaves the samples unknown and replaces the program, as does what LinePool replaces it for.
class CommandReward : public Reward {
 public:
  explicit CommandReward(CommandRewardOptions options);  // ResourceError as LinePool

  bool grades_groups() const override { return options_.groups; }
  Ticket submit(std::vector<RewardSample> samples) override;
  std::vector<Graded> poll(Deadline deadline) override { return inbox_.poll(deadline); }
  void cancel(Ticket ticket) override { inbox_.cancel(ticket); }
  int64_t num_started() const { return pool_.num_started(); }

 private:
  struct Asked {  // samples first .. first + count - 1 of a ticket, in the request of that id
    Ticket ticket = 0;
    int64_t id = 0;
    size_t first = 0, count = 0;
  };
  bool take(const Asked& asked, const net::LinePool::Answer& answer);

  const CommandRewardOptions options_;
  int64_t next_id_ = 0;
  RewardInbox inbox_;
  net::LinePool pool_;  // ends first: its thread delivers to the inbox
};

}  // namespace lockstep::rl
