// A request that the engine is working on.
#pragma once

#include <memory>
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

struct EngineBase;

// The state of one sample beside its tokens: what its logits are changed by, and where it ends.
struct Answer {
  LogitChanges changes;
  StopText stop_text;
};

// Must not move: the scheduler and the object's own parts hold pointers into it.
struct LiveRequest final : PromptGroup {
  // `max_tokens` per sample; fits the context.
  LiveRequest(Ticket ticket, SampleRequest request, HeldVersions::Committed version, int64_t max_tokens,
              const text::Tokenizer* tokenizer, PrefixCache::Node cache_root);
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  Draw draw_of(const Sequence& sequence, int64_t row) const;
  // Appends the token to the sample and returns the event, with the reason if the sample ends.
  Token take(Sequence& sequence, const Drawn& drawn);
  bool plain() const;  // whether each row needs only a draw and its log-prob

  const Ticket ticket;
  SampleRequest request;
  HeldVersions::Committed version;        // the version that computes the next token
  std::shared_ptr<EngineBase> base = {};  // that it lies on
  const int64_t max_tokens;
  std::vector<Sequence> sequences;
  std::optional<CommonChanges> changes;        // changes of the logits that all samples share
  std::vector<Answer> answers;                 // by sequence
  std::vector<PromptLogprob> prompt_logprobs;  // so far
  bool reported = false;                       // whether Started was reported
  int64_t adapter_number = 0;                  // rows are sorted by it
};

inline LiveRequest& live(PromptGroup& group) {
  return static_cast<LiveRequest&>(group);
}

}  // namespace lockstep::rollout
