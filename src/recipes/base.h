// Joins a Hugging Face directory to a model: config, packed weights, end tokens, tokenizer, identity.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/hf_directory.h"
#include "model/model.h"
#include "recipes/control.h"
#include "recipes/options.h"
#include "text/tokenizer.h"

namespace lockstep::recipes {

struct Base {
  fs::Path path;
  std::string name;  // as the user gave it; goes into adapter_config.json
  model::ModelConfig config;
  std::optional<Json> generation_config;
  std::vector<int32_t> eos;  // ids that end a sequence
  std::string fingerprint;   // checkpoint::base_fingerprint: weights and config.json
  std::string weights_fingerprint;
  double load_seconds = 0;  // from the files to the device, without the fingerprint; 0: random weights
  std::shared_ptr<const model::Model> model;
  Stream* stream = nullptr;  // where the model and its adapters lie; outlives the base
};

// The directory of a model: itself, or that of a hub id in the local cache. ConfigError: neither.
fs::Path model_directory(const BaseOptions& options);

// The stream a command runs on.   DeviceError: --device cuda and no GPU.
StreamOptions stream_options(const BaseOptions& options);

// Reads, checks and packs onto the stream's device; tells `control.info` what was loaded and how long it took.
Base load_base(const BaseOptions& options, Stream& stream, const Control& control);

// The type config.json says its weights have; what a GPU holds is bf16 all the same.
DType weight_dtype(const Base& base);

// config.json only: for --dry-run, where weights may be absent. `path` and `config` are set.
Base read_base_config(const BaseOptions& options);

// read_base_config, and the fingerprints of its files. No weights are kept.
Base identify_base(const BaseOptions& options, Stream& stream);

// DataError naming `where`: an id that the model has no row for, as a tokenizer with added tokens makes them.
void require_in_vocabulary(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where);

text::Tokenizer load_tokenizer(const Base& base);
text::Tokenizer load_tokenizer(const BaseOptions& options);  // and nothing else of the model
// The id appended to SFT completions: eos_token of tokenizer_config.json, else the first end token of the model.
// DataError if neither.
int32_t eos_for_training(const Base& base, const text::Tokenizer& tokenizer);

// Bytes that are hashed for the fingerprint are also what memory holds; recomputes it from the packed weights.
std::string fingerprint_of_memory(const model::Model& model, Stream& stream);

}  // namespace lockstep::recipes
