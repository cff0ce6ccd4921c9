#include <fmt/format.h>

#include <ostream>

#include "recipes/chat.h"
#include "recipes/commands.h"
#include "recipes/evaluate.h"
#include "recipes/held_adapter.h"
#include "recipes/run_log.h"
#include "recipes/sampling_defaults.h"
#include "rollout/engine.h"
#include "text/dataset.h"

namespace lockstep::recipes {

namespace {

// The user's values first, then generation_config.json, then the defaults of SamplingParams. do_sample = false means
// greedy.
rollout::SamplingParams resolve_sampling(const GenerateOptions& options, const Base& base, const Control& control) {
  rollout::SamplingParams params;
  const SamplingDefaults defaults =
      read_sampling_defaults(base.generation_config, (base.path / "generation_config.json").string(), control.info);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  params.temperature = defaults.greedy ? 0 : defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.temperature = options.temperature.value_or(params.temperature);
  params.top_p = options.top_p.value_or(params.top_p);
  params.top_k = options.top_k.value_or(params.top_k);
  params.min_p = options.min_p.value_or(params.min_p);
  params.max_tokens = options.max_tokens;
  params.seed = options.seed;
  params.stop = options.stop;
  params.stop_token_ids = base.eos;
  rollout::validate(params);
  return params;
}

// Completion as users expect it: up to the stop string, which is left out.
std::string completion_text(const text::Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                            const rollout::SamplingParams& sampling) {
  std::string text = response_text(tokenizer, tokens, sampling.stop_token_ids);
  for (const std::string& stop : sampling.stop) text = text.substr(0, text.find(stop));
  return text;
}

class Generator {
 public:
  Generator(const GenerateOptions& options, const Control& control)
      : options_(options),
        control_(control),
        stream_(stream_options(options.base)),
        base_(load_base(options.base, stream_, control)),
        tokenizer_(load_tokenizer(base_)),
        chat_(base_.path.string(), options.chat),
        engine_(base_.model, {.tokenizer = &tokenizer_}, stream_),
        log_("", 0, control) {
    params_ = {.sampling = resolve_sampling(options, base_, control), .n = options.n};
    version_ = hold_adapter(engine_, options.adapter_path, base_);
  }

  void one_prompt() {
    const OrderedJson row = {{"prompt", *options_.prompt}};
    rollout::Prompt prompt{.tokens = tokenizer_.encode(chat_.render(row, "prompt", "--prompt"))};
    if (prompt.tokens.empty()) throw DataError({.what = "empty prompt", .where = "--prompt"});
    // A single plain completion appears as it is made; stop strings need the whole text first.
    text::StreamingDecoder decoder(tokenizer_, true);
    const bool stream = options_.n == 1 && options_.stop.empty();
    if (stream) engine_.on_token([&](int32_t token) { *control_.out << decoder.push(token) << std::flush; });
    const auto samples = sample(std::span(&prompt, 1));
    if (stream)
      *control_.out << decoder.finish() << "\n";
    else
      for (const rollout::Sample& sample : samples)
        *control_.out << completion_text(tokenizer_, sample.tokens, params_.sampling) << "\n";
  }

  void file() {
    text::Dataset data = text::Dataset::open(options_.input);
    const std::vector<text::Row> rows = data.rest();
    std::vector<rollout::Prompt> prompts;
    for (const text::Row& row : rows) {
      prompts.push_back({.tokens = tokenizer_.encode(chat_.render(row.json, options_.input_key, data.where(row))),
                         .row = static_cast<uint32_t>(prompts.size())});
      if (prompts.back().tokens.empty()) throw DataError({.what = "empty prompt", .where = data.where(row)});
    }
    for (const rollout::Sample& sample : sample(prompts)) {
      OrderedJson line = rows[static_cast<size_t>(sample.prompt)].json;
      line["index"] = sample.index;
      line["completion"] = completion_text(tokenizer_, sample.tokens, params_.sampling);
      line["tokens"] = sample.tokens;
      line["logprobs"] = OrderedJson::array();
      for (float value : sample.logprobs) line["logprobs"].push_back(static_cast<double>(value));
      line["finish_reason"] = rollout::finish_reason_name(sample.finish);
      *control_.out << line.dump() << "\n";
    }
  }

 private:
  std::vector<rollout::Sample> sample(std::span<const rollout::Prompt> prompts) {
    return engine_.sample(prompts, params_, version_, [&](int64_t done, int64_t total) {
      if (control_.interrupted()) throw Cancelled({.what = "interrupted"});
      if (prompts.size() > 1) log_.progress(fmt::format("generated {}/{}", done, total));
    });
  }

  const GenerateOptions& options_;
  const Control& control_;
  Stream stream_;
  const Base base_;
  const text::Tokenizer tokenizer_;
  const PromptRenderer chat_;
  rollout::Engine engine_;
  RunLog log_;
  rollout::GroupParams params_;
  int64_t version_ = rollout::Engine::kBase;
};

}  // namespace

void run_generate(const GenerateOptions& options, const Control& control) {
  Generator generator(options, control);
  if (options.prompt)
    generator.one_prompt();
  else
    generator.file();
}

}  // namespace lockstep::recipes
