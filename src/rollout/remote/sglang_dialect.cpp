// SGLang: /generate with token ids, /load_lora_adapter. Source: SGLang's srt/entrypoints/http_server.py.
#include <algorithm>

#include "rollout/remote/dialect_parts.h"

namespace lockstep::rollout {

namespace {

class SglangDialect : public Dialect {
 public:
  std::vector<std::string> fact_paths() const override { return {kModelsPath, "/server_info", kModelInfo}; }

  void read_facts(const std::string& path, const std::string& body, ServerFacts& facts) const override {
    const Json json = parse_json(body, path);
    const JsonObject object(json, path);
    if (path == kModelsPath) return read_models(json, facts);
    if (path == kModelInfo) {
      if (facts.model.empty()) facts.model = object.string("model_path", "");
      facts.weight_version = object.string("weight_version", "");
      return;
    }
    facts.version = object.string("version", "");
    const auto number = [&](const char* key) { return integer_at(json, key); };
    facts.max_lora_rank = number("max_lora_rank");
    facts.data_parallel = number("dp_size");
    // The base takes one of the places of a batch.
    if (const auto places = number("max_loras_per_batch")) facts.max_loras = *places - 1;
    if (const auto loaded = number("max_loaded_loras"))
      facts.max_loras = std::min(facts.max_loras.value_or(*loaded), *loaded);
    if (json.contains("enable_lora") && json["enable_lora"].is_boolean())
      facts.lora_enabled = json["enable_lora"].get<bool>();
    if (json.contains("device") && json["device"].is_string()) facts.device = json["device"].get<std::string>();
    facts.quantized = object.has("quantization");
    facts.seeds_samples = json.value("enable_deterministic_inference", Json()) == true;
    facts.logprobs = LogprobKind::tempered;  // unless its environment says otherwise, which only measuring shows
  }

  net::HttpRequest generate(const SampleRequest& request, const std::string& adapter,
                            const ServerFacts& facts) const override {
    const SamplingParams& s = request.sampling;
    OrderedJson sampling{{"n", asked_samples(request)},
                         {"max_new_tokens", asked_tokens(request, facts)},
                         {"min_new_tokens", s.min_tokens},
                         {"temperature", s.temperature},
                         {"top_p", s.top_p},
                         {"top_k", s.top_k <= 0 ? -1 : s.top_k},
                         {"min_p", s.min_p},
                         {"repetition_penalty", s.repetition_penalty},
                         {"frequency_penalty", s.frequency_penalty},
                         {"presence_penalty", s.presence_penalty},
                         {"stop", s.stop},
                         {"stop_token_ids", s.stop_token_ids},
                         {"ignore_eos", false},
                         {"skip_special_tokens", false},
                         {"spaces_between_special_tokens", false},
                         {"no_stop_trim", true}};
    for (const auto& [token, bias] : s.logit_bias) sampling["logit_bias"][std::to_string(token)] = bias;
    OrderedJson body{{"input_ids", request.tokens}, {"sampling_params", sampling}, {"return_logprob", true},
                     {"logprob_start_len", -1},     {"top_logprobs_num", 0},       {"stream", false}};
    if (!adapter.empty()) body["lora_path"] = adapter;
    if (without_seed(facts).empty()) seed(body, request);
    return post_json("/generate", body);
  }

  // Without that flag the field is ignored, and a server before 0.5.3 refuses it.
  std::string without_seed(const ServerFacts& facts) const override {
    return facts.seeds_samples ? "" : "SGLang reads one with --enable-deterministic-inference only";
  }

  RemoteAnswer read_answer(const std::string& body, const SampleRequest& request) const override {
    const std::string where = "/generate";
    const Json json = parse_json(body, where);
    RemoteAnswer answer;
    const Json list = json.is_array() ? json : Json::array({json});
    for (const Json& one : list) {
      answer.samples.push_back(read_sample(one, request, where));
      answer.cached_tokens = JsonObject(one, where).object("meta_info").integer("cached_tokens", 0);
    }
    repeat_greedy(request, answer);
    check_count(request, answer, where);
    return answer;
  }

  std::string error_text(const net::HttpAnswer& answer) const override { return message_of(answer); }
  bool lacks_adapter(const net::HttpAnswer& answer, const std::string& adapter) const override {
    return answer.status >= 400 && answer.status < 500 && !adapter.empty() &&
           message_of(answer).find(adapter) != std::string::npos;
  }

