#include "recipes/pending_samples.h"

#include <limits>

#include "checkpoint/train_state.h"

namespace lockstep::recipes {

namespace {

template <class T>
std::vector<T> pending_numbers(const JsonObject& object, const char* key) {
  std::vector<T> out;
  for (const Json& value : object.value(key)) {
    if (!value.is_number())
      throw FormatError({.what = "a pending sample has something else than numbers",
                         .where = object.where() + ": " + key,
                         .got = json_text(value)});
    out.push_back(value.get<T>());
  }
  return out;
}

Json score_parts(const std::vector<rl::ScorePart>& parts) {
  Json list = Json::array();
  for (const rl::ScorePart& part : parts)
    list.push_back({{"name", part.name}, {"value", part.value ? Json(*part.value) : Json(nullptr)}});
  return list;
}

std::vector<rl::ScorePart> score_parts(const JsonObject& object) {
  std::vector<rl::ScorePart> parts;
  for (const Json& entry : object.value("parts")) {
    const JsonObject part(entry, object.where() + ": parts");
    parts.push_back(
        {.name = part.string("name"),
         .value = part.has("value") ? std::optional(static_cast<float>(part.number("value"))) : std::nullopt});
  }
  return parts;
}

}  // namespace

Json pending_samples_json(const std::map<rl::SampleKey, rl::GradedSample>& samples) {
  Json list = Json::array();
  for (const auto& [key, graded] : samples)
    list.push_back({{"rollout", key.rollout},
                    {"row", key.row},
                    {"sample", key.sample},
                    {"tokens", graded.sample.tokens},
                    {"logprobs", graded.sample.logprobs},
                    {"versions", graded.sample.versions},
                    {"finish", rollout::finish_reason_name(graded.sample.finish)},
                    {"reward", graded.score.value ? Json(*graded.score.value) : Json(nullptr)},
                    {"failure", graded.score.failure},
                    {"parts", score_parts(graded.score.parts)}});
  return list;
}

void restore_pending_samples(const Json& json, const std::string& where, rl::GradedSamples& samples) {
  constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();
  if (!json.is_array()) throw FormatError({.what = "pending samples are no list", .where = where});
  for (const Json& entry : json) {
    const JsonObject object(entry, where);
    const int64_t rollout = object.integer("rollout"), row = object.integer("row");
    rl::GradedSample graded{
        .sample = {.tokens = pending_numbers<int32_t>(object, "tokens"),
                   .logprobs = pending_numbers<float>(object, "logprobs"),
                   .versions = pending_numbers<int64_t>(object, "versions"),
                   .finish = object.string("finish") == rollout::finish_reason_name(rollout::FinishReason::stop)
                                 ? rollout::FinishReason::stop
                                 : rollout::FinishReason::length},
        .score = {
            .value = object.has("reward") ? std::optional(static_cast<float>(object.number("reward"))) : std::nullopt,
            .parts = score_parts(object),
            .failure = object.string("failure", "")}};
    graded.sample.index = object.integer("sample");
    const size_t size = graded.sample.tokens.size();
    if (rollout < 0 || rollout > kMax || row < 0 || row > kMax || graded.sample.logprobs.size() != size ||
        graded.sample.versions.size() != size)
      throw FormatError({.what = "a pending sample has impossible numbers", .where = where, .got = json_text(entry)});
    samples.add(
        {.rollout = static_cast<uint32_t>(rollout), .row = static_cast<uint32_t>(row), .sample = graded.sample.index},
        std::move(graded));
  }
}

void add_drawn_by(std::span<const rl::GradedSample> samples, std::set<int64_t>& versions) {
  for (const rl::GradedSample& graded : samples)
    versions.insert(graded.sample.versions.begin(), graded.sample.versions.end());
}

void keep_pending_samples(TrainingRun& run, rl::GradedSamples& samples) {
  if (const auto part = run.resumed_part(checkpoint::kPendingSamplesPart))
    restore_pending_samples(part->json.at("samples"), "parts/pending_samples.json", samples);
  run.keep(checkpoint::kPendingSamplesPart, [&samples] {
    const auto all = samples.all();
    return KeptPart{.json = all.empty() ? Json() : Json{{"samples", pending_samples_json(all)}}};
  });
}

}  // namespace lockstep::recipes
