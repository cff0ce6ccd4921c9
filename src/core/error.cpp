#include "core/error.h"

namespace lockstep {

namespace {
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

Error::Error(Fault fault) : std::runtime_error(message(fault)), fault_(std::move(fault)) {}

}  // namespace lockstep
