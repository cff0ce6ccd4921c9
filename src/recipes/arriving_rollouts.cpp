#include "recipes/arriving_rollouts.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "recipes/pending_samples.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kArrivals = "arrivals";
// How long the sampling thread works before it looks whether somebody wants something of it.
constexpr auto kTurn = std::chrono::milliseconds(20);

int64_t oldest_version(const rl::FinishedGroup& group) {
  int64_t oldest = group.samples.front().sample.versions.front();
  for (const rl::GradedSample& sample : group.samples)
    for (const int64_t version : sample.sample.versions) oldest = std::min(oldest, version);
  return oldest;
}

bool has_several_versions(const rl::GradedSample& graded) {
  return std::ranges::any_of(graded.sample.versions,
                             [&](int64_t version) { return version != graded.sample.versions.front(); });
}

}  // namespace

ArrivingRollouts::ArrivingRollouts(const RlOptions& options, const PromptSet& prompts, RolloutSampling& sampling,
                                   const rl::RlParts& parts, TrainingRun& run, RunProgress& progress)
    : options_(options),
      prompts_(prompts),
      sampling_(sampling),
      parts_(parts),
      run_(run),
      progress_(progress),
      batch_(options.rollout_batch_size),
      concurrent_(std::max<int64_t>(
          1, options.async.max_concurrent_samples.value_or(batch_ * options.n_samples) / options.n_samples)),
      position_(run.data_position()),
      trained_(run.iteration()) {
  restore();
  run_.keep(kArrivals, [this] { return kept(); });
}

ArrivingRollouts::~ArrivingRollouts() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

rl::GroupRequest ArrivingRollouts::request(const Submission& submission) const {
  const auto prompt = static_cast<size_t>(submission.prompt);
  return {.number = submission.number,
          .prompt = submission.prompt,
          .asked = prompts_.prompts[prompt],
          .row = prompts_.rows[prompt]};
}

// --- Checkpoints ---

KeptPart ArrivingRollouts::kept() const {
  const std::lock_guard lock(mutex_);
  Json begun = Json::array(), ready = Json::array();
  const auto add = [&](const Submission& submission) {
    begun.push_back({{"number", submission.number}, {"prompt", submission.prompt}});
  };
  std::ranges::for_each(running_, add);
  std::ranges::for_each(again_, add);
  const auto add_ready = [&](const rl::FinishedGroup& group) {
    std::map<rl::SampleKey, rl::GradedSample> samples;
    for (const rl::GradedSample& sample : group.samples)
      samples[{.rollout = group.request.number, .row = group.request.asked.row, .sample = sample.sample.index}] =
          sample;
    ready.push_back({{"number", group.request.number},
                     {"prompt", group.request.prompt},
                     {"samples", pending_samples_json(samples)}});
  };
  std::ranges::for_each(taken_, add_ready);
  std::ranges::for_each(ready_, add_ready);
  return {.json = {{"next_number", next_number_},
                   {"position", position_},
                   {"begun", std::move(begun)},
                   {"ready", std::move(ready)}}};
}

void ArrivingRollouts::restore() {
  const auto part = run_.resumed_part(kArrivals);
  if (!part) return;
  const std::string where = "parts/arrivals.json";
  const JsonObject object(part->json, where);
  const auto submission = [&](const Json& json) {
    const JsonObject entry(json, where);
    const int64_t prompt = entry.integer("prompt");
    if (prompt < 0 || prompt >= static_cast<int64_t>(prompts_.prompts.size()))
      throw FormatError({.what = "a group is of a prompt that there is not", .where = where});
    return Submission{.number = static_cast<uint32_t>(entry.integer("number")), .prompt = prompt};
  };
  next_number_ = static_cast<uint32_t>(object.integer("next_number"));
  position_ = object.integer("position");
  for (const Json& entry : object.value("begun")) again_.push_back(submission(entry));
  for (const Json& entry : object.value("ready")) {
    const Submission of = submission(entry);
    rl::GradedSamples samples;
    restore_pending_samples(entry.at("samples"), where, samples);
    rl::FinishedGroup group{.request = request(of), .samples = {}};
    for (auto& [key, sample] : samples.all()) group.samples.push_back(sample);
    if (static_cast<int64_t>(group.samples.size()) != options_.n_samples)
      throw FormatError({.what = "a finished group lacks samples", .where = where});
    ready_.push_back(std::move(group));
  }
}

