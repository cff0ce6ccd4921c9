// An adapter that came as tensors in memory, not as a directory.
#pragma once

#include <string>
#include <string_view>

#include "load/base.h"
#include "lora/adapter.h"

namespace lockstep::load {

// `config`: the text of adapter_config.json. `tensors`: host memory, PEFT's full names. The bytes of the result are
// those that load_adapter makes of a directory with the same config and tensors. `where` names the source in errors.
// FormatError, ShapeError: as check_adapter and load_adapter.
lora::AdapterVersion adapter_of_tensors(std::string_view config, const NamedTensors& tensors, const Base& base,
                                        const std::string& where);

}  // namespace lockstep::load
