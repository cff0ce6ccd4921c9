#include "core/make_error.h"

#include <utility>

namespace lockstep {

namespace {
template <class Kind>
std::exception_ptr made(Fault fault) {
  return std::make_exception_ptr(Kind(std::move(fault)));
}
}  // namespace

std::exception_ptr make_error(std::string_view kind, Fault fault) {
  if (kind == "ConfigError") return made<ConfigError>(std::move(fault));
  if (kind == "DataError") return made<DataError>(std::move(fault));
  if (kind == "FormatError") return made<FormatError>(std::move(fault));
  if (kind == "ShapeError") return made<ShapeError>(std::move(fault));
  if (kind == "DTypeError") return made<DTypeError>(std::move(fault));
  if (kind == "DeviceError") return made<DeviceError>(std::move(fault));
  if (kind == "ResourceError") return made<ResourceError>(std::move(fault));
  if (kind == "Cancelled") return made<Cancelled>(std::move(fault));
  return nullptr;
}

}  // namespace lockstep
