// The identity of a base model, whatever its sharding.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/hf_directory.h"
#include "core/hash.h"
#include "core/stream.h"

namespace lockstep::checkpoint {

// What adapters are bound to: the SHA-256 of the weights' fingerprint and of what config.json makes of the weights, in
// whatever canonical text says all of it (model::canonical_text; this room does not know models).
std::string base_fingerprint(const std::string& weights_fingerprint, std::string_view config_text);

// SHA-256 over the tensors sorted by name. Each adds "name\0dtype\0d0,d1,...\0" and, for every 64 MiB of its bytes and
// for what is left of them, their SHA-256 as 64 hex digits. All threads of the stream hash; the result does not depend
// on them. ShapeError for a tensor whose rows do not lie side by side. DataError: a file cannot be read or has become
// shorter.
std::string weights_fingerprint(const NamedTensors& sorted_tensors, Stream& stream);

// The same of tensors that come one after the other, sorted by name, so that only one need be in memory.
class WeightsHash {
 public:
  void add(const NamedTensor& tensor, Stream& stream);
  std::string hex();  // ends the hash

 private:
  Sha256 hash_;
};

// The same, cached in `cache_file` under every weight file's (path, size, mtime); a stale or damaged cache is
// recomputed, an unwritable one is not an error. The weights must be open.
std::string cached_weights_fingerprint(const HfDirectory& directory, const fs::Path& cache_file, Stream& stream);

}  // namespace lockstep::checkpoint
