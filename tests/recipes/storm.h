// Clients that ask a Serving through adapters while other threads load, replace and unload these adapters. Every answer
// is compared, bit for bit, with what the version it names says when it is asked alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/peft_directory.h"
#include "core/random.h"
#include "lora/targets.h"
#include "service/serving.h"
#include "support/temp_directory.h"

namespace lockstep::recipes {

// LOCKSTEP_STORM_SECONDS in the environment, for longer storms than the suite has time for (tools/gpu_storm.sh).
inline std::chrono::seconds storm_duration(int64_t otherwise) {
  const char* const given = std::getenv("LOCKSTEP_STORM_SECONDS");
  return std::chrono::seconds(given ? std::stoll(given) : otherwise);
}

class Storm {
 public:
  static constexpr int kContents = 6, kPrompts = 12, kClients = 10, kLoaders = 3, kNamesEach = 2;

  // Writes the adapters and asks each of them, and the base, every prompt alone.
  explicit Storm(const load::Base& base, int64_t kv_bytes)
      : base_(base), serving_(base, {.engine = {.kv_bytes = kv_bytes, .prefix_cache = true, .max_decode_steps = 8}}) {
    std::vector<service::GenerationRequest> prompts;
    for (int p = 0; p < kPrompts; ++p) prompts_.push_back(make_prompt(p));
    for (int content = kBaseContent; content < kContents; ++content) {
      if (content != kBaseContent) {
        directories_.push_back(write_adapter(content));
        load("alone", content);
      }
      for (int p = 0; p < kPrompts; ++p) {
        service::GenerationRequest request = prompts_[static_cast<size_t>(p)];
        if (content != kBaseContent) request.adapter = "alone";
        Result result = ask(std::move(request));
        if (!result.error.empty()) throw std::runtime_error("alone: " + result.error);
        wanted_[{content, p}] = std::move(result.samples);
      }
    }
    serving_.adapters().unload("alone");
  }
  ~Storm() { stop(); }

