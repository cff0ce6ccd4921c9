#include "core/profile_range.h"

namespace lockstep {

ProfileRange::ProfileRange(const char*) {}
ProfileRange::~ProfileRange() = default;

}  // namespace lockstep
