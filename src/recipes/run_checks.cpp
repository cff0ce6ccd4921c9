#include "recipes/run_checks.h"

#include <fmt/format.h>

#include <cstring>

#include "load/base.h"
#include "lora/adapter.h"

namespace lockstep::recipes {

namespace {

constexpr double kNoKl = 1e-8;  // slime's bound

[[noreturn]] void fail(int64_t rollout, const std::string& what, double got, const std::string& wanted) {
  throw CheckError(
      {.what = what, .where = fmt::format("rollout {}", rollout), .got = fmt::format("{:g}", got), .wanted = wanted});
}

// What was measured. CheckError where nothing was.
double measured(int64_t rollout, const std::optional<double>& value) {
  if (value) return *value;
  throw CheckError({.what = "log-probs of trainer and sampler cannot be compared",
                    .where = fmt::format("rollout {}", rollout),
                    .got = "no reward is known, or a version of the adapter that drew some tokens is not held any more",
                    .attempt = "a reward that answers, a smaller bound on staleness, or no check of log-probs"});
}

}  // namespace

void check_rollout(const RunChecks& checks, const RolloutFacts& facts) {
  const double mean = checks.logprob_diff ? measured(facts.rollout, facts.logprob_diff) : 0;
  const double most = checks.equal_logprobs ? measured(facts.rollout, facts.logprob_diff_max) : 0;
  // Written without ">", because a NaN would pass that comparison.
  if (checks.logprob_diff && !(mean <= *checks.logprob_diff))
    fail(facts.rollout, "log-probs of trainer and sampler differ on average", mean,
         fmt::format("at most {:g}", *checks.logprob_diff));
  if (checks.equal_logprobs && !(most == 0))
    fail(facts.rollout, "log-probs of trainer and sampler differ", most, "0 for every token");
  if (checks.equal_reference && facts.rollout == 1 && facts.kl && !(*facts.kl < kNoKl))
    fail(facts.rollout, "the adapter that the run starts from differs from the reference", *facts.kl,
         fmt::format("a KL below {:g}", kNoKl));
}

void check_published(const RunChecks& checks, const lora::AdapterVersion& trained,
                     const lora::AdapterVersion& published, Stream& stream) {
  if (!checks.equal_adapter) return;
  const Buffer ours = lora::host_weights(*trained.weights, *trained.layout, stream);
  const Buffer theirs = lora::host_weights(*published.weights, *published.layout, stream);
  if (ours.bytes() == theirs.bytes() && std::memcmp(ours.data(), theirs.data(), ours.bytes()) == 0) return;
  throw CheckError({.what = "the published adapter is not the trainer's",
                    .where = fmt::format("{} version {}", published.policy.name, published.policy.version)});
}

BaseCheck::BaseCheck(const RunChecks& checks, const model::Model& model, Stream& stream)
    : model_(model),
      stream_(stream),
      fingerprint_(checks.equal_base ? load::fingerprint_of_memory(model, stream) : "") {}

void BaseCheck::at_end() const {
  if (fingerprint_.empty()) return;
  if (const std::string now = load::fingerprint_of_memory(model_, stream_); now != fingerprint_)
    throw CheckError({.what = "the base in memory has changed", .got = now, .wanted = fingerprint_});
}

}  // namespace lockstep::recipes