  void start() {
    for (int c = 0; c < kClients; ++c) threads_.emplace_back([this, c] { run([this, c] { be_client(c); }); });
    for (int l = 0; l < kLoaders; ++l) threads_.emplace_back([this, l] { run([this, l] { be_loader(l); }); });
  }
  void stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // After stop().
  void expect_calm() {
    std::printf(
        "storm: %lld answers, %lld of them of adapters, %lld loads, %lld unloads, %lld requests for unloaded names, "
        "%lld failures\n",
        static_cast<long long>(answers_), static_cast<long long>(adapter_answers_), static_cast<long long>(loads_),
        static_cast<long long>(unloads_), static_cast<long long>(absent_), static_cast<long long>(failures_));
    EXPECT_EQ(failures_, 0) << "the first: " << first_failure_;
    EXPECT_GT(adapter_answers_, 0);
    EXPECT_GT(loads_, 0);
    EXPECT_GT(unloads_, 0);
    EXPECT_TRUE(serving_.healthy());
    for (const versions::Policy& adapter : serving_.adapters().list()) {
      serving_.adapters().unload(adapter.name);
      EXPECT_TRUE(serving_.adapters().wait_unused(adapter.name, std::chrono::seconds(10))) << adapter.name;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // an engine without work writes its metrics
    const service::ServingMetrics metrics = serving_.metrics();
    EXPECT_EQ(metrics.failed_steps, 0);
    EXPECT_EQ(metrics.failed_recordings, 0) << "somebody disturbed a recording";
  }
  int64_t failures() const { return failures_; }

 private:
  static constexpr int kBaseContent = -1;
  struct Token {
    int32_t token = 0;
    float logprob = 0;
    int64_t version = 0;
  };
  using Samples = std::vector<std::vector<Token>>;
  struct Result {
    Samples samples;
    std::string error;
  };

  std::string write_adapter(int content) const {
    lora::LoraConfig config;
    config.rank = 4 << content % 3;
    config.alpha = 8;
    config.type = lora::LoraType::canonical;
    config.target_modules = {"all-linear"};
    const auto layout = lora::resolve_layout(config, model::linear_modules(base_.config));
    Buffer values(static_cast<size_t>(layout->num_floats) * sizeof(float));
    for (int64_t i = 0; i < layout->num_floats; ++i)
      values.f32()[i] =
          0.3f * (uniform01(philox(static_cast<uint64_t>(content), {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 0.5f);
    const lora::ExportedTensors tensors = lora::export_tensors(*layout, values.f32());
    const fs::Path directory = directory_.path() / ("adapter" + std::to_string(content));
    checkpoint::write_peft_directory(directory, config, layout->target_leaves, base_.name, tensors.tensors);
    return directory.string();
  }

  // Of one block and of several; prompts that begin alike; greedy and not; one sample and more.
  service::GenerationRequest make_prompt(int p) const {
    service::GenerationRequest request;
    for (int t = 0; t < 3 + 5 * p; ++t) request.tokens.push_back(1 + (t * 7 + (p % 3) * t / 16) % 250);
    request.n = 1 + p % 2;
    request.sampling.temperature = p % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = static_cast<uint64_t>(p);
    request.sampling.max_tokens = 5 + p * 11 % 40;
    request.sampling.top_logprobs = p % 5 == 4 ? 2 : 0;  // such steps run without a graph
    request.sampling.stop_token_ids = base_.eos;
    return request;
  }

  Result ask(service::GenerationRequest request) {
    struct Asked {
      Result result;
      std::promise<Result> done;
    };
    const auto asked = std::make_shared<Asked>();
    asked->result.samples.resize(static_cast<size_t>(request.n));
    std::future<Result> done = asked->done.get_future();
    serving_.submit(std::move(request), [asked](service::GenerationUpdate update) {
      for (const service::GeneratedToken& token : update.tokens)
        asked->result.samples[static_cast<size_t>(token.index)].push_back({token.token, token.logprob, token.version});
      if (!update.done) return;
      if (update.error)
        asked->result.error = update.error->what + ": " + update.error->where + ": " + update.error->got;
      if (update.aborted) asked->result.error = "aborted";
      asked->done.set_value(std::move(asked->result));
    });
    if (done.wait_for(std::chrono::minutes(2)) != std::future_status::ready)
      return {.error = "no answer in two minutes"};
    return done.get();
  }

  // Under a new version number, which says ever after what was loaded.
  void load(const std::string& name, int content) {
    int64_t version = 0;
    {
      const std::lock_guard lock(mutex_);
      version = next_version_++;
      content_of_[version] = content;
    }
    serving_.adapters().load(
        {.name = name, .path = directories_[static_cast<size_t>(content)], .in_place = true, .version = version});
  }

  void be_client(int number) {
    std::mt19937 random(static_cast<uint32_t>(100 + number));
    while (!stopping_) {
      const auto name = random() % (kLoaders * kNamesEach + 1);
      const int p = static_cast<int>(random() % kPrompts);
      service::GenerationRequest request = prompts_[static_cast<size_t>(p)];
      if (name > 0) request.adapter = name_of(static_cast<int>(name) - 1);
      request.follow_adapter = name > 0 && random() % 4 == 0;
      try {
        const Result result = ask(std::move(request));
        ++answers_;
        if (name > 0) ++adapter_answers_;
        if (!result.error.empty())
          fail(result.error);
        else
          check(result.samples, p, name > 0);
      } catch (const service::NoSuchAdapter&) {
        ++absent_;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  bool is_loaded(const std::string& name) {
    return std::ranges::count(serving_.adapters().list(), name, &versions::Policy::name) > 0;
  }

  void be_loader(int number) {
    std::mt19937 random(static_cast<uint32_t>(200 + number));
    std::vector<bool> loaded(kNamesEach);
    while (!stopping_) {
      const auto which = random() % kNamesEach;
      const std::string name = name_of(number * kNamesEach + static_cast<int>(which));
      if (loaded[which] && random() % 4 == 0) {
        serving_.adapters().unload(name);
        ++unloads_;
      } else {
        load(name, static_cast<int>(random() % kContents));
        ++loads_;
      }
      loaded[which] = is_loaded(name);
    }
  }

  // All tokens of a sample are those of one version; of a request that follows its adapter, as far as it had the first.
  void check(const Samples& samples, int p, bool has_adapter) {
    for (size_t s = 0; s < samples.size(); ++s) {
      if (samples[s].empty()) return fail("an answer without a token");
      const int64_t version = samples[s].front().version;
      const std::optional<int> content = content_of(version);
      if (!content || (*content == kBaseContent) == has_adapter) return fail("of version " + std::to_string(version));
      const std::vector<Token>& wanted = wanted_.at({*content, p})[s];
      const size_t same = static_cast<size_t>(
          std::ranges::find_if(samples[s], [&](const Token& token) { return token.version != version; }) -
          samples[s].begin());
      const bool whole = same == samples[s].size();
      if (whole ? same != wanted.size() : same > wanted.size()) return fail("an answer of another length");
      for (size_t t = 0; t < same; ++t)
        if (samples[s][t].token != wanted[t].token ||
            std::memcmp(&samples[s][t].logprob, &wanted[t].logprob, sizeof(float)) != 0)
          return fail("token " + std::to_string(t) + " of sample " + std::to_string(s) + ", prompt " +
                      std::to_string(p) + ", version " + std::to_string(version) +
                      " is not what that version says alone");
    }
  }

  std::optional<int> content_of(int64_t version) {
    if (version == lora::PolicyId::kBase) return kBaseContent;
    const std::lock_guard lock(mutex_);
    const auto found = content_of_.find(version);
    return found == content_of_.end() ? std::nullopt : std::optional(found->second);
  }

  void run(const std::function<void()>& part) {
    try {
      part();
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  void fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (failures_++ == 0) first_failure_ = what;
  }
  static std::string name_of(int name) { return "name" + std::to_string(name); }

  const load::Base& base_;
  testing::TempDirectory directory_;
  std::vector<std::string> directories_;
  std::vector<service::GenerationRequest> prompts_;
  std::map<std::pair<int, int>, Samples> wanted_;  // by content and prompt
  std::mutex mutex_;                               // of what follows, up to the counters
  std::map<int64_t, int> content_of_;              // by version
  int64_t next_version_ = 1;
  std::string first_failure_;
  std::atomic<int64_t> answers_ = 0, adapter_answers_ = 0, loads_ = 0, unloads_ = 0, absent_ = 0, failures_ = 0;
  std::atomic<bool> stopping_ = false;
  service::Serving serving_;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::recipes
