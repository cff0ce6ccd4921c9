#include "server/protocol/weights_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "checkpoint/torch/tensor_message.h"
#include "core/half.h"
#include "core/hash.h"
#include "server/protocol/api_error.h"
#include "server/protocol/json_text.h"

namespace lockstep::server {

namespace {

ApiError not_built(const std::string& message) {
  return {501, message, "", "NotImplementedError"};
}

}  // namespace

void refuse_transfer(std::string_view what) {
  throw not_built(
      fmt::format("{}: weights cannot be sent to this server by NCCL or IPC yet. Load adapters from files "
                  "(/v1/load_lora_adapter) or tensors (/load_lora_adapter_from_tensors), and base weights "
                  "from files (/collective_rpc reload_weights, /update_weights_from_disk).",
                  what));
}

DiskUpdate parse_disk_update(const OrderedJson& body) {
  const Fields fields(body);
  const std::string format = fields.string("load_format").value_or("auto");
  if (format != "auto" && format != "safetensors")
    throw not_built(fmt::format("`load_format` {} is not read, only auto and safetensors.", format));
  fields.boolean("flush_cache");
  return {.path = fields.required_string("model_path"),
          .label = fields.string("weight_version").value_or(""),
          .abort_all = fields.flag("abort_all_requests")};
}

NamedTensors read_named_tensors(Payloads& payloads) {
  constexpr const char* kName = "serialized_named_tensors";
  const Fields fields(payloads.json());
  if (const auto format = fields.string("load_format"); format && *format != "flattened_bucket")
    throw not_built(fmt::format("`load_format` {} is not read, only flattened_bucket or none.", *format));
  const OrderedJson* const list = fields.find(kName);
  if (!list) throw bad_request("`serialized_named_tensors` is required.", kName);
  if (!list->is_array() || list->size() != 1)
    throw bad_request("`serialized_named_tensors` must be a list of one text: this server is one rank.", kName);
  try {
    return checkpoint::read_tensor_message(payloads.bytes(list->front(), kName), kName);
  } catch (const checkpoint::TensorHandles& error) {
    throw not_built(one_line(error.fault()));
  }
}

TensorAdapter parse_tensor_adapter(const OrderedJson& body) {
  const Fields fields(body);
  const auto config = fields.object("config_dict");
  if (!config) throw bad_request("`config_dict` is required.", "config_dict");
  if (fields.has("added_tokens_config"))
    throw bad_request("`added_tokens_config`: an adapter with tokens of its own is not supported.",
                      "added_tokens_config");
  fields.boolean("pinned");
  TensorAdapter adapter{.name = fields.required_string("lora_name"), .config = config->json().dump()};
  if (const auto sums = fields.object("expected_checksums"))
    for (const auto& [name, value] : sums->json().items()) {
      if (!value.is_string()) sums->wrong(name, value, "a SHA-256 in hexadecimal");
      adapter.checksums.emplace_back(name, value.get<std::string>());
    }
  return adapter;
}

void check_checksums(const TensorAdapter& adapter, const NamedTensors& tensors) {
  for (const auto& [name, wanted] : adapter.checksums) {
    const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
    if (found == tensors.end())
      throw bad_request(fmt::format("`expected_checksums` names {}, which did not come.", name), "expected_checksums");
    Sha256 hash;
    hash.update({static_cast<const std::byte*>(found->tensor.data), found->bytes()});
    if (const std::string got = hash.hex(); got != wanted)
      throw bad_request(fmt::format("{} came with SHA-256 {}, expected {}.", name, got, wanted), "expected_checksums");
  }
}

NamedWeight parse_named_weight(const OrderedJson& body) {
  const Fields fields(body);
  return {.name = fields.required_string("name"),
          .rows = fields.integer("truncate_size", 1, std::numeric_limits<int32_t>::max()).value_or(100)};
}

namespace {

float value_at(const ConstTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::f32) return static_cast<const float*>(tensor.data)[i];
  if (tensor.dtype == DType::bf16) return to_f32(static_cast<const BFloat16*>(tensor.data)[i]);
  return to_f32(static_cast<const Float16*>(tensor.data)[i]);
}

}  // namespace

std::string weight_json(const ConstTensor& tensor) {
  std::string out = "[";
  const int64_t width = tensor.rank > 1 ? tensor.shape[1] : 1;
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    if (row > 0) out += ',';
    if (tensor.rank > 1) out += '[';
    for (int64_t i = 0; i < width; ++i)
      fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "",
                     static_cast<double>(value_at(tensor, row * width + i)));
    if (tensor.rank > 1) out += ']';
  }
  return out + "]";
}

Rpc parse_rpc(const OrderedJson& body) {
  const Fields fields(body);
  Rpc rpc{.method = fields.required_string("method")};
  if (rpc.method != "list_loras" && rpc.method != "reload_weights")
    throw not_built(fmt::format("`method` {}: this server has list_loras and reload_weights.", rpc.method));
  fields.number("timeout");
  if (const OrderedJson* const args = fields.find("args"); args && !(args->is_array() && args->empty()))
    fields.wrong("args", *args, "an empty list: the methods take `kwargs`");
  if (const auto kwargs = fields.object("kwargs"))
    for (const auto& [name, value] : kwargs->json().items()) {
      if (rpc.method == "reload_weights" && name == "weights_path")
        rpc.weights_path = kwargs->required_string("weights_path");
      else if (rpc.method == "reload_weights" && name == "is_checkpoint_format" && value == OrderedJson(true))
        continue;
      else
        throw not_built(fmt::format("`kwargs.{}` is not an argument that this server has.", name));
    }
  return rpc;
}

MemoryTags parse_memory_tags(const std::vector<std::string>& tags) {
  if (tags.empty()) return {};
  MemoryTags asked{.weights = false, .keys = false};
  for (const std::string& tag : tags) {
    if (tag == "weights")
      asked.weights = true;
    else if (tag == "kv_cache")
      asked.keys = true;
    else if (tag != "cuda_graph")  // graphs go with the weights
      throw bad_request(fmt::format("`tags` must be weights, kv_cache or cuda_graph, got {}.", tag), "tags");
  }
  return asked;
}

void check_weight_meta(const OrderedJson& body) {
  const Fields fields(body);
  const auto names = fields.strings("names"), types = fields.strings("dtypes");
  if (!names) throw bad_request("`names` is required.", "names");
  if (!types || types->size() != names->size())
    throw bad_request("`dtypes` must have an entry for each of `names`.", "dtypes");
  const OrderedJson* const shapes = fields.find("shapes");
  if (!shapes || !shapes->is_array() || shapes->size() != names->size())
    throw bad_request("`shapes` must have an entry for each of `names`.", "shapes");
  for (const OrderedJson& shape : *shapes) read_ids(shape, "shapes");
  fields.required_string("group_name");
}

}  // namespace lockstep::server
