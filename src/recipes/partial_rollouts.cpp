#include "recipes/partial_rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "recipes/pending_samples.h"
#include "rl/groups_in_flight.h"
#include "rl/reward_queue.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kPartialRollouts = "partial_rollouts";

// Counts the tokens that older versions drew; with `mask` they learn nothing.
int64_t mask_older(std::span<rl::Trajectory> trajectories, int64_t version, bool mask) {
  int64_t older = 0;
  for (rl::Trajectory& trajectory : trajectories)
    for (size_t t = 0; t < trajectory.mask.size(); ++t) {
      if (trajectory.mask[t] == 0 || trajectory.versions[t] == version) continue;
      ++older;
      if (mask) trajectory.mask[t] = 0;
    }
  return older;
}

}  // namespace

PartialRollouts::PartialRollouts(const RlOptions& options, const PromptSet& prompts, RolloutSampling& sampling,
                                 const rl::RlParts& parts, const SampledVersions& versions, TrainingRun& run,
                                 RunProgress& progress)
    : options_(options),
      prompts_(prompts),
      sampling_(sampling),
      parts_(parts),
      versions_(versions),
      run_(run),
      progress_(progress),
      position_(run.data_position()) {
  restore();
  run_.keep(kPartialRollouts, [this] { return kept(); });
}

KeptPart PartialRollouts::kept() const {
  Json groups = Json::array();
  for (const Group& group : groups_) {
    std::map<rl::SampleKey, rl::GradedSample> samples;
    for (size_t i = 0; i < group.samples.size(); ++i)
      samples[{.rollout = group.rollout, .sample = static_cast<int64_t>(i)}] = group.samples[i];
    groups.push_back({{"prompt", group.prompt},
                      {"first_sample", group.first_sample},
                      {"rollout", group.rollout},
                      {"finished", group.finished},
                      {"graded", group.graded},
                      {"samples", pending_samples_json(samples)}});
  }
  return {.json = {{"position", position_}, {"groups", std::move(groups)}}};
}

void PartialRollouts::restore() {
  const auto part = run_.resumed_part(kPartialRollouts);
  if (!part) return;
  const std::string where = "parts/partial_rollouts.json";
  const JsonObject object(part->json, where);
  position_ = object.integer("position");
  for (const Json& entry : object.value("groups")) {
    const JsonObject json(entry, where);
    Group group{.prompt = json.integer("prompt"),
                .first_sample = json.integer("first_sample"),
                .rollout = static_cast<uint32_t>(json.integer("rollout")),
                .samples = {},
                .finished = json.value("finished").get<std::vector<uint8_t>>(),
                .graded = json.boolean("graded", false)};
    rl::GradedSamples samples;
    restore_pending_samples(json.value("samples"), where, samples);
    for (const auto& [key, sample] : samples.all()) group.samples.push_back(sample);
    const auto n = static_cast<size_t>(options_.n_samples);
    if (group.prompt < 0 || group.prompt >= static_cast<int64_t>(prompts_.prompts.size()) ||
        group.samples.size() != n || group.finished.size() != n)
      throw FormatError({.what = "a group that is under way is not one of this run", .where = where});
    groups_.push_back(std::move(group));
  }
}

int64_t PartialRollouts::count_graded() const {
  return std::ranges::count_if(groups_, [](const Group& group) { return group.graded; });
}

// As many as may be under way.
void PartialRollouts::begin_groups(int64_t rollout) {
  const rl::GatePlan& gates = sampling_.gates();
  const int64_t missing = gates.prompts - static_cast<int64_t>(groups_.size());
  if (missing <= 0) return;
  begun_ += missing;
  if (begun_ > gates.max_rounds * gates.prompts)
    throw DataError({.what = "too few groups pass the gates of a rollout",
                     .where = "dynamic sampling",
                     .got = fmt::format("{} of {} groups, {} dropped", count_graded(), gates.groups, dropped_),
                     .attempt = "prompts that the model solves sometimes, more samples of each, or more rounds"});
  // A prompt that comes again in this rollout gets samples of its own, also where its group was dropped since.
  const int64_t begin = run_.data_position();
  std::map<int64_t, int64_t> times;
  for (const int64_t prompt : sampling_.order().rows(begin, 0, position_ - begin)) ++times[prompt];
  for (const int64_t prompt : sampling_.order().rows(position_, 0, missing))
    groups_.push_back({.prompt = prompt,
                       .first_sample = times[prompt]++ * options_.n_samples,
                       .rollout = static_cast<uint32_t>(rollout),
                       .samples = std::vector<rl::GradedSample>(static_cast<size_t>(options_.n_samples)),
                       .finished = std::vector<uint8_t>(static_cast<size_t>(options_.n_samples), 0)});
  position_ += missing;
}

