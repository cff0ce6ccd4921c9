#include "core/profile_range.h"

#include <nvtx3/nvToolsExt.h>

namespace lockstep {

ProfileRange::ProfileRange(const char* name) {
  nvtxRangePushA(name);
}
ProfileRange::~ProfileRange() {
  nvtxRangePop();
}

}  // namespace lockstep
