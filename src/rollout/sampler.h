// rollout: who generates. The port, what is asked of it, and in local/ the engine of this process.
//
//   includes    core, kernels, lora, model, parallel, text (stop strings); never train
//   memory      a Sampler owns its keys and values; adapter versions are shared immutable buffers
//   threads     one Sampler is driven by one thread; only what says so may be called from others
//
// This header: the port. Callers (the RL loop, evaluation, servers) name a Sampler, never an implementation.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/error.h"
#include "rollout/request.h"

namespace lockstep::rollout {

// What reported log-probs are log_softmax of: the logits; the logits / temperature; what is left of those after top-k,
// top-p and min-p.
enum class LogprobKind { raw, tempered, processed };

struct Capabilities {
  bool exact_logprobs = false;  // they are the trainer's, bit for bit
  LogprobKind logprobs = LogprobKind::raw;
  bool policys_logprobs = true;  // reported ones are the policy's, at the temperature; false: nobody should read them
  bool follow = false;           // SampleRequest::follow
  bool prompt_logprobs = false;  // SampleRequest::prompt_logprobs
};

using Ticket = int64_t;  // of one request; never used again

// The events of a ticket: Started, PromptDone, then Tokens; Failed instead of whatever would have come.
struct Started {};  // its first rows ran

struct PromptDone {
  int64_t cached_tokens = 0;                 // of the prompt, found in the prefix cache
  std::vector<PromptLogprob> logprobs = {};  // one per token of the prompt, if the request asked
};

// One new token of one sample. The ticket ends when each of its samples has finished.
struct Token {
  int64_t index = 0;  // 0 .. n-1
  int32_t token = 0;
  float logprob = 0;
  int64_t version = 0;  // of the policy that made it; PolicyId::kBase for the base
  std::vector<TopLogprob> top = {};
  std::optional<FinishReason> finish = {};  // the sample ends with this token (error: before it, there is no token)
  int64_t stop_index = -1;                  // which of sampling.stop it ended with; -1: none
};

struct Failed {  // the last event of its ticket: the samples that have not finished have no more tokens
  std::exception_ptr error;
};

struct Event {
  Ticket ticket = 0;
  std::variant<Started, PromptDone, Token, Failed> what;
};
// nullptr unless the event is a token. Throws what the ticket failed with.
const Token* token_of(const Event& event);
// What a token says that ends with FinishReason::error.
Fault not_finite(const Token& token, std::string where);

using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kAtOnce = {};  // has always passed: what is there already, or what one step makes

class Sampler {
 public:
  Sampler() = default;
  virtual ~Sampler() = default;
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  virtual Capabilities capabilities() const = 0;

  // Queues a request beside those in flight. Throws for what is wrong with the request itself: ConfigError (parameters,
  // a policy that is not held), DataError (the prompt), ResourceError (it can never fit).
  virtual Ticket submit(SampleRequest request) = 0;

  // What has happened since the last call, of all tickets, each ticket's in order; valid until the next call of any
  // member. Returns as soon as there is an event. Empty: the deadline has passed, or nothing is in flight. The engine
  // of this process works on the caller's thread meanwhile, one step at least. A failure is an event of each ticket
  // that it ended; the Sampler can be used afterwards.
  std::span<const Event> wait(Deadline deadline);

  // Events that the caller of wait() has no use for, since others submitted their tickets: the next wait() returns them
  // again, before all others.
  void put_back(std::span<const Event> events);

  // Ends the request: no event of it follows, whether put back or new. Nothing if it has ended.
  void cancel(Ticket ticket);

  virtual void release_memory() = 0;  // what can be made again: between rollout and training

 private:
  virtual std::span<const Event> next_events(Deadline deadline) = 0;  // wait() but for what was put back
  virtual void end(Ticket ticket) = 0;                                // cancel()

  std::vector<Event> put_back_, returned_;
};

}  // namespace lockstep::rollout
