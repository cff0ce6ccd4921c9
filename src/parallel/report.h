// An error as bytes, for other ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace lockstep::parallel {

struct Report {
  std::string kind;  // Error::kind; empty: nothing that the other ranks could throw as itself
  Fault fault;
  int32_t exit_code = 1;
};

// Memory that ran out becomes a ResourceError; what is no error of core/error.h has no kind and exit code 1.
Report report_of(const std::exception_ptr& error);

std::vector<std::byte> pack_report(const Report& report);
Report unpack_report(std::span<const std::byte> bytes);  // FormatError: these are not the bytes of a report

}  // namespace lockstep::parallel
