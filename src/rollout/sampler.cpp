#include "rollout/sampler.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::rollout {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::error: return "error";
  }
  return "";
}

Fault not_finite(const Token& token, std::string where) {
  const bool is_drawn = token.token >= 0;
  return {.what = is_drawn ? "log-probability is not finite" : "logits are not finite",
          .where = std::move(where),
          .got = is_drawn ? fmt::format("{} for token {}", token.logprob, token.token) : "",
          .attempt = "check the adapter and the model: a diverged training run leaves such weights"};
}

const Token* token_of(const Event& event) {
  if (const auto* failed = std::get_if<Failed>(&event.what)) std::rethrow_exception(failed->error);
  return std::get_if<Token>(&event.what);
}

std::span<const Event> Sampler::wait(Deadline deadline) {
  if (put_back_.empty()) return next_events(deadline);
  returned_ = std::exchange(put_back_, {});
  return returned_;
}

void Sampler::put_back(std::span<const Event> events) {
  put_back_.insert(put_back_.end(), events.begin(), events.end());
}

void Sampler::cancel(Ticket ticket) {
  std::erase_if(put_back_, [&](const Event& event) { return event.ticket == ticket; });
  end(ticket);
}

}  // namespace lockstep::rollout
