#include "versions/server_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <utility>

#include "core/hash.h"
#include "core/random.h"
#include "model/adapter_extras.h"
#include "model/train_pass.h"

namespace lockstep::versions {

namespace {

// Adds up |a - b| over the rows of all samples.
double mean_difference(std::span<const std::vector<float>> a, std::span<const std::vector<float>> b) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t t = 0; t < a[i].size(); ++t, ++count) {
      const double difference = std::abs(static_cast<double>(a[i][t]) - static_cast<double>(b[i][t]));
      // -infinity on one side is as far as it gets.
      sum += std::isfinite(difference) ? difference : 100;
    }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// The adapter without an update but for the modules of `leaf` (empty: all), where B gets `size` times random signs over
// what scale and rank make of it. What it trains beside factors stays.
lora::AdapterVersion probe_adapter(const lora::AdapterVersion& like, const std::string& leaf, double size,
                                   const model::Model& model, Stream& stream) {
  constexpr uint64_t kSeed = 7;
  const lora::AdapterLayout& layout = *like.layout;
  Buffer host = lora::host_weights(*like.weights, layout, stream);
  float* const weights = host.f32();
  for (const lora::Pair& pair : layout.pairs) {
    float* const b = weights + pair.b_offset;
    if (pair.b0_offset == lora::kAbsent) {
      std::fill_n(b, pair.rank * pair.out, 0.0F);
    } else {  // what is subtracted is where it begins
      std::copy_n(weights + pair.a0_offset, pair.in * pair.rank, weights + pair.a_offset);
      std::copy_n(weights + pair.b0_offset, pair.rank * pair.out, b);
    }
    const double value = size / (pair.scale * std::sqrt(static_cast<double>(pair.rank)));
    for (const lora::Module& module : pair.modules) {
      if (!leaf.empty() && module.leaf != leaf) continue;
      const int64_t first = module.out_begin - pair.out_begin;
      for (int64_t r = 0; r < pair.rank; ++r)
        for (int64_t o = 0; o < module.out; ++o) {
          const auto bits = philox(kSeed, {static_cast<uint32_t>(module.site), static_cast<uint32_t>(r),
                                           static_cast<uint32_t>(first + o), 0});
          b[r * pair.out + first + o] += static_cast<float>((bits[0] & 1) ? value : -value);
        }
    }
  }
  lora::AdapterVersion probe{.policy = {"probe", 0}, .base = like.base, .layout = like.layout};
  probe.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(host), layout, stream));
  return model::with_extras(std::move(probe), model.weights(), stream);
}

}  // namespace

ServerCheck::ServerCheck(rollout::Fleet& fleet, ServerCheckOptions options, std::shared_ptr<const model::Model> model,
                         Stream& stream)
    : fleet_(fleet), options_(std::move(options)), model_(std::move(model)), stream_(stream) {}

std::string ServerCheck::where(size_t server) const {
  return fleet_.servers()[server].address.text();
}

ServerCheck::Scored ServerCheck::sample_one(size_t server, const Asked& asked, size_t prompt,
                                            rollout::SamplingParams sampling) {
  sampling.logprob_temperature = sampling.temperature;
  // What these leave of log-probs is no policy's.
  sampling.top_p = 1, sampling.top_k = rollout::SamplingParams().top_k, sampling.min_p = 0;
  sampling.max_tokens = std::min(options_.tokens, sampling.max_tokens);
  const std::vector<int32_t>& tokens = options_.prompts[prompt];
  const rollout::SampleRequest request{
      .tokens = tokens, .sampling = std::move(sampling), .row = static_cast<uint32_t>(prompt), .policy = asked.policy};
  const rollout::RemoteAnswer answer = fleet_.generate(server, request, asked.name);
  Scored scored{.tokens = tokens, .prompt = static_cast<int64_t>(tokens.size())};
  const rollout::RemoteSample& made = answer.samples.front();
  scored.tokens.insert(scored.tokens.end(), made.tokens.begin(), made.tokens.end());
  scored.logprobs = made.logprobs;
  return scored;
}

