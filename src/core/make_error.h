// Recreates an exception from an error that arrived as bytes, for example from another process.
#pragma once

#include <exception>
#include <string_view>

#include "core/error.h"

namespace lockstep {

// An error of this kind (Error::kind of those in core/error.h); nullptr for any other name.
std::exception_ptr make_error(std::string_view kind, Fault fault);

}  // namespace lockstep