// All or nothing: an interrupt leaves what was drawn before.
void PartialRollouts::draw_slice(const lora::PolicyId& policy, const rl::Watch& watch) {
  std::map<std::pair<uint32_t, int64_t>, Slice> slices;  // by the rollout of the counter and the number of tokens
  int64_t total = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    for (size_t i = 0; i < group.samples.size(); ++i) {
      if (group.finished[i] != 0) continue;
      const std::vector<int32_t>& before = group.samples[i].sample.tokens;
      const int64_t left = options_.sampling.max_tokens - static_cast<int64_t>(before.size());
      Slice& slice = slices[{group.rollout, std::min(left, options_.partial.tokens)}];
      rollout::Prompt prompt = prompts_.prompts[static_cast<size_t>(group.prompt)];
      prompt.first_sample = group.first_sample + static_cast<int64_t>(i);
      prompt.tokens.insert(prompt.tokens.end(), before.begin(), before.end());
      slice.prompts.push_back(std::move(prompt));
      slice.pieces.push_back({.group = g, .sample = i});
      ++total;
    }
  }
  int64_t before = 0;
  try {
    for (auto& [key, slice] : slices) {
      rollout::GroupParams params{.sampling = sampling_.params(), .n = 1, .rollout = key.first};
      params.sampling.max_tokens = key.second;
      slice.tickets = rollout::submit_groups(parts_.sampler, slice.prompts, params, policy);
    }
    for (auto& [key, slice] : slices) {
      slice.drawn = rollout::collect_groups(parts_.sampler, slice.tickets, [&](int64_t done, int64_t) {
        watch.stop_if_interrupted();
        watch.report(before + done, total);
      });
      before += static_cast<int64_t>(slice.drawn.size());
    }
  } catch (...) {
    for (const auto& [key, slice] : slices)
      for (const rollout::Ticket ticket : slice.tickets.tickets) parts_.sampler.cancel(ticket);
    throw;
  }
  for (auto& [key, slice] : slices)
    for (size_t k = 0; k < slice.pieces.size(); ++k) append(slice.pieces[k], slice.drawn[k], key.second);
}

// A sample that got fewer tokens than it was asked for has reached the end of the context.
void PartialRollouts::append(const Piece& piece, const rollout::Sample& drawn, int64_t asked) {
  Group& group = groups_[piece.group];
  rollout::Sample& sample = group.samples[piece.sample].sample;
  const auto behind = [](auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); };
  behind(sample.tokens, drawn.tokens);
  behind(sample.logprobs, drawn.logprobs);
  behind(sample.versions, drawn.versions);
  sample.finish = drawn.finish;
  sample.index = static_cast<int64_t>(piece.sample);
  const bool whole = static_cast<int64_t>(sample.tokens.size()) >= options_.sampling.max_tokens ||
                     static_cast<int64_t>(drawn.tokens.size()) < asked;
  group.finished[piece.sample] = drawn.finish == rollout::FinishReason::stop || whole ? 1 : 0;
}

std::vector<rl::Trajectory> PartialRollouts::trajectories(const Group& group, int64_t number) const {
  const auto prompt = static_cast<size_t>(group.prompt);
  return rl::trajectories_of(
      {.request = {.asked = prompts_.prompts[prompt], .row = prompts_.rows[prompt]}, .samples = group.samples}, number,
      {parts_.tokenizer, sampling_.params().stop_token_ids});
}

