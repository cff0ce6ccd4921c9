#include "recipes/training_snapshot.h"

#include <utility>

#include "checkpoint/new_files.h"
#include "checkpoint/peft_directory.h"
#include "lora/init.h"

namespace lockstep::recipes {

KeptPart moments_part(train::Trainer::State moments) {
  auto memory = std::make_shared<const train::Trainer::State>(std::move(moments));
  const auto tensor = [](const Buffer& buffer) {
    return ConstTensor(buffer.data(), DType::f32, {static_cast<int64_t>(buffer.bytes() / sizeof(float))});
  };
  return {.json = {{"optimizer_steps", memory->steps}},
          .tensors = {{"first_moment", tensor(memory->first_moment)}, {"second_moment", tensor(memory->second_moment)}},
          .memory = memory};
}

void TrainingSnapshot::add_policy(const std::string& name, const lora::AdapterVersion& adapter, int64_t version,
                                  const Base& base) {
  const lora::AdapterLayout& layout = *adapter.layout;
  weights_.push_back({adapter.layout, lora::host_weights(*adapter.weights, layout, *base.stream)});
  checkpoint_.policies.push_back({.name = name,
                                  .config = lora::saved_config(layout),
                                  .target_modules = layout.config.target_modules,
                                  .base_model_name = base.name,
                                  .adapter = {},
                                  .metadata = {.iteration = iteration(),
                                               .version = version,
                                               .rank = layout.config.rank,
                                               .alpha = layout.config.alpha,
                                               .lora_type = lora::lora_type_name(layout.config.type),
                                               .target_modules = layout.config.target_modules,
                                               .base_fingerprint = base.fingerprint,
                                               .weights_fingerprint = base.weights_fingerprint,
                                               .init = lora::lora_init_name(layout.config.init)}});
}

// What the policies' tensors then point into.
std::vector<lora::ExportedTensors> TrainingSnapshot::order_weights() {
  std::vector<lora::ExportedTensors> exported;
  for (size_t i = 0; i < weights_.size(); ++i) {
    exported.push_back(lora::export_tensors(*weights_[i].layout, weights_[i].flat.f32()));
    weights_[i].flat = {};
    checkpoint_.policies[i].adapter = exported.back().tensors;
  }
  return exported;
}

void TrainingSnapshot::save(const fs::Path& directory) {
  const auto exported = order_weights();
  checkpoint::save_checkpoint(directory, checkpoint_);
  *this = TrainingSnapshot(iteration());
}

void TrainingSnapshot::save_policy(const fs::Path& directory) {
  const auto exported = order_weights();
  const checkpoint::SavedPolicy& policy = checkpoint_.policies.front();
  fs::write_directory_atomic(directory, [&](const fs::Path& fresh) {
    const checkpoint::NewFiles files(fresh);
    checkpoint::write_peft_files(files, "", policy.config, policy.target_modules, policy.base_model_name,
                                 policy.adapter);
    files.write(checkpoint::kAdapterMetadataFile, checkpoint::adapter_metadata_text(policy.metadata));
  });
  *this = TrainingSnapshot(iteration());
}

void TrainingSnapshot::set_moments(train::Trainer::State moments) {
  KeptPart part = moments_part(std::move(moments));
  checkpoint_.state.tensors = std::move(part.tensors);
  memory_.push_back(std::move(part.memory));
}

void TrainingSnapshot::add_part(const std::string& name, KeptPart part) {
  checkpoint_.state.parts.insert_or_assign(name, checkpoint::StatePart{std::move(part.json), std::move(part.tensors)});
  if (part.memory != nullptr) memory_.push_back(std::move(part.memory));
}

}  // namespace lockstep::recipes
