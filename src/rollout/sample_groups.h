// n completions of each of many prompts, by any Sampler.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rollout/sampler.h"

namespace lockstep::rollout {

struct Prompt {
  std::vector<int32_t> tokens = {};  // at least one
  uint32_t row = 0;                  // dataset row, for the counter
  int64_t first_sample = 0;          // sample i draws as sample first_sample + i of its row: a row asked for again in
                                     // the same rollout goes on counting, or its samples would repeat
};

struct GroupParams {
  SamplingParams sampling = {};
  int64_t n = 1;         // samples per prompt; the prompt is computed and stored once
  uint32_t rollout = 0;  // for the counter: (rollout, row, first_sample + index, position)
};

struct Sample {
  int64_t prompt = 0;             // index into the prompts of the call
  int64_t index = 0;              // 0 .. n-1
  std::vector<int32_t> tokens;    // generated, with the stop token if one ended it
  std::vector<float> logprobs;    // of each token
  std::vector<int64_t> versions;  // of the policy that produced each token
  FinishReason finish = FinishReason::length;
};

// Requests that are in flight for somebody who has not collected them yet: the ticket of prompt i at i.
struct GroupTickets {
  std::vector<Ticket> tickets = {};  // one per prompt
  int64_t n = 1;                     // samples of each
};

// Submits n samples of every prompt with the given policy. What Sampler::submit throws, naming the prompt; none is in
// flight then.
GroupTickets submit_groups(Sampler& sampler, std::span<const Prompt> prompts, const GroupParams& params,
                           const lora::PolicyId& policy);

// Sampler::wait where something is in flight. ResourceError: the sampler has lost it.
std::span<const Event> wait_for_events(Sampler& sampler, Deadline deadline);

// What has come of requests in flight, out of the events of a sampler that somebody else drives. `on_sample` is called
// with each sample once it has finished, in whatever order that happens, and may throw.
using OnSample = std::function<void(const Sample&)>;
class GroupCollector {
 public:
  explicit GroupCollector(GroupTickets groups, OnSample on_sample = {});

  bool take(const Event& event);  // false: it is of other tickets
  // DataError: logits that are not finite; what a failed ticket's event holds; what on_sample threw. It is kept until
  // somebody asks, since events of others may come after it.
  void stop_if_failed() const;
  bool failed() const { return error_ != nullptr; }  // no more of its samples finish
  void cancel(Sampler& sampler) const;

  bool done() const { return finished() == total(); }
  int64_t finished() const { return finished_; }
  int64_t total() const { return static_cast<int64_t>(samples_.size()); }
  std::vector<Sample> samples() && { return std::move(samples_); }  // ordered by (prompt, index)

 private:
  void take(int64_t prompt, const Token& token);

  GroupTickets groups_;
  OnSample on_sample_;
  std::unordered_map<Ticket, int64_t> prompts_;
  std::vector<Sample> samples_;
  int64_t finished_ = 0;
  std::exception_ptr error_;
};

// Waits for all of them; results are ordered by (prompt, index). Other tickets may be in flight, and their events are
// put back. `on_progress(finished, total)` is called again and again and may throw Cancelled. What GroupCollector says;
// whatever is thrown has cancelled all of these tickets.
using OnProgress = std::function<void(int64_t finished, int64_t total)>;
std::vector<Sample> collect_groups(Sampler& sampler, const GroupTickets& groups, const OnProgress& on_progress = {},
                                   const OnSample& on_sample = {});

// Both.
std::vector<Sample> sample_groups(Sampler& sampler, std::span<const Prompt> prompts, const GroupParams& params,
                                  const lora::PolicyId& policy, const OnProgress& on_progress = {});

}  // namespace lockstep::rollout
