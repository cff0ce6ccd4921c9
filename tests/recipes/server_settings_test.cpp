#include "recipes/server_settings.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::recipes {
namespace {

using rollout::EngineKind, rollout::LogprobKind;

const rollout::ServerFacts kGood{
    .max_loras = 2, .max_lora_rank = 16, .data_parallel = 1, .lora_enabled = true, .logprobs = LogprobKind::processed};
const AskedOfServer kAsked{.sampling = {.temperature = 0.7F}, .rank = 16};

template <class Change>
void lacks(const Change& change, const char* wanted, EngineKind kind = EngineKind::vllm) {
  rollout::ServerFacts facts = kGood;
  AskedOfServer asked = kAsked;
  change(facts, asked);
  testing::expect_error<ConfigError>([&] { check_settings(kind, "host:1", facts, asked); }, {wanted});
}

TEST(ServerSettings, NameTheFlagThatIsMissing) {
  EXPECT_NO_THROW(check_settings(EngineKind::vllm, "host:1", kGood, kAsked));
  EXPECT_NO_THROW(check_settings(EngineKind::vllm, "host:1", {}, kAsked)) << "what is not said is not judged";
  lacks([](auto& facts, auto&) { facts.lora_enabled = false; }, "--enable-lora");
  lacks([](auto& facts, auto&) { facts.max_loras = 1; }, "--max-loras 2");
  lacks([](auto& facts, auto&) { facts.max_loras = 1; }, "--max-loras-per-batch 3", EngineKind::sglang);
  lacks([](auto&, auto& asked) { asked.rank = 17; }, "--max-lora-rank 17");
  lacks([](auto& facts, auto&) { facts.data_parallel = 2; }, "--data-parallel-size 1");
  lacks([](auto& facts, auto&) { facts.logprobs = LogprobKind::raw; }, "--logprobs-mode processed_logprobs");
  lacks([](auto&, auto& asked) { asked.sampling.top_p = 0.9F; }, "--logprobs-mode raw_logprobs");
  lacks([](auto&, auto& asked) { asked.sampling.repetition_penalty = 1.1F; }, "without penalties");
  lacks([](auto&, auto& asked) { asked.sampling.min_tokens = 2; }, "min_tokens");
  lacks([](auto& facts, auto& asked) { facts.logprobs.reset(), asked.sampling.top_k = 5; }, "VLLM_SERVER_DEV_MODE=1");
  lacks([](auto&, auto& asked) { asked.versions = 3; }, "3 versions of an adapter");
  lacks([](auto&, auto& asked) { asked.sampling.temperature = 0.001F; }, "at least 0.01");
}

TEST(ServerSettings, AtTemperatureOneRawLogprobsAreThePolicys) {
  rollout::ServerFacts facts = kGood;
  facts.logprobs = LogprobKind::raw;
  EXPECT_NO_THROW(
      check_settings(EngineKind::vllm, "host:1", facts, {.sampling = {.temperature = 1, .top_p = 0.9F}, .rank = 1}));
  facts.logprobs = LogprobKind::tempered;
  EXPECT_NO_THROW(check_settings(EngineKind::sglang, "host:1", facts,
                                 {.sampling = {.temperature = 0.7F, .top_p = 0.9F}, .rank = 1}));
}

TEST(ServerSettings, LogprobsThatNobodyReadsMayBeOfAnyKind) {
  AskedOfServer asked = kAsked;
  asked.sampling.top_p = 0.9F;
  for (const std::optional<LogprobKind> kind :
       {std::optional(LogprobKind::raw), std::optional(LogprobKind::processed), std::optional<LogprobKind>()}) {
    rollout::ServerFacts facts = kGood;
    facts.logprobs = kind;
    asked.any_logprobs = false;
    testing::expect_error<ConfigError>([&] { check_settings(EngineKind::vllm, "host:1", facts, asked); },
                                       {"RolloutEngineOptions::policy_logprobs_only"});
    asked.any_logprobs = true;
    EXPECT_NO_THROW(check_settings(EngineKind::vllm, "host:1", facts, asked));
  }
}

TEST(ServerSettings, WeightsAreNotForQuantizedServersUnlessForced) {
  rollout::ServerFacts facts = kGood;
  AskedOfServer asked = kAsked;
  asked.delivery = rollout::Delivery::weight_files;
  facts.lora_enabled = false, facts.max_loras = 0, facts.max_lora_rank = 0;
  EXPECT_NO_THROW(check_settings(EngineKind::vllm, "host:1", facts, asked)) << "no adapter is loaded";
  facts.quantized = true;
  testing::expect_error<ConfigError>([&] { check_settings(EngineKind::vllm, "host:1", facts, asked); },
                                     {"quantized", "RolloutEngineOptions::force"});
  asked.force = true;
  EXPECT_NO_THROW(check_settings(EngineKind::vllm, "host:1", facts, asked));
}

TEST(ServerSettings, AdaptersDoNotLieOnMergedWeightsOfAnEarlierRun) {
  rollout::ServerFacts facts = kGood;
  facts.weight_version = std::string(rollout::kWeightsPrefix) + "3";
  const auto check = [&](rollout::Delivery delivery) { check_base_weights("host:1", facts, delivery); };
  testing::expect_error<ConfigError>([&] { check(rollout::Delivery::adapter_files); },
                                     {"an earlier run", "start the server again"});
  EXPECT_NO_THROW(check(rollout::Delivery::weight_files)) << "they are replaced again";
  facts.weight_version = "default";
  EXPECT_NO_THROW(check(rollout::Delivery::adapter_files)) << "SGLang's name of what it began with";
}

TEST(ServerSettings, WhatIsSaidOfLogprobsAndWhatIsMeasuredAgree) {
  const auto known = [](EngineKind kind, std::optional<LogprobKind> said, std::optional<LogprobKind> measured) {
    return known_logprobs(kind, "host:1", said, measured);
  };
  EXPECT_EQ(known(EngineKind::vllm, LogprobKind::processed, LogprobKind::tempered), LogprobKind::processed);
  EXPECT_EQ(known(EngineKind::vllm, LogprobKind::raw, LogprobKind::raw), LogprobKind::raw);
  EXPECT_EQ(known(EngineKind::vllm, {}, LogprobKind::tempered), LogprobKind::processed) << "it has no third kind";
  EXPECT_EQ(known(EngineKind::vllm, {}, LogprobKind::raw), LogprobKind::raw);
  EXPECT_EQ(known(EngineKind::vllm, LogprobKind::raw, {}), LogprobKind::raw) << "nothing sure was measured";
  EXPECT_EQ(known(EngineKind::sglang, LogprobKind::tempered, LogprobKind::raw), LogprobKind::raw)
      << "its environment decides";
  testing::expect_error<ConfigError>([&] { known(EngineKind::vllm, LogprobKind::raw, LogprobKind::tempered); },
                                     {"contradict"});
}

}  // namespace
}  // namespace lockstep::recipes
