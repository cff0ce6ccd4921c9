#include "service/hello.h"

#include "core/device_facts.h"

namespace lockstep::service {

OrderedJson hello(const load::Base& base, const std::string& build) {
  const Stream& stream = *base.stream;
  return {{"build", build},
          {"numerics", has_exact_rows(stream) ? "exact" : "fast"},
          {"base", base.fingerprint},
          {"device", device_model(stream.device())}};
}

}  // namespace lockstep::service
