#include "server/routes/server_info.h"

#include "core/device_facts.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

// As torch writes the type that weights are kept in.
std::string weight_type(const recipes::Base& base) {
  const DType type = base.stream->device() == Device::cuda ? DType::bf16 : load::weight_dtype(base);
  return type == DType::bf16 ? "torch.bfloat16" : type == DType::f16 ? "torch.float16" : "torch.float32";
}

}  // namespace

Reading handle_server_info(Service& service, const HttpRequest&) {
  const std::shared_ptr<const recipes::Base> served = service.serving.base();
  const recipes::Base& base = *served;
  const ServiceOptions& options = service.options;
  const std::string path = base.path.string(), device = device_name(base.stream->device());
  const int64_t context = service.serving.max_model_len();
  const OrderedJson vllm{
      {"model_config",
       {{"model", path},
        {"max_model_len", context},
        {"dtype", weight_type(base)},
        {"logprobs_mode", service.rules.processed_logprobs ? "processed_logprobs" : "raw_logprobs"},
        {"quantization", nullptr}}},
      {"lora_config",
       {{"max_lora_rank", options.max_lora_rank},
        {"max_loras", options.max_loras},
        {"max_cpu_loras", options.max_loras}}},
      {"parallel_config",
       {{"data_parallel_size", 1}, {"tensor_parallel_size", 1}, {"pipeline_parallel_size", 1}, {"world_size", 1}}},
      {"device_config", {{"device_type", device}}},
      {"weight_transfer_config", nullptr}};
  return send_action(json_response(json_text(OrderedJson{{"vllm_config", vllm},
                                                         {"version", options.version},
                                                         {"model_path", path},
                                                         {"served_model_name", options.model_names.front()},
                                                         {"device", device},
                                                         {"tp_size", 1},
                                                         {"dp_size", 1},
                                                         {"context_length", context},
                                                         {"enable_lora", true},
                                                         {"max_lora_rank", options.max_lora_rank},
                                                         {"max_loras_per_batch", options.max_loras + 1},
                                                         {"max_loaded_loras", options.max_loras},
                                                         {"weight_version", service.weight_version()},
                                                         {"enable_deterministic_inference", true},
                                                         {"quantization", nullptr}})));
}

Reading handle_world_size(Service&, const HttpRequest&) {
  return send_action(json_response(R"({"world_size":1})"));
}

}  // namespace lockstep::server
