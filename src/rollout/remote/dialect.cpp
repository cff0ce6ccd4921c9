#include "rollout/remote/dialect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "core/random.h"
#include "rollout/remote/dialect_parts.h"

namespace lockstep::rollout {

const EngineFacts& engine_facts(EngineKind kind) {
  return *std::ranges::find(kEngines, kind, &EngineFacts::kind);
}

const char* engine_name(EngineKind kind) {
  return engine_facts(kind).name;
}

EngineKind parse_engine_kind(const std::string& name) {
  std::vector<const char*> names;
  for (const EngineFacts& engine : kEngines) {
    if (name == engine.name) return engine.kind;
    names.push_back(engine.name);
  }
  throw ConfigError({.what = "no such engine", .got = name, .wanted = fmt::format("{}", fmt::join(names, ", "))});
}

net::HttpRequest Dialect::load_tensors(const std::string&, const std::string&) const {
  throw ConfigError({.what = "servers of this kind take adapters as files, not as tensors"});
}
std::vector<net::HttpRequest> Dialect::load_weights(const std::string&, const std::string&) const {
  throw ConfigError({.what = "servers of this kind take adapters, not weights"});
}

std::optional<net::HttpRequest> Dialect::mark_weights(const std::string&) const {
  return std::nullopt;
}
net::HttpRequest Dialect::pause(bool) const {
  throw ConfigError({.what = "servers of this kind are not paused"});
}
net::HttpRequest Dialect::resume() const {
  throw ConfigError({.what = "servers of this kind are not paused"});
}
std::map<std::string, std::string> Dialect::read_checksums(const std::string&) const {
  return {};
}

// Each is defined in a file of this folder.
std::unique_ptr<const Dialect> make_vllm_dialect();
std::unique_ptr<const Dialect> make_sglang_dialect();
std::unique_ptr<const Dialect> make_lockstep_dialect();

std::unique_ptr<const Dialect> make_dialect(EngineKind kind) {
  switch (kind) {
    case EngineKind::vllm: return make_vllm_dialect();
    case EngineKind::sglang: return make_sglang_dialect();
    case EngineKind::lockstep: return make_lockstep_dialect();
  }
  return nullptr;
}

std::optional<int64_t> integer_at(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_integer()) return std::nullopt;
  return object[key].get<int64_t>();
}

void read_models(const Json& json, ServerFacts& facts) {
  for (const Json& card : JsonObject(json, kModelsPath).value("data")) {
    const JsonObject model(card, kModelsPath);
    if (model.has("parent")) {
      facts.adapters.push_back(model.string("id"));
    } else if (facts.model.empty()) {
      facts.model = model.string("id");
      facts.max_model_len = integer_at(card, "max_model_len");
    }
  }
}

bool is_greedy(const SamplingParams& params) {
  return params.temperature == 0;
}

int64_t asked_samples(const SampleRequest& request) {
  return is_greedy(request.sampling) ? 1 : request.n;
}

int64_t asked_tokens(const SampleRequest& request, const ServerFacts& facts) {
  int64_t context =
      request.sampling.max_context > 0 ? request.sampling.max_context : std::numeric_limits<int64_t>::max();
  context = std::min(context, facts.max_model_len.value_or(context));
  return std::max<int64_t>(std::min(request.sampling.max_tokens, context - static_cast<int64_t>(request.tokens.size())),
                           1);
}

int64_t request_seed(const SampleRequest& request, int64_t sample) {
  const auto bits = philox(request.sampling.seed,
                           {request.rollout, request.row, static_cast<uint32_t>(request.first_sample + sample), 0});
  return static_cast<int64_t>(bits[0] >> 1);
}

net::HttpRequest post_json(const std::string& path, const OrderedJson& body) {
  return {.method = "POST", .path = path, .body = json_text(body)};
}

RemoteSample checked_sample(std::vector<int32_t> tokens, std::vector<float> logprobs, const std::string& where,
                            bool may_be_empty) {
  constexpr float kNever = -9999;  // how OpenAI's routes write the log of 0
  if ((tokens.empty() && !may_be_empty) || tokens.size() != logprobs.size())
    throw FormatError({.what = "an answer has not one log-prob for each token",
                       .where = where,
                       .got = fmt::format("{} tokens, {} log-probs", tokens.size(), logprobs.size())});
  for (float& logprob : logprobs) {
    if (logprob <= kNever) logprob = -std::numeric_limits<float>::infinity();
    if (!(logprob <= 1e-3F))
      throw FormatError({.what = "a log-prob is above 0", .where = where, .got = fmt::format("{}", logprob)});
  }
  return {.tokens = std::move(tokens), .logprobs = std::move(logprobs)};
}

void check_vocabulary(std::span<const int32_t> tokens, int64_t vocab_size) {
  for (const int32_t token : tokens)
    if (token < 0 || (vocab_size > 0 && token >= vocab_size))
      throw FormatError({.what = "a server answers with a token that the model does not have",
                         .got = fmt::format("token {}", token),
                         .wanted = vocab_size > 0 ? fmt::format("0 to {}", vocab_size - 1) : "0 or more",
                         .attempt = "a server of the run's model, with its tokenizer"});
}

void repeat_greedy(const SampleRequest& request, RemoteAnswer& answer) {
  if (is_greedy(request.sampling) && answer.samples.size() == 1)
    answer.samples.resize(static_cast<size_t>(request.n), RemoteSample(answer.samples.front()));
}

void check_count(const SampleRequest& request, const RemoteAnswer& answer, const std::string& where) {
  if (static_cast<int64_t>(answer.samples.size()) != request.n)
    throw FormatError({.what = "an answer has another number of samples",
                       .where = where,
                       .got = std::to_string(answer.samples.size()),
                       .wanted = std::to_string(request.n)});
}

int64_t stop_index_of(const SamplingParams& params, const std::string& stop) {
  const auto found = std::ranges::find(params.stop, stop);
  return found == params.stop.end() ? -1 : found - params.stop.begin();
}

std::string message_of(const net::HttpAnswer& answer) {
  constexpr size_t kMax = 500;
  const Json json = Json::parse(answer.body, nullptr, false);
  const auto text = [](const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); };
  if (json.is_object()) {
    if (json.contains("error") && json["error"].is_object() && json["error"].contains("message"))
      return text(json["error"]["message"]);
    for (const char* key : {"error", "error_message", "message", "detail"})
      if (json.contains(key) && !json[key].is_null()) return text(json[key]);
  }
  return answer.body.substr(0, kMax);
}

}  // namespace lockstep::rollout
