// Adapters of the embedded model, as a training run saves them.
#pragma once

#include <string>

#include "checkpoint/peft_directory.h"
#include "core/random.h"
#include "recipes/adapter.h"
#include "server/protocol_fixture.h"
#include "support/temp_directory.h"

namespace lockstep::server::testing {

// Its values follow from `seed`; another seed gives other texts.
inline std::string write_adapter(const fs::Path& directory, uint64_t seed, int64_t rank = 4) {
  const recipes::Base& base = Model::get().base;
  lora::LoraConfig config;
  config.rank = rank;
  config.alpha = 8;
  config.type = lora::LoraType::canonical;
  config.target_modules = {"all-linear"};
  const lora::AdapterVersion adapter = load::fresh_adapter(config, base, 1);
  Buffer values(adapter.weights->bytes());
  for (int64_t i = 0; i < adapter.layout->num_floats; ++i)
    values.f32()[i] = uniform01(philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 0.5f;
  const lora::ExportedTensors tensors = lora::export_tensors(*adapter.layout, values.f32());
  checkpoint::write_peft_directory(directory, config, adapter.layout->target_leaves, base.name, tensors.tensors);
  return directory.string();
}

}  // namespace lockstep::server::testing
