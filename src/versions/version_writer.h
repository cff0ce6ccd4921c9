// What the directory of a version holds for its readers.
#pragma once

#include <functional>
#include <string>

#include "load/base.h"
#include "versions/rollout_copy.h"

namespace lockstep::versions {

// Writes it at once: the directory is there whole or not at all. ResourceError: the disk is full. ConfigError: the
// version has what this form cannot say.
using VersionWriter = std::function<void(const fs::Path& directory, const lora::AdapterVersion& version)>;

// A PEFT directory (write_rollout_copy). The stream outlives it, as that of the next two does.
VersionWriter adapter_writer(CopyOptions options, Stream& stream);

// A Hugging Face directory of the base with the adapter merged into it, tensor by tensor: memory holds the adapter and
// a few pieces. Magnitudes, biases and saved weights are merged, too. DTypeError: the base is quantized. Cancelled:
// `interrupted` said so, and nothing is left.
VersionWriter merged_writer(
    const load::Base& base, Stream& stream, std::function<bool()> interrupted = [] { return false; });

// A file kPayloadFile: the body of SGLang's /load_lora_adapter_from_tensors without the adapter's name, with the
// tensors of write_rollout_copy (versions/tensor_payload.h).
inline constexpr const char* kPayloadFile = "load_lora_adapter_from_tensors.json";
VersionWriter payload_writer(CopyOptions options, Stream& stream);

}  // namespace lockstep::versions
