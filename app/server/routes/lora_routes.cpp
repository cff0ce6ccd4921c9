#include "server/routes/lora_routes.h"

#include <fmt/format.h>

#include <chrono>
#include <climits>
#include <exception>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/fs.h"
#include "server/protocol/api_error.h"
#include "server/protocol/json_text.h"
#include "server/protocol/lora_request.h"
#include "server/protocol/weights_request.h"
#include "server/routes/service.h"

namespace lockstep::server {

using service::AdapterSource;

namespace {

// vLLM calls what the client got wrong InvalidUserInput, what was not found NotFoundError, and every other failure to
// load InternalServerError.
ApiError invalid(const std::string& message) {
  return {400, message, "", "InvalidUserInput"};
}

bool is_loaded(const Service& service, const std::string& name) {
  for (const versions::Policy& adapter : service.serving.adapters().list())
    if (adapter.name == name) return true;
  return false;
}

void check_load(const Service& service, const AdapterSource& source) {
  if (source.name.empty() || source.path.empty()) throw invalid("Both 'lora_name' and 'lora_path' must be provided.");
  if (service.is_base(source.name))
    throw invalid(fmt::format("The lora adapter '{}' conflicts with a served base model.", source.name));
  if (!source.in_place && is_loaded(service, source.name))
    throw invalid(
        fmt::format("The lora adapter '{}' has already been loaded. If you want to load the adapter in place, set "
                    "'load_inplace' to True.",
                    source.name));
}

// Whether the directory lacks the files of an adapter. False where that cannot be found out.
bool is_missing(const Service& service, const AdapterSource& source) {
  if (source.path.size() >= PATH_MAX || source.path.find('\0') != std::string::npos) return true;  // no path at all
  const std::filesystem::path directory = std::filesystem::path(service.options.lora_root) / source.path;
  try {
    return !fs::exists(directory / "adapter_config.json");
  } catch (const Error&) {
    return false;
  }
}

// What the request asks for is the caller's to mend; a directory that is no adapter's is not found.
ApiError load_error(std::exception_ptr error, const Service& service, const AdapterSource& source) {
  const std::string message = api_error(error).what();
  try {
    std::rethrow_exception(error);
  } catch (const ConfigError&) {
    return invalid(message);
  } catch (...) {
  }
  if (is_missing(service, source)) return {404, fmt::format("No adapter found for '{}': {}", source.name, message)};
  return {500, message};
}

// {"success", "error_message", "loaded_adapters"}, as SGLang.
HttpResponse sglang_result(const Service& service, const std::string& error) {
  std::string adapters;
  for (const versions::Policy& adapter : service.serving.adapters().list())
    adapters += fmt::format("{}{}:{}", adapters.empty() ? "" : ",", json_string(adapter.name),
                            json_string(adapter.source.empty() ? "__tensor__" : adapter.source));
  return json_response(fmt::format(R"({{"success":{},"error_message":{},"loaded_adapters":{{{}}}}})", error.empty(),
                                   error.empty() ? "null" : json_string(error), adapters),
                       error.empty() ? 200 : 400);
}

// Looks again on the server's thread until nothing uses what `name` was.
void answer_when_unused(Service& service, const std::string& name, const Reply& reply) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  if (service.serving.adapters().wait_unused(name, std::chrono::milliseconds(0)))
    return reply->send(sglang_result(service, ""));
  service.loop.post_after(kPause, [&service, name, reply] { answer_when_unused(service, name, reply); });
}

}  // namespace

Reading handle_vllm_load(Service& service, const HttpRequest& request) {
  return [&service, source = parse_load(read_body(request))](const Reply& reply) {
    service.adapter_worker.post([&service, source, reply] {
      try {
        check_load(service, source);
      } catch (const ApiError& error) {
        return reply->send(error_response(error));
      }
      try {
        const versions::Policy adapter = service.serving.adapters().load(source);
        reply->send(text_response(fmt::format("Success: LoRA adapter '{}' added successfully.", adapter.name)));
      } catch (...) {
        reply->send(error_response(load_error(std::current_exception(), service, source)));
      }
    });
  };
}

Reading handle_vllm_unload(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request);
  const Fields fields(body);
  fields.integer("lora_int_id");
  return [&service, name = fields.required_string("lora_name")](const Reply& reply) {
    if (name.empty())
      return reply->send(error_response(invalid("'lora_name' needs to be provided to unload a LoRA adapter.")));
    service.adapter_worker.post([&service, name, reply] {
      try {
        service.serving.adapters().unload(name);
        reply->send(text_response(fmt::format("Success: LoRA adapter '{}' removed successfully.", name)));
      } catch (const service::NoSuchAdapter&) {
        reply->send(error_response({404, fmt::format("The lora adapter '{}' cannot be found.", name)}));
      } catch (...) {
        reply->send(error_response(api_error(std::current_exception())));
      }
    });
  };
}

Reading handle_sglang_load(Service& service, const HttpRequest& request) {
  return [&service, source = parse_load(read_body(request, false))](const Reply& reply) {
    service.adapter_worker.post([&service, source, reply] {
      try {
        if (!source.in_place && is_loaded(service, source.name))
          throw bad_request(fmt::format("Failed to load LoRA adapter {} because it is already loaded", source.name));
        check_load(service, source);
        service.serving.adapters().load(source);
        reply->send(sglang_result(service, ""));
      } catch (...) {
        reply->send(sglang_result(service, api_error(std::current_exception()).what()));
      }
    });
  };
}

Reading handle_tensor_load(Service& service, HttpRequest&& request) {
  const auto payloads = std::make_shared<Payloads>(std::move(request));
  return [&service, payloads, adapter = parse_tensor_adapter(payloads->json()),
          tensors = read_named_tensors(*payloads)](const Reply& reply) {
    service.adapter_worker.post([&service, payloads, adapter, tensors, reply] {
      try {
        if (is_loaded(service, adapter.name))
          throw bad_request(fmt::format("Failed to load LoRA adapter {} because it is already loaded", adapter.name));
        const AdapterSource source{.name = adapter.name, .path = "serialized_named_tensors"};
        check_load(service, source);
        check_checksums(adapter, tensors);
        service.serving.adapters().load(source, {.config = adapter.config, .tensors = tensors});
        reply->send(sglang_result(service, ""));
      } catch (...) {
        reply->send(sglang_result(service, api_error(std::current_exception()).what()));
      }
    });
  };
}

Reading handle_sglang_unload(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request, false);
  return [&service, name = Fields(body).required_string("lora_name")](const Reply& reply) {
    service.adapter_worker.post([&service, name, reply] {
      try {
        service.serving.adapters().unload(name);
      } catch (...) {
        return reply->send(sglang_result(service, api_error(std::current_exception()).what()));
      }
      service.loop.post([&service, name, reply] { answer_when_unused(service, name, reply); });
    });
  };
}

}  // namespace lockstep::server
