#include "server/routes/answer_size.h"

#include <fmt/format.h>

#include <string>

#include "server/protocol/api_error.h"

namespace lockstep::server {

namespace {

// JSON of one of them, more or less.
constexpr double kEntryBytes = 64;         // a log-prob
constexpr double kPromptEntryBytes = 112;  // of a prompt: an echo has it twice, in two forms
constexpr double kIdBytes = 7;             // a token's id, with its comma

double number(int64_t count) {
  return static_cast<double>(count);
}

int64_t num_tokens(const std::vector<PromptInput>& prompts) {
  int64_t tokens = 0;
  for (const PromptInput& prompt : prompts) tokens += static_cast<int64_t>(prompt.tokens.size());
  return tokens;
}

// Log-probs that the choices of all prompts repeat.
double repeated_entries(const std::vector<PromptInput>& prompts, const CommonFields& common) {
  if (!common.sampling.prompt_logprobs) return 0;
  const auto candidates = static_cast<int64_t>(common.sampling.prompt_candidates.size());
  return number(num_tokens(prompts)) * number(*common.sampling.prompt_logprobs + 1 + candidates) *
         number(common.sampling.n);
}

// Bytes of prompts that the choices repeat.
double repeated_bytes(const std::vector<PromptInput>& prompts, const CommonFields& common) {
  const AnswerOptions& options = common.options;
  const bool text = options.echo || (options.return_prompt_text && options.stream);
  if (!text && !options.return_token_ids) return 0;
  double bytes = kIdBytes * number(num_tokens(prompts));
  if (text)
    for (const PromptInput& prompt : prompts) bytes += static_cast<double>(prompt.text.size());
  return bytes * number(common.sampling.n);
}

void check_entries(double entries, int64_t most, std::string_view name, std::string_view of, std::string_view fewer) {
  if (entries > number(most))
    throw bad_request(fmt::format("`{}`: the answer would hold {:.0f} log-probabilities of {}, at most {} are allowed: "
                                  "ask for fewer of them, for fewer samples (n){}.",
                                  name, entries, of, most, fewer),
                      std::string(name));
}

// SGLang's events repeat all of the answer so far.
void check_cumulative(const CommonFields& common, int64_t samples, int64_t max_tokens) {
  constexpr int64_t kMaxBytes = int64_t{32} << 20;
  constexpr double kTokenBytes = kIdBytes + 5;  // with its text
  const AnswerOptions& options = common.options;
  if (!options.stream || !options.cumulative) return;
  const double of_a_token = kTokenBytes + (options.logprobs ? kEntryBytes * number(*options.logprobs + 1) : 0);
  const double bytes = number(samples) * number(max_tokens) * of_a_token;
  if (bytes > number(kMaxBytes))
    throw bad_request(fmt::format("`stream`: every event repeats the answer, which may become {:.0f} bytes; at most {} "
                                  "are allowed: ask for fewer tokens, samples or log-probabilities, or do not stream.",
                                  bytes, kMaxBytes),
                      "stream");
}

}  // namespace

void check_repeated_prompts(const std::vector<PromptInput>& prompts, const CommonFields& common) {
  constexpr int64_t kMaxEntries = int64_t{1} << 23, kMaxEntriesOfStream = int64_t{1} << 18;
  constexpr int64_t kMaxBytes = int64_t{1} << 30, kMaxBytesOfStream = int64_t{64} << 20;
  const AnswerOptions& options = common.options;
  check_entries(repeated_entries(prompts, common), options.stream ? kMaxEntriesOfStream : kMaxEntries,
                options.prompt_logprobs_name, "prompts", options.stream ? ", or do not stream" : "");
  const int64_t most = options.stream ? kMaxBytesOfStream : kMaxBytes;
  const double bytes = repeated_bytes(prompts, common);
  if (bytes <= number(most)) return;
  const char* name = options.echo ? "echo" : options.return_token_ids ? "return_token_ids" : "return_prompt_text";
  throw bad_request(fmt::format("`{}`: {} samples would repeat {:.0f} bytes of prompt, at most {} are allowed in all.",
                                name, common.sampling.n, bytes, most),
                    name);
}

void check_tokens(const CommonFields& common, int64_t samples, int64_t max_tokens) {
  constexpr int64_t kMaxEntries = int64_t{1} << 24;
  if (common.options.logprobs)
    check_entries(number(samples) * number(max_tokens) * number(*common.options.logprobs + 1), kMaxEntries,
                  common.options.logprobs_name, "tokens", " or for fewer tokens (max_tokens)");
  check_cumulative(common, samples, max_tokens);
}

size_t known_bytes(const std::vector<PromptInput>& prompts, const CommonFields& common) {
  constexpr double kChoiceBytes = 1024, kStopBytes = 9;  // of a choice; of each byte of its stop strings
  constexpr double kTokenBytes = 16;                     // of a prompt, here and in the engine
  double of_a_choice = kChoiceBytes;
  for (const std::string& stop : common.sampling.params.stop)
    of_a_choice += kStopBytes * static_cast<double>(stop.size());
  double bytes = kTokenBytes * number(num_tokens(prompts)) +
                 of_a_choice * number(common.sampling.n) * static_cast<double>(prompts.size());
  // What a stream repeats is sent, not held.
  if (!common.options.stream)
    bytes += repeated_bytes(prompts, common) + kPromptEntryBytes * repeated_entries(prompts, common);
  return static_cast<size_t>(bytes);
}

}  // namespace lockstep::server
