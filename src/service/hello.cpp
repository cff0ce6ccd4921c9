#include "service/hello.h"

#include "core/device_facts.h"

namespace lockstep::service {

OrderedJson hello(const load::Base& base, const std::string& build) {
  const Stream& stream = *base.stream;
  return {{"build", build}, {"base", base.fingerprint}, {"device", device_model(stream.device())}};
}

}  // namespace lockstep::service
