// A temporary directory with models and adapters.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/random.h"
#include "load/adapter.h"
#include "support/temp_directory.h"

namespace lockstep::testing {

inline const std::string kTiny = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";
inline const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

inline load::Base loaded(const std::string& model, Stream& stream) {
  load::Base base = load::read_base_config(model);
  load::load_weights(base, stream, [](double) {});
  return base;
}

class Loading : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  // `model` with one file replaced.
  std::string model_with(const std::string& model, const std::string& file, const Json& json) {
    const fs::Path copy = dir_.path() / ("model" + std::to_string(num_models_++));
    std::filesystem::create_directories(copy);
    for (const auto& entry : std::filesystem::directory_iterator(model))
      if (entry.is_regular_file() && entry.path().filename() != file)
        std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), copy / entry.path().filename());
    fs::write_file_atomic(copy / file, json.dump());
    return copy.string();
  }

  // An adapter of `model` as a training run saves it, with values that are not zero; returns its directory.
  std::string adapter_of(const std::string& model, lora::LoraType type, int64_t rank = 4) {
    Stream stream({.threads = 1});
    const load::Base base = loaded(model, stream);
    lora::LoraConfig config;
    config.rank = rank;
    config.alpha = 8;
    config.type = type;
    config.target_modules = {"all-linear"};
    const lora::AdapterVersion adapter = load::fresh_adapter(config, base, 1);
    num_parameters_ = adapter.layout->num_parameters;
    Buffer values(adapter.weights->bytes());
    for (int64_t i = 0; i < adapter.layout->num_floats; ++i)
      values.f32()[i] = uniform01(philox(5, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 0.5f;
    const lora::ExportedTensors tensors = lora::export_tensors(*adapter.layout, values.f32());
    const fs::Path directory = dir_.path() / ("adapter" + std::to_string(num_models_++));
    checkpoint::write_peft_directory(directory / checkpoint::kAdapterDirectory, config, adapter.layout->target_leaves,
                                     base.name, tensors.tensors);
    const checkpoint::AdapterMetadata metadata{.iteration = 3,
                                               .version = 7,
                                               .rank = rank,
                                               .alpha = 8,
                                               .lora_type = lora::lora_type_name(type),
                                               .target_modules = adapter.layout->target_leaves,
                                               .base_fingerprint = base.fingerprint,
                                               .weights_fingerprint = base.weights_fingerprint};
    fs::write_file_atomic(directory / checkpoint::kAdapterDirectory / "vime_lora_metadata.json",
                          checkpoint::adapter_metadata_text(metadata));
    return (directory / checkpoint::kAdapterDirectory).string();
  }

  // Writes back a JSON file with one value changed.
  static void change(const fs::Path& file, const std::string& key, const Json& value) {
    Json json = read_json(file.string());
    json[key] = value;
    fs::write_file_atomic(file, json.dump());
  }

  TempDirectory dir_;
  int64_t num_parameters_ = 0;
  int num_models_ = 0;
};

}  // namespace lockstep::testing
