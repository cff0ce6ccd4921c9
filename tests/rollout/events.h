// Events of a Sampler, sorted for tests.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "rollout/sampler.h"

namespace lockstep::rollout::testing_events {

struct Output : Token {
  Ticket ticket = 0;
};

// The tokens of one step. Throws what a ticket failed with.
inline std::vector<Output> step_tokens(Sampler& sampler) {
  std::vector<Output> outputs;
  for (const Event& event : sampler.wait(kAtOnce))
    if (const Token* token = token_of(event)) outputs.push_back({*token, event.ticket});
  return outputs;
}

struct Answered {
  std::vector<Token> tokens;
  PromptDone prompt;
};
using Key = std::pair<Ticket, int64_t>;  // and the sample

// Waits until nothing is in flight.
inline std::map<Key, Answered> drain(Sampler& sampler) {
  std::map<Key, Answered> answers;
  std::map<Ticket, PromptDone> prompts;
  for (auto events = sampler.wait(Deadline::max()); !events.empty(); events = sampler.wait(Deadline::max()))
    for (const Event& event : events) {
      if (const auto* prompt = std::get_if<PromptDone>(&event.what)) prompts[event.ticket] = *prompt;
      if (const Token* token = token_of(event)) {
        Answered& answer = answers[{event.ticket, token->index}];
        answer.tokens.push_back(*token);
        answer.prompt = prompts[event.ticket];
      }
    }
  return answers;
}

}  // namespace lockstep::rollout::testing_events
