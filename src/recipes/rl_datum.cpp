#include "recipes/rl_datum.h"

#include <algorithm>

namespace lockstep::recipes {

train::Datum rl_datum(const rollout::Prompt& prompt, const rollout::Sample& sample) {
  std::vector<int32_t> tokens = prompt.tokens;
  tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
  std::vector<float> mask(prompt.tokens.size(), 0.0f);
  mask.resize(tokens.size(), 1.0f);
  train::Datum datum = train::make_datum(tokens, mask);
  // Row t is asked for token t + 1: the first response token belongs to the prompt's last row.
  datum.logprobs.assign(datum.tokens.size(), 0.0f);
  std::copy(sample.logprobs.begin(), sample.logprobs.end(),
            datum.logprobs.begin() + static_cast<std::ptrdiff_t>(prompt.tokens.size()) - 1);
  datum.version = sample.versions.front();
  datum.group = sample.prompt;
  return datum;
}

}  // namespace lockstep::recipes
