// An error that came as bytes, from another process say, becomes an exception again.
#pragma once

#include <exception>
#include <string_view>

#include "core/error.h"

namespace lockstep {

// The error of this kind (Error::kind of those in core/error.h); nullptr for any other name.
std::exception_ptr make_error(std::string_view kind, Fault fault);

}  // namespace lockstep
