// load: names of files joined to weights of models.
//
//   includes    core, kernels, lora, checkpoint, model
//   memory      what is loaded lies on the device of the stream that it is loaded with
//   threads     loading runs on the calling thread; ops spread over its Stream
//
// This header: a Hugging Face directory as a model: config, packed weights, end tokens, identity.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/fs.h"
#include "core/json.h"
#include "model/model.h"

namespace lockstep::load {

// What is looked up outside of a model's directory; empty: it is not.
struct Caches {
  fs::Path models;        // the local cache of the Hugging Face hub
  fs::Path fingerprints;  // a file with the fingerprints of weights that were hashed before
};
Caches caches_below(const std::string& home);  // where both lie in a user's home directory; none if `home` is empty

struct Base {
  fs::Path path;
  std::string name;  // as the user gave it; goes into adapter_config.json
  model::ModelSpec config;
  std::optional<Json> generation_config;
  std::vector<int32_t> eos;  // ids that end a sequence
  std::string fingerprint;   // checkpoint::base_fingerprint: weights and config.json
  std::string weights_fingerprint;
  Caches caches;            // that it was found with
  double load_seconds = 0;  // from the files to the device, without the fingerprint; 0: random weights
  std::shared_ptr<const model::Model> model;
  Stream* stream = nullptr;  // where the model and its adapters lie; outlives the base
};

// The directory of a model: itself, or that of a hub id in the local cache. ConfigError: neither.
fs::Path model_directory(const std::string& checkpoint, const Caches& caches = {});

// config.json and generation_config.json only: a base without weights. Throws what model_directory throws, FormatError.
Base read_base_config(const std::string& checkpoint, const Caches& caches = {});

// read_base_config, and the fingerprints of its files. No weights are kept.
Base identify_base(const std::string& checkpoint, Stream& stream, const Caches& caches = {});

// The type config.json says its weights have; what a GPU holds is bf16 all the same.
DType weight_dtype(const Base& base);

// Reads, checks and packs the weights onto the stream's device; `progress` is called with the share that is done.
void load_weights(Base& base, Stream& stream, const std::function<void(double)>& progress);
// Random numbers in the shape that config.json says, the same in every run and on every device.
void fill_weights(Base& base, Stream& stream);

// Bytes that are hashed for the fingerprint are also what memory holds; recomputes it from the packed weights.
std::string fingerprint_of_memory(const model::Model& model, Stream& stream);

}  // namespace lockstep::load
