#include "server/routes/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "server/protocol/json_text.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

std::string permission_json(const std::string& id, int64_t created) {
  return fmt::format(
      R"([{{"id":{},"object":"model_permission","created":{},"allow_create_engine":false,"allow_sampling":true,)"
      R"("allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,)"
      R"("organization":"*","group":null,"is_blocking":false}}])",
      json_string("modelperm-" + id), created);
}

std::string card(const std::string& id, int64_t created, const std::string& root, const std::string& parent,
                 const std::string& max_model_len) {
  return fmt::format(R"({{"id":{},"object":"model","created":{},"owned_by":"lockstep","root":{},"parent":{},)"
                     R"("max_model_len":{},"permission":{})",
                     json_string(id), created, json_string(root), parent, max_model_len, permission_json(id, created));
}

}  // namespace

std::string models_json(const Service& service) {
  service::Serving& serving = service.serving;
  std::string out = R"({"object":"list","data":[)";
  for (const std::string& name : service.options.model_names)
    out +=
        card(name, service.started, serving.base()->path.string(), "null", fmt::format("{}", serving.max_model_len())) +
        "},";
  out.pop_back();
  const std::string parent = json_string(service.options.model_names.front());
  for (const versions::Policy& adapter : serving.adapters().list())
    out += "," + card(adapter.name, adapter.published_at, adapter.source, parent, "null") +
           fmt::format(R"(,"adapter_version":{},"adapter_versions":[{}],"rank":{}}})", adapter.newest(),
                       fmt::join(adapter.versions, ","), adapter.rank);
  return out + "]}";
}

}  // namespace lockstep::server
