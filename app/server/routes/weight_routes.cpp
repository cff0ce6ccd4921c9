#include "server/routes/weight_routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "server/protocol/api_error.h"
#include "server/protocol/json_text.h"
#include "server/protocol/weights_request.h"
#include "server/routes/service.h"
#include "server/routes/worker_answer.h"

namespace lockstep::server {

using service::BaseKeeper;
using service::PauseMode;
using Part = BaseKeeper::Part;

namespace {

// {"success", "message"}, as SGLang answers an update; other statuses than 200 and 400 are ours.
HttpResponse update_result(bool success, const std::string& message, int status) {
  return json_response(
      fmt::format(R"({{"success":{},"message":{},"num_paused_requests":0}})", success, json_string(message)), status);
}

template <class Work>
Action answer_update(Service& service, Work work) {
  return answer_from_worker(service.weights_worker, [work = std::move(work)]() {
    try {
      return update_result(true, work(), 200);
    } catch (...) {
      const ApiError error = api_error(std::current_exception());
      return update_result(false, error.what(), error.status);
    }
  });
}

std::string update_text(const BaseKeeper::Report& report) {
  if (report.missing > 0)
    return fmt::format("Kept; {} tensors must still come before there are weights to generate with.", report.missing);
  std::string text = fmt::format("Succeeded to update model weights: base version {}.", report.base_version);
  for (const auto& [name, reason] : report.outdated)
    text += fmt::format(" Adapter {} must be loaded again: {}.", name, reason);
  return text;
}

int64_t query_integer(const HttpRequest& request, std::string_view name, int64_t fallback, int64_t most) {
  const auto text = request.parameter(name);
  if (!text) return fallback;
  int64_t value = -1;
  if (text->size() == 1 && (*text)[0] >= '0' && (*text)[0] <= '9') value = (*text)[0] - '0';
  if (value < 0 || value > most)
    throw bad_request(fmt::format("`{}` must be 0 to {}, got {}.", name, most, *text), std::string(name));
  return value;
}

// Every value of a query parameter that may be repeated.
std::vector<std::string> query_values(const HttpRequest& request, std::string_view name) {
  std::vector<std::string> values;
  for (std::string_view rest = request.query; !rest.empty();) {
    const size_t end = std::min(rest.find('&'), rest.size());
    HttpRequest one;
    one.query = std::string(rest.substr(0, end));
    if (auto value = one.parameter(name)) values.push_back(*std::move(value));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return values;
}

bool is_asleep(const Service& service) {
  return service.keeper->is_released(Part::weights) || service.keeper->is_released(Part::keys);
}

void release(Service& service, const MemoryTags& tags, bool for_good) {
  if (tags.weights) service.keeper->release(Part::weights, for_good);
  if (tags.keys) service.keeper->release(Part::keys);
}

void resume(Service& service, const MemoryTags& tags) {
  if (tags.weights) service.keeper->resume(Part::weights);
  if (tags.keys) service.keeper->resume(Part::keys);
  if (!is_asleep(service)) service.serving.resume();
}

std::string checksums_json(const std::vector<load::TensorHash>& hashes) {
  std::string out;
  for (const auto& [name, sha256] : hashes)
    out += fmt::format("{}{}:\"{}\"", out.empty() ? "" : ",", json_string(name), sha256);
  return "{" + out + "}";
}

}  // namespace

Reading handle_sleep(Service& service, const HttpRequest& request) {
  const int64_t level = query_integer(request, "level", 1, 2);
  const std::string mode = request.parameter("mode").value_or("abort");
  if (mode != "abort" && (mode != "keep" || level > 0))
    throw bad_request("`mode` must be abort, or keep with level 0; to let requests end first: /pause?mode=wait.",
                      "mode");
  return answer_from_worker(service.weights_worker, [&service, level, mode] {
    service.serving.pause(mode == "abort" ? PauseMode::abort : PauseMode::in_place);
    if (level > 0) release(service, {}, level == 2);
    return json_response(fmt::format(R"({{"status":"sleeping","level":{}}})", level));
  });
}

Reading handle_wake_up(Service& service, const HttpRequest& request) {
  const std::vector<std::string> tags = query_values(request, "tags");
  return answer_from_worker(service.weights_worker, [&service, tags, asked = parse_memory_tags(tags)] {
    resume(service, asked);
    std::string list = "null";
    if (!tags.empty()) {
      list.clear();
      for (const std::string& tag : tags) list += (list.empty() ? "[" : ",") + json_string(tag);
      list += "]";
    }
    return json_response(
        fmt::format(R"({{"status":"{}","tags":{}}})", is_asleep(service) ? "sleeping" : "awake", list));
  });
}

Reading handle_is_sleeping(Service& service, const HttpRequest&) {
  return send_action(json_response(fmt::format(R"({{"is_sleeping":{}}})", is_asleep(service))));
}

Reading handle_release_kv_cache(Service& service, const HttpRequest&) {
  return answer_from_worker(service.weights_worker, [&service] {
    service.serving.pause(PauseMode::abort);
    release(service, {.weights = false}, false);
    return json_response(R"({"status":"kv_cache_released"})");
  });
}

Reading handle_collective_rpc(Service& service, const HttpRequest& request) {
  return answer_from_worker(service.weights_worker, [&service, rpc = parse_rpc(read_body(request, false))] {
    if (rpc.method == "reload_weights") {
      service.keeper->load_directory(rpc.weights_path, "");
      return json_response(R"({"results":[null]})");
    }
    // vLLM writes a set of its own numbers of adapters.
    std::vector<size_t> numbers(service.serving.adapters().list().size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = i + 1;
    const std::string set = numbers.empty() ? "set()" : fmt::format("{{{}}}", fmt::join(numbers, ", "));
    return json_response(fmt::format(R"({{"results":["{}"]}})", set));
  });
}

Reading handle_weight_info(Service& service, const HttpRequest&) {
  return send_action(json_response(fmt::format(R"({{"weight_version":{}}})", json_string(service.keeper->label()))));
}

Reading handle_vllm_weight_checker(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request);
  const Fields fields(body);
  const std::string action = fields.required_string("action");
  if (action == "reset") throw ApiError(501, "`action` reset overwrites weights, which this server does not do.");
  if (action != "checksum" && action != "compare")
    throw bad_request(fmt::format("`action` must be checksum or compare, got {}.", action), "action");
  const auto baseline = fields.object("baseline");
  if (action == "compare" && !baseline) throw bad_request("`action` compare requires a `baseline`.", "baseline");
  const OrderedJson wanted = baseline ? baseline->json() : OrderedJson::object();
  return answer_from_worker(service.weights_worker, [&service, action, wanted] {
    const std::vector<load::TensorHash> hashes = service.keeper->checksums();
    if (action == "checksum") return json_response(fmt::format(R"({{"checksums":{}}})", checksums_json(hashes)));
    std::vector<std::string> differ;
    for (const auto& [name, sha256] : hashes)
      if (const auto found = wanted.find(name); found == wanted.end() || *found != OrderedJson(sha256))
        differ.push_back(json_string(name));
    for (const auto& [name, value] : wanted.items())
      if (std::ranges::find(hashes, name, &load::TensorHash::name) == hashes.end()) differ.push_back(json_string(name));
    std::ranges::sort(differ);
    return json_response(fmt::format(R"({{"match":{},"mismatches":[{}]}})", differ.empty(), fmt::join(differ, ",")));
  });
}

Reading handle_update_from_disk(Service& service, const HttpRequest& request) {
  return answer_update(service, [&service, update = parse_disk_update(read_body(request, false))] {
    if (update.abort_all) service.serving.abort_all();
    return update_text(service.keeper->load_directory(update.path, update.label));
  });
}

Reading handle_update_from_tensor(Service& service, HttpRequest&& request) {
  const auto payloads = std::make_shared<Payloads>(std::move(request));
  const Fields fields(payloads->json());
  fields.boolean("flush_cache");
  const bool abort_all = fields.flag("abort_all_requests");
  return answer_update(service, [&service, payloads, abort_all, tensors = read_named_tensors(*payloads),
                                 label = fields.string("weight_version").value_or("")] {
    if (abort_all) service.serving.abort_all();
    return update_text(service.keeper->load_tensors(tensors, label, "serialized_named_tensors"));
  });
}

Reading handle_update_weight_version(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request, false);
  const Fields fields(body);
  const bool abort_all = fields.flag("abort_all_requests");
  return answer_from_worker(
      service.weights_worker, [&service, abort_all, label = fields.required_string("new_version")] {
        if (abort_all) service.serving.abort_all();
        service.keeper->set_label(label);
        return json_response(fmt::format(R"({{"success":true,"message":{},"new_version":{}}})",
                                         json_string("Weight version updated to " + label), json_string(label)));
      });
}

Reading handle_get_weights(Service& service, const HttpRequest& request) {
  return answer_from_worker(service.weights_worker, [&service, asked = parse_named_weight(read_body(request, false))] {
    try {
      const model::HostTensor weight = service.keeper->read(asked.name, asked.rows);
      return json_response(weight_json(weight.tensor.tensor));
    } catch (...) {
      return sglang_error_response(api_error(std::current_exception()));
    }
  });
}

Reading handle_weights_checker(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request, false);
  const std::string action = Fields(body).required_string("action");
  if (action == "reset_tensors")
    throw ApiError(501, "`action` reset_tensors overwrites weights, which this server does not do.");
  if (action != "snapshot" && action != "compare" && action != "checksum")
    throw bad_request(fmt::format("`action` must be snapshot, compare or checksum, got {}.", action), "action");
  return answer_from_worker(service.weights_worker, [&service, action] {
    try {
      if (action == "checksum")
        return json_response(fmt::format(R"({{"success":true,"message":"Success.","checksums":{}}})",
                                         checksums_json(service.keeper->checksums())));
      if (action == "snapshot") {
        service.keeper->take_snapshot();
        return json_response(R"({"success":true,"message":"Success."})");
      }
      const std::vector<std::string> changed = service.keeper->changed_since();
      if (changed.empty()) return json_response(R"({"success":true,"message":"Success."})");
      throw bad_request(fmt::format("These weights differ from the snapshot: {}", fmt::join(changed, ", ")));
    } catch (...) {
      const ApiError error = api_error(std::current_exception());
      return json_response(fmt::format(R"({{"success":false,"message":{}}})", json_string(error.what())), error.status);
    }
  });
}

Reading handle_release_memory(Service& service, const HttpRequest& request) {
  const OrderedJson body = optional_body(request);
  const MemoryTags tags = parse_memory_tags(Fields(body).strings("tags").value_or(std::vector<std::string>()));
  return answer_from_worker(service.weights_worker, [&service, tags] {
    if (!service.serving.idle())
      return sglang_error_response(bad_request("Requests are in flight: abort them, or let them end, first."));
    service.serving.pause(PauseMode::in_place);
    release(service, tags, false);
    return json_response("null");
  });
}

Reading handle_resume_memory(Service& service, const HttpRequest& request) {
  const OrderedJson body = optional_body(request);
  const MemoryTags tags = parse_memory_tags(Fields(body).strings("tags").value_or(std::vector<std::string>()));
  return answer_from_worker(service.weights_worker, [&service, tags] {
    resume(service, tags);
    return json_response("null");
  });
}

Reading handle_transfer(Service&, const HttpRequest& request) {
  optional_body(request);
  refuse_transfer(request.path);
}

Reading handle_weight_meta(Service&, const HttpRequest& request) {
  check_weight_meta(read_body(request, false));
  refuse_transfer(request.path);
}

}  // namespace lockstep::server
