// Weights that arrive while others are in use: some tensors of the file are new, the rest is as it was.
#pragma once

#include <memory>
#include <string>

#include "model/weights.h"

namespace lockstep::model {

// The weights with these tensors in place of the old ones; names, shapes and types as Weights::load. Matrices that are
// stacked (q, k, v; gate, up) are packed again if one of them came, with the others as they are; what has no new part
// is shared with `old`, which is not changed. A tied model may get lm_head.weight beside the embedding, of equal bytes.
// FormatError naming the tensor: unknown, twice, another shape or type, a type other than that of its siblings; nothing
// is allocated before all names and shapes have been looked at.
std::shared_ptr<const Weights> updated_weights(const ModelSpec& config, const Weights& old, const NamedTensors& tensors,
                                               Stream& stream, const std::string& where = {});

// Bytes of the stream's device that updated_weights allocates: of what has a new part.
int64_t updated_bytes(const ModelSpec& config, const Weights& old, const NamedTensors& tensors);

// The same weights in the memory of a GPU or, to keep them while it has other work, of the host: there only as bytes,
// which no kernel reads.
std::shared_ptr<const Weights> moved_weights(const Weights& weights, Device to, Stream& stream);

// One tensor as the file had it, or its first `rows` rows. FormatError: there is none of this name.
struct HostTensor {
  Buffer memory;
  NamedTensor tensor;
};
HostTensor read_weight(const ModelSpec& config, const Weights& weights, const std::string& name, int64_t rows,
                       Stream& stream);

}  // namespace lockstep::model
