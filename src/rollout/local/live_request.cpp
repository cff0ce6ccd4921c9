#include "rollout/local/live_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::rollout {

LiveRequest::LiveRequest(Ticket its_ticket, SampleRequest r, HeldVersions::Committed its_version, int64_t max_tokens,
                         const text::Tokenizer* tokenizer, PrefixCache::Node root)
    : ticket(its_ticket),
      request(std::move(r)),
      version(std::move(its_version)),
      max_tokens(max_tokens),
      sequences(static_cast<size_t>(request.n)),
      answers(sequences.size()) {
  tokens = request.tokens;
  samples = sequences;
  cache_root = root;
  needs_all_rows = request.prompt_logprobs.has_value();
  // Sorted and without duplicates: a client may send very many, and every token is looked up among them.
  std::vector<int32_t>& stops = request.sampling.stop_token_ids;
  std::ranges::sort(stops);
  stops.erase(std::ranges::unique(stops).begin(), stops.end());
  if (request.sampling.changes_logits()) changes.emplace(request.sampling, request.tokens);
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].index = static_cast<int64_t>(i);
    if (changes) answers[i].changes = LogitChanges(*changes);
    if (!request.sampling.stop.empty()) answers[i].stop_text = StopText(*tokenizer, request.sampling.stop);
  }
}

bool LiveRequest::plain() const {
  return !request.sampling.changes_logits() && request.sampling.top_logprobs == 0;
}

Draw LiveRequest::draw_of(const Sequence& sequence, int64_t row) const {
  const SamplingParams& params = request.sampling;
  const auto sample = static_cast<uint32_t>(request.first_sample + sequence.index);
  return {.row = row,
          .how = sample_row(params, {request.rollout, request.row, sample, static_cast<uint32_t>(sequence.length())}),
          .logprob_temperature = params.logprob_temperature,
          .top_logprobs = params.top_logprobs,
          .changes = &answers[static_cast<size_t>(sequence.index)].changes};
}

Token LiveRequest::take(Sequence& sequence, const Drawn& drawn) {
  Token out{.index = sequence.index,
            .token = drawn.token,
            .logprob = drawn.logprob,
            .version = version.version ? version.version->policy.version : lora::PolicyId::kBase,
            .top = drawn.top};
  if (drawn.token < 0 || !std::isfinite(drawn.logprob)) {
    out.finish = FinishReason::error;
    return out;
  }
  const SamplingParams& params = request.sampling;
  Answer& answer = answers[static_cast<size_t>(sequence.index)];
  sequence.tokens.push_back(drawn.token);
  answer.changes.push(drawn.token);
  const auto count = static_cast<int64_t>(sequence.tokens.size());
  out.stop_index = answer.stop_text.push(drawn.token, count >= params.min_tokens);
  const bool ends = std::ranges::binary_search(params.stop_token_ids, drawn.token);
  if (ends || out.stop_index >= 0)
    out.finish = FinishReason::stop;
  else if (count >= max_tokens)
    out.finish = FinishReason::length;
  return out;
}

}  // namespace lockstep::rollout
