// Lockstep inside another program: two optimizer steps on a base model, published and sampled without a file in
// between.
//
//   embed MODEL_DIRECTORY     such as models/arith of the repository
//
// The model can add by writing every column down, but guesses as a rule (models/arith/README.md). Two steps of
// supervised training on worked answers make it work the sum out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "load/adapter.h"
#include "load/base.h"
#include "rollout/local/engine.h"
#include "rollout/sample_groups.h"
#include "text/tokenizer.h"
#include "train/trainer.h"
#include "versions/memory_sink.h"
#include "versions/store.h"

using namespace lockstep;

namespace {

constexpr const char* kPrompt = "57+68=";

struct Worked {
  const char *prompt, *answer;
};
constexpr Worked kWorked[] = {
    {"12+34=", "ones 6 tens 4 #### 46"},    {"27+35=", "ones 12 tens 6 #### 62"},
    {"48+61=", "ones 9 tens 10 #### 109"},  {"93+18=", "ones 11 tens 11 #### 111"},
    {"75+14=", "ones 9 tens 8 #### 89"},    {"36+47=", "ones 13 tens 8 #### 83"},
    {"82+29=", "ones 11 tens 11 #### 111"}, {"64+53=", "ones 7 tens 11 #### 117"},
};

// A datum for each pair: the loss is over the answer and the end token.
std::vector<train::Datum> make_datums(const text::Tokenizer& tokenizer, int32_t end_token) {
  std::vector<train::Datum> datums;
  for (const Worked& row : kWorked) {
    std::vector<int32_t> tokens = tokenizer.encode(row.prompt);
    std::vector<float> mask(tokens.size(), 0);
    for (const int32_t token : tokenizer.encode(row.answer)) tokens.push_back(token);
    tokens.push_back(end_token);
    mask.resize(tokens.size(), 1);
    datums.push_back(train::make_datum(tokens, mask));
  }
  return datums;
}

rollout::Sample sample(rollout::Sampler& sampler, const load::Base& base, const text::Tokenizer& tokenizer,
                       const lora::PolicyId& policy) {
  const rollout::GroupParams params{.sampling = {.temperature = 0, .max_tokens = 24, .stop_token_ids = base.eos}};
  const std::vector<rollout::Prompt> prompts = {{.tokens = tokenizer.encode(kPrompt)}};
  const rollout::Sample sample = rollout::sample_groups(sampler, prompts, params, policy).front();
  std::printf("%-15s %s%s\n", policy.is_base() ? "base" : lora::policy_text(policy).c_str(), kPrompt,
              tokenizer.decode(sample.tokens, true).c_str());
  return sample;
}

// The largest difference between the log-probabilities that the engine reported and those that the trainer computes.
double largest_difference(train::Trainer& trainer, const text::Tokenizer& tokenizer, const rollout::Sample& sample,
                          const lora::AdapterVersion& adapter) {
  std::vector<int32_t> tokens = tokenizer.encode(kPrompt);
  const size_t prompt_tokens = tokens.size();
  tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
  std::vector<float> mask(tokens.size(), 1);
  mask[0] = 0;  // nothing comes before it
  const train::Datum datum = train::make_datum(tokens, mask);
  const std::vector<float> logprobs = trainer.logprobs({&datum, 1}, &adapter).front();
  double largest = 0;
  for (size_t i = 0; i < sample.tokens.size(); ++i)
    largest = std::max(largest, std::abs(double{logprobs[prompt_tokens - 1 + i]} - sample.logprobs[i]));
  return largest;
}

void run(const std::string& directory) {
  Stream stream;
  load::Base base = load::read_base_config(directory);
  load::load_weights(base, stream, {});
  const text::Tokenizer tokenizer = text::Tokenizer::load(base.path.string());

  lora::LoraConfig config;
  config.rank = 8, config.alpha = 16, config.target_modules = {"all-linear"};
  const lora::AdapterVersion fresh = load::fresh_adapter(config, base, 1234);
  train::Trainer trainer(base.model, fresh.layout, fresh.weights, {}, stream);

  // The engine generates with what the store publishes to it.
  rollout::Engine engine(base.model, {.kv_bytes = int64_t{64} << 20, .tokenizer = &tokenizer}, stream);
  versions::MemorySink sink(engine.versions());
  versions::Store store;
  store.add(sink);
  sample(engine, base, tokenizer, {});

  const std::vector<train::Datum> datums = make_datums(tokenizer, base.eos.front());
  for (int step = 1; step <= 2; ++step) {
    trainer.begin_step({.num_samples = static_cast<int64_t>(datums.size())});
    const train::LossReport loss = trainer.forward_backward(datums, train::SftLoss{});
    const train::StepReport report = trainer.optim_step(2e-2);
    std::printf("step %d          loss %.6f  grad_norm %.6f\n", step, loss.loss, report.grad_norm);
  }

  const versions::PublishReport published = store.publish(lora::kActor, trainer.adapter());
  std::printf("published       %s, %lld bytes copied\n", lora::policy_text(published.policy).c_str(),
              static_cast<long long>(published.bytes_copied));
  const rollout::Sample answer = sample(engine, base, tokenizer, published.policy);
  const double difference = largest_difference(trainer, tokenizer, answer, trainer.adapter());
  std::printf("log-probs       the trainer's and the engine's differ by at most %g\n", difference);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: embed MODEL_DIRECTORY\n");
    return 2;
  }
  try {
    run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
  }
}