// Of the groups that have finished since the last slice; those that do not pass a gate go.
void PartialRollouts::grade(const rl::Watch& watch) {
  std::vector<size_t> finished;
  std::vector<rl::RewardSample> samples;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.graded || !std::ranges::all_of(group.finished, [](uint8_t done) { return done != 0; })) continue;
    finished.push_back(g);
    for (const rl::Trajectory& trajectory : trajectories(group, group.prompt)) {
      samples.push_back(rl::reward_sample(trajectory));
      samples.back().rollout = group.rollout;
    }
  }
  const auto n = static_cast<size_t>(options_.n_samples);
  const std::vector<rl::Score> scores =
      rl::grade_all(parts_.reward, std::move(samples), n, [&](size_t) { watch.stop_if_interrupted(); });
  // Before the groups count as graded: a checkpoint then has them graded again, by a reward that was mended.
  const auto unknown = std::ranges::find_if(scores, [](const rl::Score& score) { return !score.value; });
  if (unknown != scores.end() && options_.on_reward_failure == rl::RewardFailure::stop)
    throw DataError({.what = "a sample's reward is unknown",
                     .where = unknown->failure,
                     .attempt = "mend the reward, or leave out such samples (RlOptions::on_reward_failure)"});
  for (size_t k = 0; k < finished.size(); ++k) {
    Group& group = groups_[finished[k]];
    for (size_t i = 0; i < n; ++i) group.samples[i].score = scores[k * n + i];
    group.graded = true;
  }
  const rl::GatePlan& gates = sampling_.gates();
  dropped_ += static_cast<int64_t>(std::erase_if(groups_, [&](const Group& group) {
    if (!group.graded) return false;
    const bool known = std::ranges::all_of(group.samples, [](const auto& one) { return one.score.value.has_value(); });
    if ((!gates.need_spread || rl::has_spread(trajectories(group, 0))) && (!gates.need_rewards || known)) return false;
    unknown_.add(group.samples, prompts_.prompts[static_cast<size_t>(group.prompt)].row);
    return true;
  }));
}

SampledRollout PartialRollouts::next(int64_t rollout) {
  const Stopwatch sampling;
  const versions::Pin version = versions_.pin(rollout);
  const rl::Watch watch = progress_.watch(rollout, "sampling");
  const int64_t wanted = sampling_.gates().groups;
  begun_ = dropped_ = 0;
  unknown_ = {};
  for (grade(watch); count_graded() < wanted; grade(watch)) {
    begin_groups(rollout);
    draw_slice(version.version()->policy, watch);
  }
  parts_.sampler.release_memory();  // training needs it
  SampledRollout sampled;
  sampled.version = version.version();
  sampled.exact_logprobs = parts_.sampler.capabilities().exact_logprobs;
  int64_t taken = 0;
  for (Group& group : groups_) {
    group.taken = group.graded && taken < wanted;
    if (!group.taken) continue;
    unknown_.add(group.samples, prompts_.prompts[static_cast<size_t>(group.prompt)].row);
    for (rl::Trajectory& trajectory : trajectories(group, taken))
      sampled.rollout.trajectories.push_back(std::move(trajectory));
    ++taken;
  }
  sampled.gates = {
      .rounds = 1, .sampled = wanted + dropped_, .dropped = dropped_, .prompts_used = wanted, .group_rewards = {}};
  sampled.rollout.report = rl::summarize(sampled.rollout.trajectories);
  unknown_.write_to(sampled.rollout.report);
  sampled.rollout.report.rollout_ms = sampling.ms();
  older_tokens_ = mask_older(sampled.rollout.trajectories, sampled.version->policy.version, options_.partial.mask_old);
  judge_samples(sampled, options_);
  return sampled;
}

int64_t PartialRollouts::finish(const SampledRollout& /*sampled*/) {
  std::erase_if(groups_, [](const Group& group) { return group.taken; });
  return position_ - run_.data_position();
}

std::set<int64_t> PartialRollouts::drawn_by() const {
  std::set<int64_t> versions;
  for (const Group& group : groups_) add_drawn_by(group.samples, versions);
  return versions;
}

OrderedJson PartialRollouts::metrics() const {
  return {{"partial/groups_under_way", groups_.size()}, {"partial/older_tokens", older_tokens_}};
}

}  // namespace lockstep::recipes
