#include "server/protocol/sglang_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "server/protocol/api_error.h"

namespace lockstep::server {

namespace {

// The values a batch has one of each for, or all alike.
std::vector<const OrderedJson*> spread(const Fields& fields, std::string_view name, size_t count) {
  const OrderedJson* value = fields.find(name);
  std::vector<const OrderedJson*> values(count, value);
  if (value == nullptr || !value->is_array()) return values;
  if (value->size() != count)
    throw bad_request(fmt::format("`{}` holds {} values for {} prompts.", name, value->size(), count),
                      std::string(name));
  for (size_t i = 0; i < count; ++i) values[i] = (*value)[i].is_null() ? nullptr : &(*value)[i];
  return values;
}

// Fields that all prompts of a batch must have in common, given once or once for each.
OrderedJson common_values(const Fields& fields, std::initializer_list<const char*> names, size_t count) {
  OrderedJson common = OrderedJson::object();
  for (const char* name : names) {
    const std::vector<const OrderedJson*> values = spread(fields, name, count);
    for (const OrderedJson* value : values)
      if ((value == nullptr) != (values[0] == nullptr) || (value != nullptr && *value != *values[0]))
        throw bad_request(fmt::format("`{}` must be the same for all prompts of a batch.", name), name);
    if (values[0] != nullptr) common[name] = *values[0];
  }
  return common;
}

void read_prompts(const Fields& fields, SglangRequest& request) {
  if (fields.has("text") == fields.has("input_ids"))
    throw bad_request("Give one of `text` and `input_ids`.", fields.has("text") ? "text" : "input_ids");
  if (const OrderedJson* text = fields.find("text")) {
    request.batch = text->is_array();
    request.prompts = *fields.strings("text");
    if (request.batch && text->empty()) throw bad_request("`text` must not be an empty list.", "text");
    return;
  }
  const OrderedJson& ids = *fields.find("input_ids");
  if (!ids.is_array() || ids.empty()) fields.wrong("input_ids", ids, "a list of token ids or a list of such lists");
  request.batch = ids.front().is_array();
  std::vector<std::vector<int32_t>> prompts;
  if (!request.batch)
    prompts.push_back(read_ids(ids, "input_ids"));
  else
    for (const OrderedJson& item : ids) prompts.push_back(read_ids(item, "input_ids"));
  request.prompts = std::move(prompts);
}

// One list for all prompts of a batch, or the same list for each.
std::vector<int32_t> read_candidates(const Fields& fields, size_t count, const SamplingRules& rules) {
  constexpr const char* kName = "token_ids_logprob";
  const OrderedJson* list = fields.find(kName);
  if (list == nullptr || (list->is_array() && list->empty())) return {};
  const bool nested = list->is_array() && list->front().is_array();
  const OrderedJson common = nested ? common_values(fields, {kName}, count) : OrderedJson::object();
  std::vector<int32_t> ids = read_ids(nested ? common.at(kName) : *list, kName);
  check_vocabulary(ids, rules, kName);
  return ids;
}

// Log-probs of given tokens are those of places of the prompt.
void check_candidates(const SglangRequest& request) {
  if (request.common.sampling.prompt_candidates.empty()) return;
  const auto refuse = [](const char* wanted) {
    throw bad_request(fmt::format("`token_ids_logprob` is answered for the prompt alone: {}.", wanted),
                      "token_ids_logprob");
  };
  if (request.logprob_start < 0) refuse("ask for `return_logprob` and a `logprob_start_len` of 0 or more");
  if (request.max_tokens != 0) refuse("`sampling_params.max_new_tokens` must be 0");
}

// Null, empty, or a list of such values.
bool says_nothing(const OrderedJson& value) {
  if (value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty())) return true;
  return value.is_structured() && (value.is_object() ? value.empty() : std::ranges::all_of(value, says_nothing));
}

void refuse_unsupported_prompts(const Fields& fields) {
  for (const char* name : {"input_embeds", "image_data", "video_data", "audio_data"})
    if (fields.has(name)) throw bad_request(fmt::format("`{}` is not supported by this server.", name), name);
  for (const char* name : {"custom_logit_processor", "session_params"})
    if (const OrderedJson* value = fields.find(name); value != nullptr && !says_nothing(*value))
      throw bad_request(fmt::format("`{}` is not supported by this server.", name), name);
  if (fields.flag("return_hidden_states"))
    throw bad_request("`return_hidden_states` is not supported by this server.", "return_hidden_states");
}

// SGLang refuses other names, too; the last two lines are Lockstep's own.
void refuse_unknown_parameters(const Fields& given) {
  constexpr std::string_view kKnown[] = {"max_new_tokens",
                                         "stop",
                                         "stop_token_ids",
                                         "stop_regex",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "frequency_penalty",
                                         "presence_penalty",
                                         "repetition_penalty",
                                         "min_new_tokens",
                                         "n",
                                         "json_schema",
                                         "regex",
                                         "ebnf",
                                         "structural_tag",
                                         "ignore_eos",
                                         "skip_special_tokens",
                                         "spaces_between_special_tokens",
                                         "no_stop_trim",
                                         "custom_params",
                                         "stream_interval",
                                         "logit_bias",
                                         "sampling_seed",
                                         "rollout",
                                         "row",
                                         "first_sample",
                                         "logprob_temperature"};
  for (const auto& [name, value] : given.json().items())
    if (std::ranges::count(kKnown, std::string_view(name)) == 0)
      throw bad_request(fmt::format("`{}` is not a sampling parameter.", given.full_name(name)), given.full_name(name));
}

// Takes the seeds out of a batch's list of sampling parameters: each prompt may have its own.
std::vector<std::optional<uint64_t>> take_seeds(OrderedJson& parameters) {
  std::vector<std::optional<uint64_t>> seeds;
  for (OrderedJson& one : parameters) {
    seeds.emplace_back();
    if (!one.is_object()) continue;
    if (const auto seed = Fields(one, "sampling_params.").integer("sampling_seed"))
      seeds.back() = static_cast<uint64_t>(*seed);
    one.erase("sampling_seed");
  }
  return seeds;
}

// SGLang's names and defaults onto vLLM's fields, whose ranges are the same or wider.
SamplingFields read_parameters(const Fields& given, const SamplingRules& rules) {
  for (const char* name : {"stop_regex", "json_schema", "regex", "ebnf", "structural_tag"})
    if (given.has(name))
      throw bad_request(fmt::format("`{}` is not supported by this server.", given.full_name(name)),
                        given.full_name(name));
  OrderedJson fields = given.json();
  for (const char* name : {"temperature", "n", "seed", "min_tokens", "prompt_logprobs", "top_k"}) fields.erase(name);
  SamplingRules plain = rules;
  plain.defaults = {};
  SamplingFields sampling = read_sampling(Fields(fields, "sampling_params."), plain);
  rollout::SamplingParams& params = sampling.params;
  constexpr float kMinTemperature = 1e-6f, kMinScale = 1e-5f;
  constexpr int64_t kMaxSamples = 16384;
  params.temperature =
      static_cast<float>(given.number("temperature", 0, std::numeric_limits<float>::max(), "non-negative").value_or(1));
  if (params.temperature < kMinTemperature) params.temperature = 0;
  if (params.temperature > 0) params.temperature = std::max(params.temperature, kMinScale);
  params.logprob_temperature = params.temperature == 0 ? 1 : params.temperature;
  params.top_k = given.integer("top_k", -1, kMaxTokens).value_or(-1);
  params.min_tokens = given.integer("min_new_tokens", 0, kMaxTokens).value_or(0);
  sampling.n = given.integer("n", 1, kMaxSamples).value_or(1);
  if (const auto seed = given.integer("sampling_seed")) {
    params.seed = static_cast<uint64_t>(*seed);
    sampling.seeded = true;
  }
  return sampling;
}

}  // namespace

