#include "server/protocol/lora_request.h"

#include <limits>

namespace lockstep::server {

service::AdapterSource parse_load(const OrderedJson& body) {
  const Fields fields(body);
  return {.name = fields.required_string("lora_name"),
          .path = fields.required_string("lora_path"),
          .in_place = fields.flag("load_inplace"),
          .sha256 = fields.string("sha256").value_or(""),
          .version = fields.integer("adapter_version", 0, std::numeric_limits<int64_t>::max())};
}

}  // namespace lockstep::server
