#include "cli/async_flags.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr int64_t kMaxAhead = 64;  // each is a version that is held, and a rollout that waits

// A line of the notes is replaced where the flag means something else than in a run in turn.
void replace_note(Classified& given, std::string_view flag, const std::string& note) {
  std::erase_if(given.notes, [&](const std::string& line) { return line.starts_with(flag); });
  given.notes.push_back(note);
}

struct Conflict {
  bool holds = false;
  const char* flag = "";
  const char* attempt = "";
};

void refuse(const char* what, std::initializer_list<Conflict> conflicts) {
  for (const Conflict& conflict : conflicts)
    if (conflict.holds)
      throw ConfigError({.what = std::string(what) + " and " + conflict.flag + " exclude each other",
                         .where = what,
                         .got = conflict.flag,
                         .attempt = conflict.attempt});
}

void require_parent(const char* parent, bool on, const Classified& given, std::initializer_list<const char*> flags) {
  for (const char* flag : flags)
    if (!on && given.given(flag) != nullptr)
      throw ConfigError({.what = std::string(flag) + " needs " + parent, .where = flag, .attempt = parent});
}

// Samples of several versions are under way then.
void check_delivery(const recipes::RlOptions& o) {
  const bool in_turn = o.staleness.is_synchronous() && !o.async.on;
  if (in_turn || !o.engine.kind || o.engine.delivery != rollout::Delivery::weight_files) return;
  throw ConfigError({.what = "servers whose weights are replaced have one version at a time",
                     .where = o.async.on                      ? "--fully-async"
                              : o.staleness.max_staleness > 0 ? "--max-staleness"
                                                              : "--update-weights-interval",
                     .got = "--sync-strategy weights",
                     .attempt = "--sync-strategy lora_adapter, or sampling in turn with training"});
}

void resolve_arrival(recipes::RlOptions& o, Classified& given) {
  refuse("--fully-async",
         {{o.partial.on, "--partial-rollout", "drop --partial-rollout: samples under way go on with each new version"},
          {o.staleness.max_staleness > 0, "--max-staleness", "--max-weight-staleness, or --max-staleness alone"},
          {o.staleness.update_interval > 1, "--update-weights-interval", "--update-weights-interval 1"},
          {o.difficulty.is_on(), "--easy-threshold, --hard-threshold", "drop them: pools know the rollout before"},
          {o.over_sampling > o.rollout_batch_size, "--over-sampling-batch-size",
           "--async-data-buffer-capacity-factor says how much is sampled beyond a rollout"},
          {o.advantage.estimator == rl::Estimator::remax, "--advantage-estimator remax",
           "an estimator without greedy samples, such as rloo"}});
  o.async.recompute_policy = given.given("--use-rollout-logprobs") == nullptr;
  // Of servers it is said that nothing pauses (rollout_engine_flags.cpp).
  const Occurrence* const mode = o.engine.kind ? nullptr : given.given("--pause-generation-mode");
  if (mode != nullptr && mode->values[0] != "retract")
    throw ConfigError({.what = "samples under way go on with each new version, and their keys are computed again",
                       .where = "--pause-generation-mode",
                       .got = mode->values[0],
                       .wanted = "retract",
                       .attempt = "drop the flag"});
  if (mode != nullptr)
    replace_note(given, "--pause-generation-mode", "--pause-generation-mode retract: as every fully asynchronous run");
  if (!o.async.recompute_policy)
    replace_note(given, "--use-rollout-logprobs",
                 "--use-rollout-logprobs: the old log-probs of the ratio are those that the tokens were drawn with");
  if (o.engine.kind)
    given.notes.push_back("--fully-async: a server's sample goes on with the version that it began with");
  given.notes.push_back("--fully-async: results depend on timing; --max-staleness has the rule whose results do not");
  if (!o.async.recompute_policy || o.correction.is_needed()) return;
  // AReaL's, which use_decoupled_loss implies.
  constexpr double kUpper = 5;
  o.correction.rules = {{.measure = rl::Measure::ratio,
                         .level = rl::MeasureLevel::token,
                         .action = rl::CorrectionAction::mask,
                         .low = 0,
                         .high = kUpper}};
  given.notes.push_back(
      "--fully-async: tokens weigh exp(old - drawn) up to 5, and nothing beyond, as AReaL's decoupled "
      "loss; --use-tis, --rejection-sampling or --correction say otherwise");
}

