// Who a process is to another one that would rely on its bits.
#pragma once

#include <string>

#include "core/json.h"
#include "load/base.h"

namespace lockstep::service {

// {"build", "base", "device"}: where all of these are equal, one process's log-probs are the other's, bit for bit.
// `build` names the commit that the program was built from, `base` is the fingerprint of weights and config, `device`
// is "cpu" or the GPU's name. On the CPU neither threads nor instruction sets matter.
OrderedJson hello(const load::Base& base, const std::string& build);

}  // namespace lockstep::service
