// f32 -> f16, rounded to nearest even; a value that came from f16 (also a NaN) gives its bits again.
#pragma once

#include "core/tensor.h"

namespace lockstep {

Float16 to_f16(float x);

}  // namespace lockstep