// --- The sampling thread ---

void ArrivingRollouts::run() {
  try {
    sample();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    paused_ = true;
  }
  changed_.notify_all();
}

void ArrivingRollouts::sample() {
  rl::GroupsInFlight flight(parts_.sampler, parts_.reward, {.sampling = sampling_.params(), .n = options_.n_samples},
                            parts_.sampler.capabilities().follow, parts_.tokenizer);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (pausing_) {
      lock.unlock();
      std::vector<rl::FinishedGroup> graded = flight.finish_grading([this] { return stopping_.load(); });
      lock.lock();
      for (rl::FinishedGroup& group : graded) accept(std::move(group));
      paused_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return stopping_ || !pausing_; });
      paused_ = false;
      continue;
    }
    const std::vector<Submission> begin = due();
    if (begin.empty() && flight.size() == 0) {
      changed_.wait_for(lock, kTurn);
      continue;
    }
    lock.unlock();
    for (const Submission& submission : begin) {
      const versions::Pin newest = parts_.store.pin(lora::kActor);
      flight.submit(request(submission), newest.version()->policy);
    }
    std::vector<rl::FinishedGroup> finished = flight.wait(std::chrono::steady_clock::now() + kTurn);
    lock.lock();
    for (rl::FinishedGroup& group : finished) accept(std::move(group));
    if (!finished.empty()) changed_.notify_all();
  }
}

std::vector<ArrivingRollouts::Submission> ArrivingRollouts::due() {
  const int64_t capacity = arrival_capacity(options_.async, {.batch = batch_,
                                                             .trained = trained_,
                                                             .running = static_cast<int64_t>(running_.size()),
                                                             .ready = static_cast<int64_t>(ready_.size()),
                                                             .taken = static_cast<int64_t>(taken_.size()),
                                                             .concurrent = concurrent_});
  std::vector<Submission> begin;
  for (int64_t i = 0; i < capacity; ++i) {
    if (!again_.empty()) {
      begin.push_back(again_.front());
      again_.pop_front();
    } else {
      begin.push_back({.number = next_number_++, .prompt = sampling_.order().rows(position_++, 0, 1).front()});
    }
    running_.push_back(begin.back());
  }
  return begin;
}

void ArrivingRollouts::accept(rl::FinishedGroup group) {
  const std::vector<rl::Trajectory> trajectories = rl::trajectories_of(group, 0, {});
  const rl::GatePlan& gates = sampling_.gates();
  const auto unknown = std::ranges::find_if(group.samples, [](const auto& sample) { return !sample.score.value; });
  if (unknown != group.samples.end() && options_.on_reward_failure == rl::RewardFailure::stop)
    throw DataError({.what = "a sample's reward is unknown",
                     .where = "group " + std::to_string(group.request.number) + ": " + unknown->score.failure,
                     .attempt = "mend the reward, or leave out such samples (RlOptions::on_reward_failure)"});
  // Only now: until here a checkpoint draws the group again.
  std::erase_if(running_, [&](const Submission& other) { return other.number == group.request.number; });
  if ((gates.need_spread && !rl::has_spread(trajectories)) || (gates.need_rewards && unknown != group.samples.end())) {
    ++rejected_;
    unknown_.add(group.samples, group.request.asked.row);
  } else {
    ready_.push_back(std::move(group));
  }
}

// --- The thread of the run ---

void ArrivingRollouts::drop_stale() {
  if (!options_.async.max_staleness) return;
  const int64_t oldest = run_.version() - *options_.async.max_staleness;
  std::erase_if(ready_, [&](const rl::FinishedGroup& group) {
    if (oldest_version(group) >= oldest) return false;
    ++stale_;
    if (options_.async.retry_stale) again_.push_back({.number = next_number_++, .prompt = group.request.prompt});
    return true;
  });
}