std::vector<ServerCheck::Scored> ServerCheck::sample(size_t server, const Asked& asked) {
  std::vector<Scored> samples;
  for (size_t i = 0; i < options_.prompts.size(); ++i)
    samples.push_back(sample_one(server, asked, i, options_.sampling));
  return samples;
}

std::optional<rollout::LogprobKind> ServerCheck::measured_logprobs(size_t server) {
  constexpr float kTemperature = 0.7F;
  rollout::SamplingParams sampling{.temperature = kTemperature, .max_tokens = options_.tokens};
  const std::vector<Scored> one = {sample_one(server, {}, 0, sampling)};
  const Logprobs said = {one.front().logprobs}, after = score(one, nullptr, kTemperature),
                 before = score(one, nullptr, 1);
  const double tempered = mean_difference(said, after), raw = mean_difference(said, before);
  if (!(std::min(tempered, raw) <= options_.max_noise))
    throw ServerFault(
        {.what = "a server's log-probs of the base are not the trainer's",
         .where = where(server),
         .got = fmt::format("a mean difference of {:.4g} after the temperature, {:.4g} before it", tempered, raw),
         .wanted = fmt::format("at most {:g} of one of them", options_.max_noise),
         .attempt = "the same model on both sides"});
  if (mean_difference(after, before) <= kTimesNoise * std::min(tempered, raw)) return std::nullopt;
  return raw < tempered ? rollout::LogprobKind::raw : rollout::LogprobKind::tempered;
}

ServerCheck::Logprobs ServerCheck::score(std::span<const Scored> samples, const lora::AdapterVersion* adapter,
                                         float temperature) const {
  Logprobs all;
  for (const Scored& sample : samples) {
    const std::vector<int32_t> inputs(sample.tokens.begin(), sample.tokens.end() - 1);
    std::vector<int32_t> targets(sample.tokens.begin() + 1, sample.tokens.end());
    std::fill_n(targets.begin(), sample.prompt - 1, -1);
    const std::vector<int64_t> begins = {0, static_cast<int64_t>(inputs.size())};
    model::TrainPass pass(*model_, stream_);
    const model::HeadOutputs out = pass.score({.tokens = inputs, .sequence_begin = begins, .targets = targets}, adapter,
                                              {.inv_temperature = 1.0F / temperature});
    all.emplace_back(out.logprob_T.f32() + sample.prompt - 1, out.logprob_T.f32() + inputs.size());
  }
  return all;
}

// Of what the server reports.
float ServerCheck::logprob_temperature(size_t server) const {
  const bool is_raw = options_.any_logprobs && fleet_.servers()[server].facts.logprobs == rollout::LogprobKind::raw;
  return is_raw ? 1 : options_.sampling.temperature;
}

ServerCheck::Distance ServerCheck::distance(size_t server, std::span<const Scored> samples,
                                            const lora::AdapterVersion* wanted,
                                            const lora::AdapterVersion* other) const {
  Logprobs said;
  for (const Scored& sample : samples) said.push_back(sample.logprobs);
  const float temperature = logprob_temperature(server);
  const Logprobs ours = score(samples, wanted, temperature), others = score(samples, other, temperature);
  return {mean_difference(said, ours), mean_difference(said, others), mean_difference(ours, others)};
}

bool ServerCheck::says_nothing(const Distance& distance) const {
  return distance.between <= kTimesNoise * report_.noise || distance.between == 0;
}

void ServerCheck::compare_base(size_t server, std::span<const Scored> base) {
  const double noise = distance(server, base, nullptr, nullptr).from_wanted;
  Logprobs said;
  for (const Scored& sample : base) said.push_back(sample.logprobs);
  const Logprobs before = score(base, nullptr, 1);
  const double from_raw = mean_difference(said, before),
               between = mean_difference(before, score(base, nullptr, logprob_temperature(server)));
  const bool is_raw = from_raw < noise && between > kTimesNoise * from_raw;
  if (!(noise <= options_.max_noise) || is_raw)
    throw ServerFault({.what = "a server's log-probs of the base are not the trainer's",
                       .where = where(server),
                       .got = fmt::format("a mean difference of {:.4g}", noise),
                       .wanted = fmt::format("at most {:g}, and less than the {:.4g} from log-probs at temperature 1",
                                             options_.max_noise, from_raw),
                       .attempt = "the same model on both sides; log-probs of logits / temperature: vLLM's "
                                  "--logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"});
  report_.noise = std::max(report_.noise, noise);
}

