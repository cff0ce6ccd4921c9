// Groups of samples that are drawn and graded one beside the other, and are there in the order in which they finish.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "rl/graded_samples.h"
#include "rl/parts.h"
#include "rl/trajectory.h"

namespace lockstep::rl {

// One prompt, of which `n` samples are drawn with (number, row, first_sample + index, position) as their counter.
struct GroupRequest {
  uint32_t number = 0;  // of the submission: no two of a run have the same
  int64_t prompt = 0;   // for those who ask
  rollout::Prompt asked = {};
  std::shared_ptr<const RewardRow> row = {};  // not null
};

struct FinishedGroup {
  GroupRequest request;
  std::vector<GradedSample> samples;  // in their order; a score may be unknown
};

// For one thread. The reward has no other user meanwhile; events of the sampler's other tickets go to its put_back().
class GroupsInFlight {
 public:
  // `follow`: a sample goes on with a newer version of the policy from its next token on. All outlive this.
  GroupsInFlight(rollout::Sampler& sampler, Reward& reward, rollout::GroupParams params, bool follow,
                 const text::Tokenizer* tokenizer);
  ~GroupsInFlight();  // cancels what is under way
  GroupsInFlight(const GroupsInFlight&) = delete;
  GroupsInFlight& operator=(const GroupsInFlight&) = delete;

  // What Sampler::submit throws.
  void submit(GroupRequest request, const lora::PolicyId& policy);
  // Works until a group has finished or the deadline has passed. DataError: logits that are not finite; what a ticket
  // failed with.
  std::vector<FinishedGroup> wait(std::chrono::steady_clock::time_point deadline);

  // Waits, without sampling, until nothing is being graded any more, so that others may use the reward; or until
  // stopping() says so.
  std::vector<FinishedGroup> finish_grading(const std::function<bool()>& stopping);

  size_t size() const { return groups_.size(); }
  std::vector<GroupRequest> requests() const;  // of the groups under way, in the order of their numbers

 private:
  struct Group {
    GroupRequest request;
    rollout::Ticket ticket = 0;
    std::vector<GradedSample> samples;
    size_t drawn = 0, graded = 0;
  };
  using Groups = std::map<uint32_t, Group>;

  void take(const rollout::Event& event);
  void drawn(Group& group, int64_t index);
  void judge(Group& group, std::vector<size_t> positions);
  void take(Reward::Graded graded, std::vector<FinishedGroup>& finished);
  RewardSample judged(const Group& group, size_t index) const;

  rollout::Sampler& sampler_;
  Reward& reward_;
  const rollout::GroupParams params_;
  const bool follow_;
  const text::Tokenizer* const tokenizer_;
  Groups groups_;                                // by number
  std::map<rollout::Ticket, uint32_t> drawing_;  // numbers of groups that are not drawn yet
  struct Judging {
    uint32_t group = 0;
    std::vector<size_t> positions;
  };
  std::map<Reward::Ticket, Judging> judging_;
};

// The samples of a group as training reads them, numbered as group `group` of its rollout.
std::vector<Trajectory> trajectories_of(const FinishedGroup& finished, int64_t group, const ResponseText& text);

}  // namespace lockstep::rl
