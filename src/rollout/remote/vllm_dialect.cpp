// vLLM: /v1/completions with token ids, /v1/load_lora_adapter. Source: vLLM's entrypoints/openai and entrypoints/serve.
#include <fmt/format.h>

#include "rollout/remote/dialect_parts.h"

namespace lockstep::rollout {

namespace {

class VllmDialect : public Dialect {
 public:
  std::vector<std::string> fact_paths() const override { return {kModelsPath, kServerInfo, kVersion, kWeightInfo}; }

  void read_facts(const std::string& path, const std::string& body, ServerFacts& facts) const override {
    const Json json = parse_json(body, path);
    if (path == kModelsPath) return read_models(json, facts);
    if (path == kVersion) {
      facts.version = JsonObject(json, path).string("version", "");
      return;
    }
    if (path == kWeightInfo) {
      facts.weight_version = JsonObject(json, path).string("weight_version", "");
      return;
    }
    if (json.is_object() && json.contains("vllm_config")) read_config(json["vllm_config"], facts);
  }

  net::HttpRequest generate(const SampleRequest& request, const std::string& adapter,
                            const ServerFacts& facts) const override {
    const SamplingParams& s = request.sampling;
    OrderedJson body{{"model", adapter.empty() ? facts.model : adapter},
                     {"prompt", request.tokens},
                     {"n", asked_samples(request)},
                     {"max_tokens", asked_tokens(request, facts)},
                     {"min_tokens", s.min_tokens},
                     {"temperature", s.temperature},
                     {"top_p", s.top_p},
                     {"top_k", s.top_k},
                     {"min_p", s.min_p},
                     {"repetition_penalty", s.repetition_penalty},
                     {"frequency_penalty", s.frequency_penalty},
                     {"presence_penalty", s.presence_penalty},
                     {"stop", s.stop},
                     {"stop_token_ids", s.stop_token_ids},
                     {"include_stop_str_in_output", true},
                     {"ignore_eos", false},
                     {"skip_special_tokens", false},
                     {"logprobs", 0},
                     {"return_token_ids", true},
                     {"add_special_tokens", false},
                     {"stream", false}};
    for (const auto& [token, bias] : s.logit_bias) body["logit_bias"][std::to_string(token)] = bias;
    if (without_seed(facts).empty()) body["seed"] = request_seed(request);
    return post_json("/v1/completions", body);
  }

  // A seed of a request takes another path through the sampler, on which the CPU engine ends.
  std::string without_seed(const ServerFacts& facts) const override {
    if (facts.device.empty())
      return "the server does not say whether it runs on a CPU, where a seed ends it (VLLM_SERVER_DEV_MODE=1 in its "
             "environment has it say so)";
    return facts.device == "cpu" ? "vLLM on a CPU takes none" : "";
  }

  RemoteAnswer read_answer(const std::string& body, const SampleRequest& request) const override {
    const std::string where = "/v1/completions";
    const Json json = parse_json(body, where);
    RemoteAnswer answer;
    for (const Json& choice : JsonObject(json, where).value("choices"))
      answer.samples.push_back(read_choice(choice, request, where));
    if (json.contains("usage") && json["usage"].is_object() && json["usage"].contains("prompt_tokens_details"))
      answer.cached_tokens = integer_at(json["usage"]["prompt_tokens_details"], "cached_tokens").value_or(0);
    repeat_greedy(request, answer);
    check_count(request, answer, where);
    return answer;
  }

  std::string error_text(const net::HttpAnswer& answer) const override { return message_of(answer); }
  bool lacks_adapter(const net::HttpAnswer& answer, const std::string& adapter) const override {
    return answer.status == 404 && !adapter.empty() && message_of(answer).find(adapter) != std::string::npos;
  }