  net::HttpRequest load(const std::string& name, const std::string& directory, int64_t) const override {
    return post_json("/load_lora_adapter", {{"lora_name", name}, {"lora_path", directory}});
  }
  net::HttpRequest unload(const std::string& name) const override {
    return post_json("/unload_lora_adapter", {{"lora_name", name}});
  }
  net::HttpRequest load_tensors(const std::string& name, const std::string& tensors) const override {
    // The name comes first in an object that was written without it.
    net::HttpRequest request{.method = "POST", .path = "/load_lora_adapter_from_tensors"};
    request.body = "{\"lora_name\":" + Json(name).dump() + "," + tensors.substr(1);
    return request;
  }
  std::vector<net::HttpRequest> load_weights(const std::string& directory, const std::string& name) const override {
    return {post_json(
        "/update_weights_from_disk",
        {{"model_path", directory}, {"flush_cache", true}, {"abort_all_requests", false}, {"weight_version", name}})};
  }
  // Held requests are computed again afterwards: the cache is emptied with the weights.
  net::HttpRequest pause(bool abort) const override {
    return post_json("/pause_generation", {{"mode", abort ? "abort" : "retract"}});
  }
  net::HttpRequest resume() const override { return post_json("/continue_generation", OrderedJson::object()); }
  std::optional<net::HttpRequest> checksums() const override {
    return post_json("/weights_checker", {{"action", "checksum"}});
  }
  std::map<std::string, std::string> read_checksums(const std::string& body) const override {
    std::map<std::string, std::string> all;
    const Json json = parse_json(body, "/weights_checker");
    int number = 0;
    for (const Json& rank : json.at("ranks")) {
      const std::string before = std::to_string(number++) + ":";
      for (const auto& [name, sum] : rank.at("checksums").items()) all[before + name] = sum.get<std::string>();
    }
    return all;
  }
  bool succeeded(const net::HttpAnswer& answer) const override {
    const Json json = Json::parse(answer.body, nullptr, false);
    if (!answer.ok() || !json.is_object()) return false;
    if (json.contains("success")) return json["success"] == true;
    return json.contains("status") && json["status"] == "ok";  // of pausing and going on
  }

 private:
  // As a batch: the n samples of one prompt would share one seed, and be one sample n times.
  static void seed(OrderedJson& body, const SampleRequest& request) {
    const int64_t samples = asked_samples(request);
    OrderedJson prompts = OrderedJson::array(), parameters = OrderedJson::array();
    for (int64_t i = 0; i < samples; ++i) {
      prompts.push_back(request.tokens);
      parameters.push_back(body["sampling_params"]);
      parameters.back()["n"] = 1;
      parameters.back()["sampling_seed"] = request_seed(request, i);
    }
    body["input_ids"] = std::move(prompts);
    body["sampling_params"] = std::move(parameters);
  }

  static constexpr const char* kModelInfo = "/model_info";

  // Tokens are those of the log-probs: output_ids may lack the one that ended the sample.
  static RemoteSample read_sample(const Json& json, const SampleRequest& request, const std::string& where) {
    const JsonObject meta = JsonObject(json, where).object("meta_info");
    const JsonObject finish = meta.object("finish_reason");
    const std::string type = finish.string("type");
    const bool aborted = type == "abort";
    if (type != "stop" && type != "length" && !aborted)
      throw FormatError({.what = "a sample did not end as it should",
                         .where = where,
                         .got = type + " " + finish.string("message", "")});
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    for (const Json& triple : meta.value("output_token_logprobs")) {
      if (!triple.is_array() || triple.size() < 2 || !triple[0].is_number() || !triple[1].is_number_integer())
        throw FormatError({.what = "a log-prob is not [number, token, text]", .where = where, .got = triple.dump()});
      logprobs.push_back(triple[0].get<float>());
      tokens.push_back(triple[1].get<int32_t>());
    }
    RemoteSample sample = checked_sample(std::move(tokens), std::move(logprobs), where, aborted);
    sample.aborted = aborted;
    sample.finish = type == "stop" ? FinishReason::stop : FinishReason::length;
    if (finish.json().contains("matched") && finish.json()["matched"].is_string())
      sample.stop_index = stop_index_of(request.sampling, finish.string("matched"));
    return sample;
  }
};

}  // namespace

std::unique_ptr<const Dialect> make_sglang_dialect() {
  return std::make_unique<SglangDialect>();
}

}  // namespace lockstep::rollout
