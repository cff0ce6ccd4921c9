#include "recipes/training_snapshot.h"

#include <utility>

#include "checkpoint/new_files.h"
#include "checkpoint/peft_directory.h"
#include "lora/init.h"
#include "lora/tensor_reader.h"

namespace lockstep::recipes {

KeptPart moments_part(const train::Trainer& trainer, const std::string& name, SnapshotMemory& memory) {
  const auto moments = memory.moments(name);
  const int64_t steps = trainer.copy_moments(moments->first, moments->second);
  const auto tensor = [](const HostMirror& mirror) {
    const auto count = static_cast<int64_t>(mirror.memory().bytes() / sizeof(float));
    return ConstTensor(mirror.memory().data(), DType::f32, {count});
  };
  return {.json = {{"optimizer_steps", steps}},
          .tensors = {{"first_moment", tensor(moments->first)}, {"second_moment", tensor(moments->second)}},
          .memory = moments};
}

void TrainingSnapshot::add_policy(const std::string& name, const lora::AdapterVersion& adapter, int64_t version,
                                  const Base& base, SnapshotMemory& memory) {
  const lora::AdapterLayout& layout = *adapter.layout;
  const auto weights = memory.weights(name);
  // Behind these floats there may be a rounded copy, which is made again when an adapter is loaded.
  weights->copy(*adapter.weights, static_cast<size_t>(layout.num_floats) * sizeof(float), *base.stream);
  const auto reader = std::make_shared<lora::TensorReader>(layout, weights->memory().f32());
  memory_.push_back(weights);
  checkpoint_.policies.push_back({.name = name,
                                  .config = lora::saved_config(layout),
                                  .target_modules = layout.config.target_modules,
                                  .base_model_name = base.name,
                                  .adapter = reader->tensors(),
                                  .read = [reader](size_t tensor) { return reader->read(tensor); },
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

void TrainingSnapshot::save(const fs::Path& directory) {
  checkpoint::save_checkpoint(directory, checkpoint_);
  *this = TrainingSnapshot(iteration());
}

void TrainingSnapshot::save_policy(const fs::Path& directory) {
  const checkpoint::SavedPolicy& policy = checkpoint_.policies.front();
  fs::write_directory_atomic(directory, [&](const fs::Path& fresh) {
    const checkpoint::NewFiles files(fresh);
    checkpoint::write_peft_files(files, "", policy.config, policy.target_modules, policy.base_model_name,
                                 policy.adapter, policy.read);
    files.write(checkpoint::kAdapterMetadataFile, checkpoint::adapter_metadata_text(policy.metadata));
  });
  *this = TrainingSnapshot(iteration());
}

void TrainingSnapshot::set_moments(KeptPart moments) {
  checkpoint_.state.tensors = std::move(moments.tensors);
  memory_.push_back(std::move(moments.memory));
}

void TrainingSnapshot::add_part(const std::string& name, KeptPart part) {
  checkpoint_.state.parts.insert_or_assign(name, checkpoint::StatePart{std::move(part.json), std::move(part.tensors)});
  if (part.memory != nullptr) memory_.push_back(std::move(part.memory));
}

}  // namespace lockstep::recipes