// Of a server that has loaded it after the sync: nearer to the version than to the base and to the version before.
void ServerCheck::compare_newest(size_t server) {
  const rollout::HeldAdapter* const held = newest_ ? fleet_.find(newest_->policy) : nullptr;
  if (held == nullptr) return;
  const Version newest = newest_;
  std::vector<Version> others = {nullptr};
  if (previous_) others.push_back(previous_);
  const std::vector<Scored> samples = sample(server, {held->policy, held->name});
  for (const Version& other : others) {
    const Distance found = distance(server, samples, newest.get(), other.get());
    if (says_nothing(found) ? found.from_wanted <= options_.max_noise : found.from_wanted < found.from_other) continue;
    throw ServerFault(
        {.what = "a server does not compute the version that it was given",
         .where = where(server),
         .got = fmt::format("{:.4g} from {}, {:.4g} from {}", found.from_wanted, lora::policy_text(newest->policy),
                            found.from_other, other ? lora::policy_text(other->policy) : "the base"),
         .wanted = "log-probs of the version that it says it has loaded"});
  }
}

void ServerCheck::at_arrival(size_t server, const lora::AdapterVersion& like) {
  const bool replaces_base = options_.delivery == rollout::Delivery::weight_files;
  if (replaces_base && newest_) return compare_newest(server);
  const std::vector<Scored> base = sample(server, {});
  if (replaces_base) return probe(server, like, "", base);
  compare_base(server, base);
  for (const std::string& leaf : like.layout->target_leaves) probe(server, like, leaf, base);
  compare_newest(server);
}

void ServerCheck::probe(size_t server, const lora::AdapterVersion& like, const std::string& leaf,
                        std::span<const Scored> base) {
  constexpr double kFirst = 0.5, kClear = 0.3;
  constexpr int kDoublings = 6;
  // As large as it takes for our own forward to show it.
  double size = kFirst;
  lora::AdapterVersion adapter = probe_adapter(like, leaf, size, *model_, stream_);
  const double wanted = std::max(kTimesNoise * report_.noise, 0.2);
  for (int i = 0; i < kDoublings && distance(server, base, nullptr, &adapter).between < wanted; ++i)
    adapter = probe_adapter(like, leaf, size *= 2, *model_, stream_);
  const std::string name = fmt::format("lockstep-probe-{:08x}-{}", std::random_device()(), probes_++);
  const fs::Path directory = std::filesystem::absolute(options_.directory / name);
  const bool replaces_base = options_.delivery == rollout::Delivery::weight_files;
  Distance found;
  const auto remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  };
  try {
    rollout::HeldAdapter held{.policy = adapter.policy,
                              .name = replaces_base ? "" : name,
                              .directory = directory.string(),
                              .delivery = options_.delivery};
    options_.write(directory, adapter);
    if (options_.delivery == rollout::Delivery::adapter_tensors)
      held.tensors = std::make_shared<const std::string>(fs::read_file(directory / kPayloadFile));
    fleet_.load_at(server, held);
    found = distance(server, sample(server, {held.policy, held.name}), &adapter, nullptr);
  } catch (const net::Unreachable&) {
    remove();
    throw;  // the fleet has it unload the probe when it is back
  } catch (...) {
    if (!replaces_base) fleet_.unload_at(server, name);
    remove();
    throw;
  }
  if (!replaces_base) fleet_.unload_at(server, name);
  remove();
  if (found.from_wanted <= kClear * found.between + report_.noise) return;
  throw ServerFault(
      {.what = found.from_other < found.from_wanted ? "a server ignores the adapter of a module"
                                                    : "a server computes another adapter than it was given",
       .where = fmt::format("{}: {}", where(server), leaf.empty() ? "all modules" : leaf),
       .got = fmt::format("{:.4g} from the adapter, {:.4g} from the base", found.from_wanted, found.from_other),
       .wanted = fmt::format("at most {:.4g} from the adapter", kClear * found.between + report_.noise),
       .attempt = "LoraConfig::target_modules that the server supports, or RolloutEngineOptions::delivery as weights"});
}