SglangRequest parse_sglang(const OrderedJson& body, const SamplingRules& rules) {
  const Fields fields(body);
  SglangRequest request;
  read_prompts(fields, request);
  const size_t count = std::visit([](const auto& prompts) { return prompts.size(); }, request.prompts);
  for (const OrderedJson* name : spread(fields, "lora_path", count)) {
    if (name != nullptr && !name->is_string()) fields.wrong("lora_path", *name, "the name of an adapter");
    request.adapters.push_back(name == nullptr ? std::nullopt : std::optional(name->get<std::string>()));
  }
  if (const OrderedJson* ids = fields.find("rid")) {
    request.ids = *fields.strings("rid");
    for (const std::string& id : request.ids) check_repeated(id, "rid");
    if (ids->is_array() && request.ids.size() != count)
      throw bad_request(fmt::format("`rid` holds {} values for {} prompts.", request.ids.size(), count), "rid");
  }
  refuse_unsupported_prompts(fields);
  OrderedJson shared = OrderedJson::object();
  const std::initializer_list<const char*> names = {"sampling_params", "return_logprob", "top_logprobs_num",
                                                    "logprob_start_len"};
  for (const char* name : names)
    if (const OrderedJson* value = fields.find(name)) shared[name] = *value;
  if (shared.contains("sampling_params") && shared["sampling_params"].is_array())
    request.seeds = take_seeds(shared["sampling_params"]);
  const OrderedJson common_json = common_values(Fields(shared), names, count);
  const Fields each(common_json);
  const OrderedJson no_parameters = OrderedJson::object();
  const OrderedJson* parameters = each.find("sampling_params");
  const Fields sampling(parameters == nullptr ? no_parameters : *parameters, "sampling_params.");
  refuse_unknown_parameters(sampling);
  request.max_tokens = sampling.integer("max_new_tokens", 0, kMaxTokens);
  request.to_context = !request.max_tokens && sampling.json().contains("max_new_tokens");
  CommonFields& common = request.common;
  common.sampling = read_parameters(sampling, rules);
  common.options.stream = fields.flag("stream");
  common.options.cumulative = true;
  common.options.include_stop = sampling.flag("no_stop_trim");
  common.options.skip_special = sampling.flag("skip_special_tokens", true);
  common.options.return_token_versions = fields.flag("return_token_versions");
  common.options.logprobs_name = "top_logprobs_num";
  common.options.prompt_logprobs_name = "logprob_start_len";
  common.version = read_version_fields(fields);
  request.text_in_logprobs = fields.flag("return_text_in_logprobs");
  if (each.flag("return_logprob")) {
    common.options.logprobs = each.integer("top_logprobs_num", 0, rollout::SamplingParams::kMaxTopLogprobs).value_or(0);
    request.logprob_start = each.integer("logprob_start_len", -1, kMaxTokens).value_or(-1);
    if (request.logprob_start >= 0) common.sampling.prompt_logprobs = common.options.logprobs;
  }
  common.sampling.prompt_candidates = read_candidates(fields, count, rules);
  check_candidates(request);
  return request;
}

}  // namespace lockstep::server
