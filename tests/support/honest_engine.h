// What a fake server generates if it is honest: samples of our own engine with the adapter in the directory that it is
// asked for, and their log-probs after the temperature.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/peft_directory.h"
#include "load/adapter.h"
#include "rollout/local/engine.h"
#include "rollout/sample_groups.h"
#include "support/fake_engine.h"

namespace lockstep::testing {

// Of one server; its functions run on the server's thread. A directory is read once, when it is asked for first: an
// adapter, or a model whose weights took the place of the base.
class HonestEngine {
 public:
  explicit HonestEngine(const std::string& model) { read_model("", model); }

  // To be handed to a FakeEngine.
  static FakeEngine::Generate of(const std::string& model) {
    return [engine = std::make_shared<HonestEngine>(model)](
               const std::string& directory, const std::vector<int32_t>& prompt, int64_t sample,
               const OrderedJson& sampling) { return engine->generate(directory, prompt, sample, sampling); };
  }

  FakeEngine::Drawn generate(const std::string& directory, const std::vector<int32_t>& prompt, int64_t sample,
                             const OrderedJson& sampling) {
    const std::string mode = sampling.value("fake_logprobs_mode", "processed");
    rollout::SamplingParams params{.temperature = sampling.value("temperature", 1.0F),
                                   .max_tokens = sampling.value("max_tokens", sampling.value("max_new_tokens", 16)),
                                   .seed = 1000 + ++drawn_};
    params.logprob_temperature = mode == "raw" ? 1 : params.temperature;
    if (sampling.contains("stop_token_ids"))
      params.stop_token_ids = sampling["stop_token_ids"].get<std::vector<int32_t>>();
    const std::vector<rollout::Prompt> prompts = {{.tokens = prompt, .first_sample = sample}};
    const auto model = models_.find(directory);
    if (model == models_.end() && fs::exists(fs::Path(directory) / "config.json")) read_model(directory, directory);
    const bool is_model = models_.contains(directory);
    const rollout::Sample made = sample_groups(*models_.at(is_model ? directory : "")->engine, prompts,
                                               {.sampling = params}, is_model ? lora::PolicyId() : policy(directory))
                                     .front();
    return {.tokens = made.tokens, .logprobs = made.logprobs, .stopped = made.finish == rollout::FinishReason::stop};
  }

 private:
  struct Model {
    load::Base base;
    std::unique_ptr<rollout::Engine> engine;
  };
  void read_model(const std::string& key, const std::string& directory) {
    auto model = std::make_unique<Model>(Model{.base = load::read_base_config(directory), .engine = {}});
    load::load_weights(model->base, stream_, [](double) {});
    model->engine = std::make_unique<rollout::Engine>(model->base.model,
                                                      rollout::EngineOptions{.kv_bytes = int64_t{16} << 20}, stream_);
    models_[key] = std::move(model);
  }

  lora::PolicyId policy(const std::string& directory) {
    if (directory.empty()) return {};
    const auto [found, is_new] = numbers_.try_emplace(directory, static_cast<int64_t>(numbers_.size()));
    const lora::PolicyId id{"read", found->second};
    if (!is_new) return id;
    const Model& model = *models_.at("");
    const checkpoint::PeftDirectory files(directory);
    lora::AdapterVersion adapter =
        load::load_adapter(load::check_adapter(files, model.base), files.read_weights(), model.base);
    adapter.policy = id;
    model.engine->versions().hold(std::make_shared<const lora::AdapterVersion>(std::move(adapter)));
    return id;
  }

  Stream stream_{{.threads = 1}};
  std::map<std::string, std::unique_ptr<Model>> models_;  // by directory; "": the one it began with
  std::map<std::string, int64_t> numbers_;                // of adapters, by directory
  uint64_t drawn_ = 0;
};

}  // namespace lockstep::testing
