// Another Lockstep: vLLM's /inference/v1/generate with the fields that make a sample reproducible, so that its bytes
// are those of the engine of this process.
#include <fmt/format.h>

#include <limits>

#include "rollout/remote/dialect_parts.h"

namespace lockstep::rollout {

namespace {

class LockstepDialect : public Dialect {
 public:
  std::vector<std::string> fact_paths() const override { return {kModelsPath, kHello}; }

  void read_facts(const std::string& path, const std::string& body, ServerFacts& facts) const override {
    const Json json = parse_json(body, path);
    const JsonObject object(json, path);
    if (path == kHello) {
      facts.hello = json_text(object.value("hello"));
      facts.version = object.object("hello").string("build");
      facts.device = object.object("hello").string("device");
      facts.max_loras = object.integer("max_loras");
      facts.max_lora_rank = object.integer("max_lora_rank");
      facts.lora_enabled = true;
      facts.logprobs = LogprobKind::tempered;
      return;
    }
    read_models(json, facts);
  }

  net::HttpRequest generate(const SampleRequest& request, const std::string& adapter,
                            const ServerFacts& facts) const override {
    const SamplingParams& s = request.sampling;
    OrderedJson sampling{{"n", asked_samples(request)},
                         {"max_tokens", asked_tokens(request, facts)},
                         {"min_tokens", s.min_tokens},
                         {"temperature", s.temperature},
                         {"logprob_temperature", s.logprob_temperature},
                         {"top_p", s.top_p},
                         {"top_k", s.top_k},
                         {"min_p", s.min_p},
                         {"repetition_penalty", s.repetition_penalty},
                         {"frequency_penalty", s.frequency_penalty},
                         {"presence_penalty", s.presence_penalty},
                         {"seed", s.seed},
                         {"rollout", request.rollout},
                         {"row", request.row},
                         {"first_sample", request.first_sample},
                         {"stop", s.stop},
                         {"stop_token_ids", s.stop_token_ids},
                         {"ignore_eos", true},  // end tokens are among stop_token_ids
                         {"logprobs", 0}};
    for (const auto& [token, bias] : s.logit_bias) sampling["logit_bias"][std::to_string(token)] = bias;
    OrderedJson body{{"model", adapter.empty() ? facts.model : adapter},
                     {"token_ids", request.tokens},
                     {"sampling_params", sampling},
                     {"stream", false}};
    // Somebody else may load another adapter under this name.
    if (!adapter.empty()) body["adapter_version"] = request.policy.version;
    return post_json(kGenerate, body);
  }

  std::string without_seed(const ServerFacts&) const override { return ""; }

  RemoteAnswer read_answer(const std::string& body, const SampleRequest& request) const override {
    const Json json = parse_json(body, kGenerate);
    check_version(json, request.policy);
    RemoteAnswer answer;
    for (const Json& choice : JsonObject(json, kGenerate).value("choices")) {
      const JsonObject object(choice, kGenerate);
      std::vector<float> logprobs;
      for (const Json& entry : object.object("logprobs").value("content"))
        logprobs.push_back(static_cast<float>(JsonObject(entry, kGenerate).number("logprob")));
      RemoteSample sample =
          checked_sample(object.value("token_ids").get<std::vector<int32_t>>(), std::move(logprobs), kGenerate);
      const std::string reason = object.string("finish_reason", "");
      if (reason != "stop" && reason != "length")
        throw FormatError({.what = "a sample did not end as it should", .where = kGenerate, .got = reason});
      sample.finish = reason == "stop" ? FinishReason::stop : FinishReason::length;
      answer.samples.push_back(std::move(sample));
    }
    repeat_greedy(request, answer);
    check_count(request, answer, kGenerate);
    return answer;
  }

  std::string error_text(const net::HttpAnswer& answer) const override { return message_of(answer); }
  bool lacks_adapter(const net::HttpAnswer& answer, const std::string& adapter) const override {
    return answer.status == 404 && !adapter.empty();
  }
  net::HttpRequest load(const std::string& name, const std::string& directory, int64_t version) const override {
    return post_json("/v1/load_lora_adapter",
                     {{"lora_name", name}, {"lora_path", directory}, {"adapter_version", version}});
  }
  net::HttpRequest unload(const std::string& name) const override {
    return post_json("/v1/unload_lora_adapter", {{"lora_name", name}});
  }

 private:
  static constexpr const char* kHello = "/hello";
  static constexpr const char* kGenerate = "/inference/v1/generate";

  static void check_version(const Json& json, const lora::PolicyId& asked) {
    const int64_t version = integer_at(json, "adapter_version").value_or(lora::PolicyId::kBase);
    if (version == asked.version) return;
    const auto text = [](int64_t number) {
      return number == lora::PolicyId::kBase ? std::string("the base") : fmt::format("version {}", number);
    };
    throw FormatError({.what = "an answer was made by another version of the adapter than was asked for",
                       .where = kGenerate,
                       .got = text(version),
                       .wanted = text(asked.version),
                       .attempt = "a server where nobody else loads adapters under the names of this run, and no proxy "
                                  "that changes requests"});
  }
};

}  // namespace

std::unique_ptr<const Dialect> make_lockstep_dialect() {
  return std::make_unique<LockstepDialect>();
}

}  // namespace lockstep::rollout
