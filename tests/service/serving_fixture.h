// A Serving of the tiny model with two adapters, and what comes back from it.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "load/loading.h"
#include "service/serving.h"

namespace lockstep::service {

// What came back for one request; waits for its end.
class Answer {
 public:
  Serving::OnUpdate sink() {
    return [this](GenerationUpdate update) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(last_.done) << "an update after the last one";
      tokens_.insert(tokens_.end(), update.tokens.begin(), update.tokens.end());
      cached_ = std::max(cached_, update.cached_tokens);
      last_ = std::move(update);
      changed_.notify_all();
    };
  }
  const GenerationUpdate& wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [this] { return last_.done; }));
    return last_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return tokens_.size() >= count || last_.done; }));
  }
  std::vector<int32_t> ids() {
    wait();
    std::vector<int32_t> all;
    for (const GeneratedToken& token : tokens_) all.push_back(token.token);
    return all;
  }
  const std::vector<GeneratedToken>& tokens() const { return tokens_; }
  int64_t cached() const { return cached_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GeneratedToken> tokens_;
  int64_t cached_ = 0;
  GenerationUpdate last_;
};

using testing::kArith, testing::kTiny;

class ServingTest : public testing::Loading {
 protected:
  Serving& serve(ServingOptions options = {}) {
    options.engine.prefix_cache = true;
    serving_ = std::make_unique<Serving>(base_, options);
    return *serving_;
  }
  GenerationRequest request(int32_t first, int64_t max_tokens = 8, const std::string& adapter = "") {
    GenerationRequest r{.tokens = {first, 2, 3, 4, 5}, .adapter = adapter};
    r.sampling.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    return r;
  }
  std::vector<int32_t> ask(const GenerationRequest& r) {
    Answer answer;
    serving_->submit(r, answer.sink());
    return answer.ids();
  }
  // Rank 2, but for the modules q_proj.
  std::string adapter_with_a_rank_pattern(int64_t rank) {
    const lora::LoraConfig config{.rank = 2,
                                  .alpha = 4,
                                  .type = lora::LoraType::canonical,
                                  .target_modules = {"q_proj", "o_proj"},
                                  .rank_pattern = {{"q_proj", rank}}};
    const lora::AdapterVersion adapter = load::fresh_adapter(config, base_, 1);
    const lora::ExportedTensors tensors = lora::export_tensors(*adapter.layout, adapter.weights->f32());
    checkpoint::write_peft_directory(path("pattern"), config, adapter.layout->target_leaves, "", tensors.tensors);
    return path("pattern");
  }
  void wait_until_idle() {
    while (!serving_->idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void forget_version(const std::string& adapter) {
    std::filesystem::remove(fs::Path(adapter) / "vime_lora_metadata.json");
  }

  Stream stream_{{.threads = 2}};
  load::Base base_ = testing::loaded(kTiny, stream_);
  std::string first_ = adapter_of(kTiny, lora::LoraType::canonical, 4),
              second_ = adapter_of(kTiny, lora::LoraType::fused, 2);
  std::unique_ptr<Serving> serving_;
};

}  // namespace lockstep::service