void resolve_partial(recipes::RlOptions& o, Classified& given) {
  refuse("--partial-rollout",
         {{!o.staleness.is_synchronous(), "--max-staleness", "--max-staleness 0 --update-weights-interval 1"},
          {o.engine.kind.has_value(), "--rollout-engine", "--rollout-engine local"},
          {o.difficulty.is_on(), "--easy-threshold, --hard-threshold", "drop them: pools know the rollout before"},
          {!o.sampling.stop.empty(), "--rollout-stop", "--rollout-stop-token-ids: a text may lie across a cut"},
          {o.advantage.estimator == rl::Estimator::remax, "--advantage-estimator remax",
           "an estimator without greedy samples, such as rloo"}});
  if (o.partial.tokens == 0) o.partial.tokens = std::max<int64_t>(1, o.sampling.max_tokens / 2);
  given.notes.push_back("--partial-rollout: a sample is cut after " + shown_number(o.partial.tokens) +
                        " tokens of a rollout and goes on in the next; slime cuts when enough groups are done, which "
                        "depends on time");
  if (o.over_sampling <= o.rollout_batch_size)
    given.notes.push_back(
        "--partial-rollout: without an --over-sampling-batch-size above --rollout-batch-size no sample is "
        "left for the next rollout");
}

}  // namespace

std::vector<Flag> async_flags(recipes::RlOptions& o) {
  recipes::AsyncOptions& async = o.async;
  return {
      {"--max-staleness", "K", number(o.staleness.max_staleness, 0, kMaxAhead),
       "rollout r is sampled with the adapter of rollout r - K, ahead of training (0: in turn)"},
      {"--update-weights-interval", "N", number(o.staleness.update_interval, 1, kMaxAhead),
       "sample with the adapter of every Nth rollout only"},
      {"--fully-async", "", toggle(async.on),
       "train on the groups that finish first, whatever version drew them; samples under way go on with each new one"},
      {"--max-weight-staleness", "K", number(async.max_staleness, 0, 1000),
       "groups whose oldest token is more than K versions old are not trained on, and no more are begun than it "
       "allows"},
      {"--async-max-concurrent-samples", "N", number(async.max_concurrent_samples, 1, kMany),
       "samples under way at most (those of one rollout)"},
      {"--async-data-buffer-capacity-factor", "X", number(async.buffer_factor, kAboveZero, 1000),
       "rollouts under way or waiting to be trained on, at most"},
      {"--async-unused-samples-handler", "drop|retry",
       choice("drop|retry", "drop", [&async](const std::string& name) { async.retry_stale = name == "retry"; }),
       "what becomes of the prompts of groups that are too old"},
      {"--rollout-submission-granularity", "group",
       choice(
           "group", "group", [](const std::string&) {}, "sample"),
       "the samples of a prompt are begun together"},
      {"--partial-rollout", "", toggle(o.partial.on), "long samples are drawn over several rollouts"},
      {"--partial-rollout-tokens", "N", number(o.partial.tokens, 1, 10'000'000),
       "tokens of a sample in one of them (half of --rollout-max-response-len)"},
      {"--mask-offpolicy-in-partial-rollout", "", toggle(o.partial.mask_old),
       "tokens of earlier rollouts learn nothing"}};
}

void resolve_async(recipes::RlOptions& o, Classified& given) {
  require_parent("--fully-async", o.async.on, given,
                 {"--max-weight-staleness", "--async-max-concurrent-samples", "--async-data-buffer-capacity-factor",
                  "--async-unused-samples-handler", "--rollout-submission-granularity"});
  require_parent("--partial-rollout", o.partial.on, given,
                 {"--partial-rollout-tokens", "--mask-offpolicy-in-partial-rollout"});
  check_delivery(o);
  if (o.async.on) resolve_arrival(o, given);
  if (o.partial.on) resolve_partial(o, given);
}

}  // namespace lockstep::cli