// vLLM on a CPU hands linear layers to a library and keeps empty tensors in their place, whose checksums say nothing.
void ServerCheck::compare_checksums() {
  using Checksums = std::map<std::string, std::string>;
  const std::string empty = Sha256().hex();
  Checksums wanted = options_.delivery == rollout::Delivery::weight_files ? Checksums() : checksums_;
  std::vector<std::optional<Checksums>> all(fleet_.servers().size());
  fleet_.at_each([&](size_t i) { all[i] = fleet_.checksums(i); });
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    const Checksums& found = *all[i];
    if (wanted.empty()) wanted = found;
    const auto [ours, theirs] = std::ranges::mismatch(wanted, found);
    if (ours != wanted.end() || theirs != found.end())
      throw ServerFault({.what = "a server's weights are not what they should be, by its own checksums",
                         .where = where(i),
                         .got = theirs == found.end() ? ours->first + " is missing" : theirs->first,
                         .wanted = options_.delivery == rollout::Delivery::weight_files
                                       ? "the weights of the other servers"
                                       : "the base as it was before the first version"});
    report_.checksums = static_cast<int64_t>(found.size());
    report_.blind_checksums = std::ranges::count_if(found, [&](const auto& sum) { return sum.second == empty; });
  }
  checksums_ = std::move(wanted);
}

// Of every server that is up, drawn at all of them at once; nothing of one that is lost meanwhile.
std::vector<std::optional<std::vector<ServerCheck::Scored>>> ServerCheck::sample_each(const Asked& asked) {
  std::vector<std::optional<std::vector<Scored>>> all(fleet_.servers().size());
  fleet_.at_each([&](size_t i) { all[i] = sample(i, asked); }, true);
  for (size_t i = 0; i < all.size(); ++i)
    if (!fleet_.servers()[i].up) all[i].reset();
  return all;
}

// With weights the base was not compared: the first version is, and what is left is the noise.
void ServerCheck::compare_first(const Version& version) {
  const auto all = sample_each({});
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    const double noise = distance(i, *all[i], version.get(), nullptr).from_wanted;
    if (!(noise <= options_.max_noise))
      throw ServerFault({.what = "a server's log-probs of the first version are not the trainer's",
                         .where = where(i),
                         .got = fmt::format("a mean difference of {:.4g}", noise),
                         .wanted = fmt::format("at most {:g}", options_.max_noise)});
    report_.noise = std::max(report_.noise, noise);
  }
}

void ServerCheck::at_sync(const Version& version) {
  const rollout::Turns::Turn turn(fleet_.turns());
  newest_ = version;
  previous_ = last_;
  if (options_.equal_weights) compare_checksums();
  const bool is_first = !std::exchange(synced_, true);
  if (is_first && options_.delivery == rollout::Delivery::weight_files) {
    last_ = version;
    return compare_first(version);
  }
  const auto all = sample_each({version->policy, std::string(fleet_.find(version->policy)->name)});
  int64_t compared = 0, silent = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]) continue;
    const Distance found = distance(i, *all[i], version.get(), last_.get());
    ++compared;
    if (says_nothing(found)) {
      ++silent;
      continue;
    }
    if (!(found.from_wanted < found.from_other))
      throw ServerFault(
          {.what =
               last_ ? "a server goes on with an older adapter" : "a server does not use the adapter that it loaded",
           .where = where(i),
           .got = fmt::format("{:.4g} from {}, {:.4g} from {}", found.from_wanted, lora::policy_text(version->policy),
                              found.from_other, last_ ? lora::policy_text(last_->policy) : "the base"),
           .wanted = "log-probs of the version that it says it has loaded"});
  }
  if (compared == 0) return;  // all of them are looked at again
  const bool conclusive = silent == 0;
  // A first version that has learned nothing yet is the base.
  if (conclusive || !is_first) ++(conclusive ? report_.conclusive : report_.inconclusive);
  if (conclusive) last_ = version;
}

}  // namespace lockstep::versions
