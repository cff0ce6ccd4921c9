#include "core/error.h"

#include "core/printable.h"

namespace lockstep {

namespace {

Fault shown(const Fault& fault) {
  return {.what = printable(fault.what),
          .where = printable(fault.where),
          .got = printable(fault.got),
          .wanted = printable(fault.wanted),
          .attempt = printable(fault.attempt)};
}

std::string message(const Fault& fault) {
  std::string text = fault.what;
  const auto add = [&text](const char* label, const std::string& value) {
    if (!value.empty()) text += std::string("\n  ") + label + value;
  };
  add("where:  ", fault.where);
  add("got:    ", fault.got);
  add("wanted: ", fault.wanted);
  add("try:    ", fault.attempt);
  return text;
}

}  // namespace

Error::Error(const Fault& fault) : std::runtime_error(message(shown(fault))), fault_(shown(fault)) {}

}  // namespace lockstep