// Groups that were judged since the last rollout was taken. There are no rounds here: a rollout's worth of groups is
// one.
void ArrivingRollouts::require_passing() const {
  const rl::GatePlan& gates = sampling_.gates();
  const auto passed = static_cast<int64_t>(ready_.size());
  const int64_t judged = passed + rejected_;
  if (rejected_ == 0 || passed >= batch_ || judged < gates.max_rounds * batch_) return;
  rl::throw_too_few_groups(gates, {.rounds = gates.max_rounds, .sampled = judged}, passed);
}

void ArrivingRollouts::wait(std::unique_lock<std::mutex>& lock, int64_t rollout, const std::function<bool()>& done) {
  constexpr auto kPause = std::chrono::milliseconds(100);
  while (!changed_.wait_for(lock, kPause, done)) {
    const auto ready = std::min(static_cast<int64_t>(ready_.size()), batch_);
    lock.unlock();
    progress_.while_sampling();
    progress_.report(rollout, "sampling", ready * options_.n_samples, batch_ * options_.n_samples);
    lock.lock();
  }
}

SampledRollout ArrivingRollouts::next(int64_t rollout) {
  const Stopwatch waiting;
  SampledRollout sampled;
  sampled.exact_logprobs = parts_.sampler.capabilities().exact_logprobs;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  pausing_ = false;
  changed_.notify_all();
  wait(lock, rollout, [this] {
    drop_stale();  // groups that began early may finish while others are waited for
    if (!failure_) require_passing();
    return static_cast<int64_t>(ready_.size()) >= batch_ || failure_;
  });
  if (static_cast<int64_t>(ready_.size()) < batch_) std::rethrow_exception(failure_);
  followed_ = 0;
  rl::UnknownRewards unknown = std::exchange(unknown_, {});
  for (int64_t group = 0; group < batch_; ++group) {
    const rl::FinishedGroup& taken = taken_.emplace_back(std::move(ready_.front()));
    ready_.pop_front();
    unknown.add(taken.samples, taken.request.asked.row);
    for (const rl::GradedSample& sample : taken.samples) followed_ += has_several_versions(sample) ? 1 : 0;
    for (rl::Trajectory& trajectory :
         rl::trajectories_of(taken, group, {parts_.tokenizer, sampling_.params().stop_token_ids}))
      sampled.rollout.trajectories.push_back(std::move(trajectory));
  }
  sampled.gates = {.rounds = 1,
                   .sampled = batch_ + rejected_,
                   .dropped = std::exchange(rejected_, 0),
                   .prompts_used = batch_,
                   .group_rewards = {}};
  wait_ms_ = waiting.ms();
  lock.unlock();
  changed_.notify_all();
  sampled.rollout.report = rl::summarize(sampled.rollout.trajectories);
  unknown.write_to(sampled.rollout.report);
  sampled.rollout.report.rollout_ms = wait_ms_;
  judge_samples(sampled, options_);
  return sampled;
}

int64_t ArrivingRollouts::finish(const SampledRollout& sampled) {
  const std::lock_guard lock(mutex_);
  taken_.clear();
  ++trained_;
  changed_.notify_all();
  return sampled.gates.prompts_used;
}

void ArrivingRollouts::rest() {
  if (!thread_.joinable()) return;  // nothing has begun
  std::unique_lock lock(mutex_);
  pausing_ = true;
  changed_.notify_all();
  wait(lock, trained_, [this] { return paused_; });
}

std::set<int64_t> ArrivingRollouts::drawn_by() const {
  const std::lock_guard lock(mutex_);
  std::set<int64_t> versions;
  for (const rl::FinishedGroup& group : taken_) add_drawn_by(group.samples, versions);
  for (const rl::FinishedGroup& group : ready_) add_drawn_by(group.samples, versions);
  return versions;
}

OrderedJson ArrivingRollouts::metrics() const {
  const std::lock_guard lock(mutex_);
  return {{"async/ready_groups", ready_.size()},
          {"async/running_groups", running_.size()},
          {"async/stale_groups", stale_},
          {"async/followed_samples", followed_},
          {"async/wait_ms", wait_ms_}};
}

}  // namespace lockstep::recipes
