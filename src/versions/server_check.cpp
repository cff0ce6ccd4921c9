#include "versions/server_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <utility>

#include "core/random.h"
#include "lora/init.h"
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

// The adapter with B = 0 but for the modules of `leaf`, where it is `size` times random signs over what scale and rank
// make of it.
lora::AdapterVersion probe_adapter(const lora::AdapterVersion& like, const std::string& leaf, double size,
                                   Stream& stream) {
  constexpr uint64_t kSeed = 7;
  const lora::AdapterLayout& layout = *like.layout;
  Buffer host = lora::initial_weights(layout, kSeed);
  for (const lora::Pair& pair : layout.pairs) {
    const double value = size / (pair.scale * std::sqrt(static_cast<double>(pair.rank)));
    for (const lora::Module& module : pair.modules) {
      if (module.leaf != leaf) continue;
      const int64_t first = module.out_begin - pair.out_begin;
      for (int64_t r = 0; r < pair.rank; ++r)
        for (int64_t o = 0; o < module.out; ++o) {
          const auto bits = philox(kSeed + 1, {static_cast<uint32_t>(module.site), static_cast<uint32_t>(r),
                                               static_cast<uint32_t>(first + o), 0});
          host.f32()[pair.b_offset + r * pair.out + first + o] = static_cast<float>((bits[0] & 1) ? value : -value);
        }
    }
  }
  lora::AdapterVersion probe{.policy = {"probe", 0}, .base = like.base, .layout = like.layout};
  probe.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(host), layout, stream));
  return probe;
}

}  // namespace

ServerCheck::ServerCheck(rollout::Fleet& fleet, ServerCheckOptions options, std::shared_ptr<const model::Model> model,
                         Stream& stream)
    : fleet_(fleet), options_(std::move(options)), model_(std::move(model)), stream_(stream) {}

std::string ServerCheck::where(size_t server) const {
  return fleet_.servers()[server].address.text();
}

std::vector<ServerCheck::Scored> ServerCheck::sample(size_t server, const std::string& adapter) {
  std::vector<Scored> samples;
  for (size_t i = 0; i < options_.prompts.size(); ++i) {
    rollout::SampleRequest request{
        .tokens = options_.prompts[i], .sampling = options_.sampling, .row = static_cast<uint32_t>(i)};
    request.sampling.logprob_temperature = options_.sampling.temperature;
    request.sampling.max_tokens = std::min(options_.tokens, options_.sampling.max_tokens);
    rollout::RemoteAnswer answer = fleet_.generate(server, request, adapter);
    Scored scored{.tokens = options_.prompts[i], .prompt = static_cast<int64_t>(options_.prompts[i].size())};
    const rollout::RemoteSample& made = answer.samples.front();
    scored.tokens.insert(scored.tokens.end(), made.tokens.begin(), made.tokens.end());
    scored.logprobs = made.logprobs;
    samples.push_back(std::move(scored));
  }
  return samples;
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

ServerCheck::Distance ServerCheck::distance(std::span<const Scored> samples, const lora::AdapterVersion* wanted,
                                            const lora::AdapterVersion* other) const {
  Logprobs said;
  for (const Scored& sample : samples) said.push_back(sample.logprobs);
  const float temperature = options_.sampling.temperature;
  const Logprobs ours = score(samples, wanted, temperature), others = score(samples, other, temperature);
  return {mean_difference(said, ours), mean_difference(said, others), mean_difference(ours, others)};
}

void ServerCheck::at_arrival(size_t server, const lora::AdapterVersion& like) {
  const std::vector<Scored> base = sample(server, "");
  const double noise = distance(base, nullptr, nullptr).from_wanted;
  Logprobs said;
  for (const Scored& sample : base) said.push_back(sample.logprobs);
  const double from_raw = mean_difference(said, score(base, nullptr, 1));
  if (!(noise <= options_.max_noise) || (options_.sampling.temperature != 1 && from_raw < noise))
    throw ServerFault({.what = "a server's log-probs of the base are not the trainer's",
                       .where = where(server),
                       .got = fmt::format("a mean difference of {:.4g}", noise),
                       .wanted = fmt::format("at most {:g}, and less than the {:.4g} from log-probs at temperature 1",
                                             options_.max_noise, from_raw),
                       .attempt = "the same model on both sides; log-probs of logits / temperature: vLLM's "
                                  "--logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"});
  report_.noise = std::max(report_.noise, noise);
  for (const std::string& leaf : like.layout->target_leaves) probe(server, like, leaf, base);
}

void ServerCheck::probe(size_t server, const lora::AdapterVersion& like, const std::string& leaf,
                        std::span<const Scored> base) {
  constexpr double kFirst = 0.5, kClear = 0.3;
  constexpr int kDoublings = 6;
  // As large as it takes for our own forward to show it.
  double size = kFirst;
  lora::AdapterVersion adapter = probe_adapter(like, leaf, size, stream_);
  const double wanted = std::max(kTimesNoise * report_.noise, 0.2);
  for (int i = 0; i < kDoublings && distance(base, nullptr, &adapter).between < wanted; ++i)
    adapter = probe_adapter(like, leaf, size *= 2, stream_);
  const std::string name = fmt::format("lockstep-probe-{:08x}-{}", std::random_device()(), probes_++);
  const fs::Path directory = std::filesystem::absolute(options_.directory / name);
  Distance found;
  const auto remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  };
  try {
    write_rollout_copy(directory, adapter, options_.copy, stream_);
    fleet_.load_at(server, {.policy = adapter.policy, .name = name, .directory = directory.string()});
    found = distance(sample(server, name), &adapter, nullptr);
  } catch (...) {
    remove();
    throw;
  }
  fleet_.unload_at(server, name);
  remove();
  if (found.from_wanted <= kClear * found.between + report_.noise) return;
  throw ServerFault(
      {.what = found.from_other < found.from_wanted ? "a server ignores the adapter of a module"
                                                    : "a server computes another adapter than it was given",
       .where = fmt::format("{}: {}", where(server), leaf),
       .got = fmt::format("{:.4g} from the adapter, {:.4g} from the base", found.from_wanted, found.from_other),
       .wanted = fmt::format("at most {:.4g} from the adapter", kClear * found.between + report_.noise),
       .attempt = "LoraConfig::target_modules that the server supports"});
}

void ServerCheck::at_sync(const Version& version) {
  if (!last_) last_ = version;
  if (last_ == version) return;
  const rollout::HeldAdapter* const held = fleet_.find(version->policy);
  bool conclusive = true;
  for (size_t i = 0; i < fleet_.servers().size(); ++i) {
    if (!fleet_.servers()[i].up) continue;
    std::vector<Scored> samples;
    try {
      samples = sample(i, held->name);
    } catch (const net::Unreachable& error) {
      fleet_.lost(i, error.fault().got);
      continue;
    }
    const Distance found = distance(samples, version.get(), last_.get());
    if (found.between <= kTimesNoise * report_.noise || found.between == 0) {
      conclusive = false;
      continue;
    }
    if (!(found.from_wanted < found.from_other))
      throw ServerFault(
          {.what = "a server goes on with an older adapter",
           .where = where(i),
           .got = fmt::format("{:.4g} from {}, {:.4g} from {}", found.from_wanted, lora::policy_text(version->policy),
                              found.from_other, lora::policy_text(last_->policy)),
           .wanted = "log-probs of the version that it says it has loaded"});
  }
  ++(conclusive ? report_.conclusive : report_.inconclusive);
  if (conclusive) last_ = version;
}

}  // namespace lockstep::versions
