// The commands that look at directories of weights and make others of them. They need no tokenizer and no engine, and
// throw the errors of core/error.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/tensor.h"
#include "recipes/control.h"
#include "recipes/options.h"

namespace lockstep::commands {

struct MergeOptions {
  recipes::BaseOptions base;
  std::string adapter_path;
  std::string output;
  std::optional<DType> dtype;               // of every weight; nothing: each tensor keeps its own
  int64_t max_shard_bytes = 5'000'000'000;  // of a shard's tensors
  bool overwrite = false;
};
// Writes a Hugging Face directory of W + scale * B A, in f32 and rounded once. Any architecture whose tensors are named
// after the adapter's modules: nothing else is known of the model. On an interrupt it leaves nothing and throws
// Cancelled.
void run_merge(const MergeOptions& options, const recipes::Control& control);

struct DiffOptions {
  std::string a, b;      // two adapters (as --lora-adapter-path) or two Hugging Face directories
  double tolerance = 0;  // an update or tensor differs when |a - b| is above this share of the larger norm
  bool json = false;
  StreamOptions stream;
};
// Prints norms of updates (scale * B A) or tensors, of their differences, cosines, and settings that differ. Whether
// nothing differs.
bool run_diff(const DiffOptions& options, const recipes::Control& control);

struct VerifyOptions {
  std::string path;
  recipes::BaseOptions base;  // hf_checkpoint empty: none is given
};
// Prints what was checked about a checkpoint, a save directory, an adapter or a model, and every problem; FormatError
// if there is one.
void run_verify(const VerifyOptions& options, const recipes::Control& control);

enum class AdapterNames { hf, megatron };
struct ConvertOptions {
  recipes::BaseOptions base;  // only its config.json is read
  std::string adapter_path;
  std::string output;
  AdapterNames to = AdapterNames::megatron;
  std::optional<lora::LoraType> lora_type;  // of Megatron's names; nothing: fused if it can be
  bool overwrite = false;
};
// The adapter under the other side's names (commands/files/megatron_names.h), every value with its bits.
void run_convert(const ConvertOptions& options, const recipes::Control& control);

}  // namespace lockstep::commands