  net::HttpRequest load(const std::string& name, const std::string& directory, int64_t) const override {
    return post_json("/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", directory}});
  }
  net::HttpRequest unload(const std::string& name) const override {
    return post_json("/v1/unload_lora_adapter", {{"lora_name", name}});
  }
  // Requests that are running are computed again: their keys are of the weights before.
  std::vector<net::HttpRequest> load_weights(const std::string& directory, const std::string&) const override {
    return {post_json("/collective_rpc", {{"method", "reload_weights"}, {"kwargs", {{"weights_path", directory}}}}),
            {.method = "POST", .path = "/reset_prefix_cache?reset_running_requests=true"}};
  }
  std::optional<net::HttpRequest> mark_weights(const std::string& name) const override {
    return post_json("/update_weight_version", {{"new_version", name}});
  }
  net::HttpRequest pause(bool abort) const override {
    return {.method = "POST", .path = abort ? "/pause?mode=abort" : "/pause?mode=keep"};
  }
  net::HttpRequest resume() const override { return {.method = "POST", .path = "/resume"}; }
  std::optional<net::HttpRequest> checksums() const override {
    return post_json("/weight_checker", {{"action", "checksum"}});
  }
  std::map<std::string, std::string> read_checksums(const std::string& body) const override {
    return parse_json(body, "/weight_checker").at("checksums").get<std::map<std::string, std::string>>();
  }
  bool succeeded(const net::HttpAnswer& answer) const override {
    const Json json = Json::parse(answer.body, nullptr, false);
    return answer.ok() && !(json.is_object() && json.contains("success") && json["success"] == false);
  }

 private:
  static constexpr const char* kServerInfo = "/server_info?config_format=json";
  static constexpr const char* kVersion = "/version";
  static constexpr const char* kWeightInfo = "/weight_info";

  static void read_config(const Json& config, ServerFacts& facts) {
    const auto part = [&](const char* key) {
      return config.is_object() && config.contains(key) ? config[key] : Json(nullptr);
    };
    const Json lora = part("lora_config"), model = part("model_config"), parallel = part("parallel_config"),
               device = part("device_config");
    facts.lora_enabled = lora.is_object();
    facts.max_loras = integer_at(lora, "max_loras");
    facts.max_lora_rank = integer_at(lora, "max_lora_rank");
    facts.data_parallel = integer_at(parallel, "data_parallel_size");
    if (model.is_object()) {
      facts.quantized = model.contains("quantization") && !model["quantization"].is_null();
      const std::string mode =
          model.value("logprobs_mode", Json("")).is_string() ? model.value("logprobs_mode", "") : "";
      if (mode.find("raw_logprobs") != std::string::npos) facts.logprobs = LogprobKind::raw;
      if (mode.find("processed_logprobs") != std::string::npos) facts.logprobs = LogprobKind::processed;
    }
    if (device.is_object() && device.contains("device_type") && device["device_type"].is_string())
      facts.device = device["device_type"].get<std::string>();
  }

  static RemoteSample read_choice(const Json& choice, const SampleRequest& request, const std::string& where) {
    const JsonObject object(choice, where);
    const std::string reason = object.string("finish_reason", "");
    const bool aborted = reason == "abort", empty = aborted && !object.has("logprobs");
    RemoteSample sample = checked_sample(
        empty ? std::vector<int32_t>() : object.value("token_ids").get<std::vector<int32_t>>(),
        empty ? std::vector<float>() : object.object("logprobs").value("token_logprobs").get<std::vector<float>>(),
        where, aborted);
    sample.aborted = aborted;
    if (reason != "stop" && reason != "length" && !aborted)
      throw FormatError({.what = "a sample did not end as it should", .where = where, .got = reason});
    sample.finish = reason == "stop" ? FinishReason::stop : FinishReason::length;
    if (choice.contains("stop_reason") && choice["stop_reason"].is_string())
      sample.stop_index = stop_index_of(request.sampling, choice["stop_reason"].get<std::string>());
    return sample;
  }
};

}  // namespace

std::unique_ptr<const Dialect> make_vllm_dialect() {
  return std::make_unique<VllmDialect>();
}

}  // namespace lockstep::rollout
