// What a recipe adds to the checkpoints of a run: parts, policies and second trainers.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "recipes/training_run.h"

namespace lockstep::recipes {

namespace {

std::string numbered(const std::string& name, size_t number) {
  return fmt::format("{}.{}", name, number);
}

// Of what parts say; their tensors change with the iteration alone.
class PartsDigest {
 public:
  void add(const std::string& name, const Json& json) {
    if (!json.is_null()) hash_.update(name + json_text(json));
  }
  std::string hex() { return hash_.hex(); }

 private:
  Sha256 hash_;
};

}  // namespace

void TrainingRun::keep(const std::string& name, std::function<KeptPart()> part) {
  parts_[name] = std::move(part);
}

std::optional<checkpoint::StatePart> TrainingRun::resumed_part(const std::string& name) const {
  if (!resumed_ || resumed_->checkpoint == nullptr) return std::nullopt;
  const auto& parts = resumed_->checkpoint->state().parts;
  const auto found = parts.find(name);
  return found == parts.end() ? std::nullopt : std::optional(found->second);
}

void TrainingRun::keep_policy(const std::string& name, std::function<lora::AdapterVersion()> adapter) {
  policies_[name] = std::move(adapter);
}

std::optional<lora::AdapterVersion> TrainingRun::resumed_policy(const std::string& name) const {
  if (!resumed_ || resumed_->checkpoint == nullptr) return std::nullopt;
  const std::vector<std::string> names = resumed_->checkpoint->policy_names();
  if (std::ranges::find(names, name) == names.end()) return std::nullopt;
  return loaded_policy(*resumed_->checkpoint, name, base_, control_);
}

void TrainingRun::keep_policies(const std::string& name, std::function<std::vector<lora::AdapterVersion>()> adapters) {
  several_policies_[name] = std::move(adapters);
}

std::vector<lora::AdapterVersion> TrainingRun::resumed_policies(const std::string& name) const {
  std::vector<lora::AdapterVersion> adapters;
  while (auto adapter = resumed_policy(numbered(name, adapters.size()))) adapters.push_back(*std::move(adapter));
  return adapters;
}

void TrainingRun::keep_trainer(const std::string& name, train::Trainer& trainer) {
  const std::string part = name + ".optimizer";
  if (const auto state = resumed_part(part); state && save_.load_optimizer) {
    const std::string where = resumed_->where + ": " + part;
    Moments moments = loaded_moments(state->tensors, trainer.layout().num_trained, where);
    trainer.restore(JsonObject(state->json, where).integer("optimizer_steps"), std::move(moments.first),
                    std::move(moments.second));
  }
  beside_.emplace_back(&trainer, trainer.steps());
  keep_policy(name, [&trainer] { return trainer.adapter(); });
  keep(part, [this, &trainer, name] { return moments_part(trainer, name, snapshot_memory_); });
}

// Policies after the parts: keep_policies() says why.
void TrainingRun::add_parts(TrainingSnapshot& snapshot) {
  PartsDigest digest;
  for (const auto& [name, part] : parts_) {
    KeptPart kept = part();
    digest.add(name, kept.json);
    if (!kept.json.is_null()) snapshot.add_part(name, std::move(kept));
  }
  saved_parts_ = digest.hex();
  const auto add = [&](const std::string& name, const lora::AdapterVersion& version) {
    // One that nobody published has no number of its own.
    snapshot.add_policy(name, version, version.policy.is_base() ? iteration_ : version.policy.version, base_,
                        snapshot_memory_);
  };
  for (const auto& [name, adapter] : policies_) add(name, adapter());
  for (const auto& [name, adapters] : several_policies_) {
    const std::vector<lora::AdapterVersion> all = adapters();
    for (size_t i = 0; i < all.size(); ++i) add(numbered(name, i), all[i]);
  }
}

std::string TrainingRun::parts_digest() const {
  PartsDigest digest;
  for (const auto& [name, part] : parts_) digest.add(name, part().json);
  return digest.hex();
}

void TrainingRun::leave_resumed() {
  if (!resumed_ || resumed_->checkpoint == nullptr) return;
  PartsDigest digest;
  for (const auto& [name, part] : resumed_->checkpoint->state().parts) digest.add(name, part.json);
  saved_parts_ = digest.hex();
  resumed_->checkpoint.reset();
}

}  // namespace lockstep::recipes
