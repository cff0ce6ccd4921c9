#include "kernels/packed_weight.h"

#include "core/error.h"

namespace lockstep::kernels {

void require_format(const PackedWeight& weight, WeightFormat format, const char* op) {
  if (weight.format == format) return;
  throw DTypeError({.what = "this op does not read weights of this format",
                    .where = op,
                    .got = format_name(weight.format),
                    .wanted = format_name(format)});
}

}  // namespace lockstep::kernels
