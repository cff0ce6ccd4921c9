// A request on its way through the engine.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "rollout/local/held_versions.h"
#include "rollout/local/logit_changes.h"
#include "rollout/local/sequence.h"
#include "rollout/local/stop_text.h"
#include "rollout/local/token_sampler.h"
#include "rollout/sampler.h"

namespace lockstep::rollout {

// What a sample needs beside its tokens: what it draws from and where it ends.
struct Answer {
  LogitChanges changes;
  StopText stop_text;
};

// Stays where it is: the scheduler and its own parts point into it.
struct LiveRequest final : PromptGroup {
  // `max_tokens` of each sample, within the context.
  LiveRequest(Ticket ticket, SampleRequest request, HeldVersions::Committed version, int64_t max_tokens,
              const text::Tokenizer* tokenizer, PrefixCache::Node cache_root);
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  Draw draw_of(const Sequence& sequence, int64_t row) const;
  // The token as the sample's next one, and what that makes of the sample.
  Token take(Sequence& sequence, const Drawn& drawn);
  bool plain() const;  // no row of it needs more than a draw and its log-prob

  const Ticket ticket;
  SampleRequest request;
  HeldVersions::Committed version;  // that its next token is of
  const int64_t max_tokens;
  std::vector<Sequence> sequences;
  std::optional<CommonChanges> changes;        // of the logits of all samples
  std::vector<Answer> answers;                 // by sequence
  std::vector<PromptLogprob> prompt_logprobs;  // so far
  bool reported = false;                       // as started
  int64_t adapter_number = 0;                  // rows are ordered by it
};

inline LiveRequest& live(PromptGroup& group) {
  return static_cast<LiveRequest&>(group);
}

}  // namespace lockstep::rollout
