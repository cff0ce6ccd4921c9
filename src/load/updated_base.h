// A base whose weights are new: it takes the place of the one before it while that one is in use.
#pragma once

#include <string>
#include <vector>

#include "core/read_root.h"
#include "load/base.h"

namespace lockstep::load {

// Common to what follows: config, name, path and stream of the result are those of `old`, its weights lie on the
// stream's device under the version given, and its fingerprints are those of the new bytes. `old` may be without a
// model; then all tensors must come. ResourceError, before a weight is read: memory for the weights that are new beside
// the old ones is not free; what has no new part is shared with `old`. FormatError, DataError: as Weights::load and
// updated_weights.

// `old` with these tensors in place of its own (all or some: model/weights_update.h). `where` names them in errors.
Base updated_base(const Base& old, lora::BaseVersion version, const NamedTensors& tensors, Stream& stream,
                  const std::string& where);

// All tensors of a Hugging Face directory, whose config.json must describe the same model (FormatError). ConfigError: a
// file lies outside `root`.
Base updated_base(const Base& old, lora::BaseVersion version, const fs::Path& directory, const fs::ReadRoot& root,
                  Stream& stream);

// `old` under the same version, with its weights in the host's memory (no kernel reads them there) or back on the GPU.
Base moved_base(const Base& old, Device to, Stream& stream);

// SHA-256 of each tensor's bytes as the file had them, by name.
struct TensorHash {
  std::string name, sha256;
  bool operator==(const TensorHash&) const = default;
};
std::vector<TensorHash> tensor_hashes(const Base& base, Stream& stream);

}  // namespace lockstep::load
