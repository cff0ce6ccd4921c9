// One forward on a GPU, end to end: trainers publish, engines sample under every schedule, and what the engines report
// is what the trainers compute, to the last bit. For a million tokens:
//   recipes_test --gtest_also_run_disabled_tests --gtest_filter=*MillionTokens
#include <gtest/gtest.h>

#include <algorithm>

#include "core/hash.h"
#include "recipes/one_forward.h"
#include "rollout/tiny_model.h"
#include "support/gpu.h"
#include "versions/memory_sink.h"
#include "versions/store.h"

namespace lockstep {
namespace {

using namespace rollout::testing_models;

constexpr int64_t kPrompts = 32, kSamples = 8;  // 256 sequences at once, fewer and fewer as they end

model::ModelSpec medium_config(int64_t head_dim) {
  model::ModelSpec c;
  c.family = "qwen3";
  c.vocab_size = 5000, c.width = 512, c.layers = 4, c.heads = 4, c.kv_heads = 2, c.head_dim = head_dim, c.ffn = 1024;
  c.max_positions = 1024, c.tied_head = true, c.qk_norm = true;
  c.window.assign(4, 0);
  return c;
}

// Two trainers and three engines on one base. Everything they make goes into one hash.
class Session {
 public:
  Session(int64_t head_dim, Stream& stream)
      : stream_(stream),
        config_(medium_config(head_dim)),
        model_(std::make_shared<model::Model>(config_, model::Weights::random(config_, DType::bf16, 7, stream),
                                              model::Model::default_logits_bytes(stream.device()))) {
    for (const auto& [rank, alpha] : {std::pair{8, 8.0}, {16, 16.0}}) {
      const lora::AdapterVersion start = testing::placed(small_adapter(rank, alpha), stream);
      trainers_.push_back(std::make_unique<train::Trainer>(
          model_, start.layout, start.weights, train::TrainerOptions{.max_tokens = 4096, .temperature = kTemperature},
          stream));
    }
    const int64_t block_bytes =
        config_.layers * model_->kv_layer_elements() * dtype_bytes(kernels::activation_dtype(stream.device()));
    for (const rollout::EngineOptions& options :
         {rollout::EngineOptions{}, rollout::EngineOptions{.max_sequences = 64, .max_batch_tokens = 96},
          rollout::EngineOptions{.kv_bytes = 400 * block_bytes}}) {
      engines_.push_back(std::make_unique<rollout::Engine>(model_, options, stream));
      sinks_.push_back(std::make_unique<versions::MemorySink>(engines_.back()->versions()));
      store_.add(*sinks_.back());
    }
  }

  // Samples, compares, trains on what was sampled.
  void round(uint32_t number) {
    train::Trainer& trainer = *trainers_[number % trainers_.size()];
    const versions::PublishReport published =
        store_.publish(std::to_string(number % trainers_.size()), trainer.adapter());
    EXPECT_EQ(published.bytes_copied, 0);
    const std::vector<rollout::Prompt> prompts = prompts_of(number);
    const rollout::GroupParams params = params_of(number);
    const std::vector<rollout::Sample> samples =
        rollout::sample_groups(*engines_[0], prompts, params, published.policy);
    for (size_t e = 1; e < engines_.size(); ++e)
      expect_same(rollout::sample_groups(*engines_[e], prompts, params, published.policy), samples,
                  "engine " + std::to_string(e));
    for (const auto& engine : engines_) engine->release_memory();

    const std::vector<train::Datum> datums = datums_of(prompts, samples, trainer);
    const lora::AdapterVersion now = trainer.adapter();
    SCOPED_TRACE("round " + std::to_string(number));
    expect_reported_is_computed(trainer, datums, samples, now);
    for (const rollout::Sample& sample : samples) {
      tokens_ += static_cast<int64_t>(sample.logprobs.size());
      add(sample.tokens);
      add(sample.logprobs);
    }
    trainer.begin_step({.num_samples = static_cast<int64_t>(datums.size()), .share_prompts = true});
    EXPECT_EQ(trainer.forward_backward(datums, train::PolicyLoss{}).metrics.logprob_diff_max, 0) << "round " << number;
    trainer.optim_step(1e-3);
  }

  int64_t tokens() const { return tokens_; }
  int64_t preemptions() const { return engines_[2]->stats().preemptions; }
  std::string hash() {
    for (const auto& trainer : trainers_) {
      const Buffer weights = lora::host_weights(*trainer->adapter().weights, trainer->layout(), stream_);
      hash_.update({static_cast<const std::byte*>(weights.data()), weights.bytes()});
    }
    return hash_.hex();
  }

 private:
  // Changes what is sampled without drowning the base.
  lora::AdapterVersion small_adapter(int64_t rank, double alpha) const {
    lora::AdapterVersion adapter = random_adapter(config_, 0, static_cast<uint32_t>(rank), rank, alpha);
    const auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
    for (int64_t i = 0; i < adapter.layout->num_floats; ++i) weights->f32()[i] = 0.1f * adapter.weights->f32()[i];
    adapter.weights = weights;
    return adapter;
  }

  std::vector<rollout::Prompt> prompts_of(uint32_t number) const {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < kPrompts; ++i) sizes.push_back(1 + (i * 37 + number * 11) % 300);
    return random_prompts(sizes, config_.vocab_size, number);
  }

  // One token in 50 ends a sample: lengths are spread up to the limit, and batches shrink from 256 to 1.
  rollout::GroupParams params_of(uint32_t number) const {
    rollout::GroupParams params{.sampling = {.temperature = kTemperature,
                                             .max_tokens = 70 + number % 5,
                                             .seed = number,
                                             .logprob_temperature = kTemperature},
                                .n = kSamples,
                                .rollout = number};
    if (number % 3 == 1) params.sampling.top_p = 0.9f;
    if (number % 3 == 2) params.sampling.top_k = 200;
    for (int32_t token = 0; token < config_.vocab_size; token += 50) params.sampling.stop_token_ids.push_back(token);
    return params;
  }

  template <class T>
  void add(const std::vector<T>& values) {
    hash_.update({reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)});
  }

  Stream& stream_;
  const model::ModelSpec config_;
  std::shared_ptr<const model::Model> model_;
  std::vector<std::unique_ptr<train::Trainer>> trainers_;
  std::vector<std::unique_ptr<rollout::Engine>> engines_;
  std::vector<std::unique_ptr<versions::MemorySink>> sinks_;
  versions::Store store_;
  Sha256 hash_;
  int64_t tokens_ = 0;
};

class OneForwardCuda : public testing::OnGpu<> {
 protected:
  std::string run(int64_t tokens, int64_t head_dim = 128) {
    Session session(head_dim, gpu());
    for (uint32_t number = 0; session.tokens() < tokens && !HasFailure(); ++number) session.round(number);
    EXPECT_GT(session.preemptions(), 0);
    std::printf("compared %lld tokens\n", static_cast<long long>(session.tokens()));
    return session.hash();
  }
};

TEST_F(OneForwardCuda, TheTrainersFindTheEnginesBitsAndTwoRunsAreOne) {
  constexpr int64_t kTokens = 40'000;
  EXPECT_EQ(run(kTokens), run(kTokens));
}

// Attention above head_dim 128 has kernels of its own.
TEST_F(OneForwardCuda, HoldsForWideHeads) {
  for (const int64_t head_dim : {192, 256}) run(40'000, head_dim);
}

TEST_F(OneForwardCuda, DISABLED_MillionTokens) {
  run(1'000'000);
}

}  // namespace
}  // namespace lockstep
