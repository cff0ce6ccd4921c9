// An adapter in one request, as SGLang's /load_lora_adapter_from_tensors reads it.
#pragma once

#include <string>

#include "checkpoint/peft_directory.h"

namespace lockstep::versions {

// The body without `lora_name`, which the caller puts first: {"config_dict", "serialized_named_tensors", "pinned",
// "expected_checksums"}. The tensors are a pickle in base64, as torch writes one without shared memory: one storage by
// torch.storage._load_from_bytes, and of it each tensor by torch._utils._rebuild_tensor_v2. SGLang's SafeUnpickler
// admits these names and no others that would do. The checksums are the SHA-256 of each tensor's bytes. DTypeError: a
// tensor is not f32, as rollout copies are. FormatError: the weights cannot be read.
std::string tensor_payload(const checkpoint::PeftDirectory& adapter);

// Of these tensors, before base64. Little endian, as the machine.
std::string tensor_pickle(const NamedTensors& tensors);

}  // namespace lockstep::versions
