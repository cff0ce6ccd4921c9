#include "server/routes/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/protocol/api_error.h"

namespace lockstep::server {

namespace {

// The model's own end token first: the others are reported as stop_reason.
std::vector<int32_t> end_tokens(const recipes::Base& base, const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = base.eos;
  const OrderedJson special = text::ChatTemplate::special_tokens(base.path.string());
  if (const auto eos = special.find("eos_token"); eos != special.end() && eos->is_string())
    if (const auto id = tokenizer.token_id(eos->get<std::string>())) {
      std::erase(ids, *id);
      ids.insert(ids.begin(), *id);
    }
  return ids;
}

SamplingRules sampling_rules(const recipes::Base& base, const text::Tokenizer& tokenizer,
                             const ServiceOptions& options) {
  SamplingRules rules{.max_logprobs = options.max_logprobs,
                      .processed_logprobs = options.processed_logprobs,
                      .vocab_size = base.config.vocab_size,
                      .end_tokens = end_tokens(base, tokenizer)};
  if (options.model_defaults)
    rules.defaults = recipes::read_sampling_defaults(
        options.generation_config ? options.generation_config : base.generation_config, "generation_config.json");
  return rules;
}

// What normalization shrinks at most, times the longest token, times the context.
size_t max_prompt_bytes(const text::Tokenizer& tokenizer, int64_t max_model_len) {
  constexpr size_t kShrinking = 4;
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.token_bytes(id).size());
  return kShrinking * longest * static_cast<size_t>(max_model_len);
}

uint64_t fresh_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Service::Service(service::Serving& serving, const text::Tokenizer& tokenizer,
                 std::optional<text::ChatTemplate> chat_template, ServiceOptions options, Loop loop)
    : serving(serving),
      tokenizer(tokenizer),
      chat_template(std::move(chat_template)),
      options(std::move(options)),
      rules(sampling_rules(*serving.base(), tokenizer, this->options)),
      keeper(this->options.weight_updates ? std::make_unique<service::BaseKeeper>(serving, this->options.weights_root)
                                          : nullptr),
      started(unix_seconds()),
      loop(loop),
      held(this->options.max_held_bytes),
      answers(std::move(loop), answer_worker),
      max_prompt_bytes_(max_prompt_bytes(tokenizer, serving.max_model_len())),
      random_(fresh_seed()),
      seeds_(this->options.seed.value_or(fresh_seed())) {}

Service::~Service() {
  serving.abort_all();  // nobody waits for the engine from here on
}

std::string Service::fingerprint() const {
  return fmt::format("lockstep-{}-{}", options.version, serving.base()->fingerprint.substr(0, 12));
}

std::string Service::weight_version() const {
  return keeper ? keeper->label() : "default";
}

bool Service::is_base(std::string_view name) const {
  return std::ranges::count(options.model_names, name) > 0;
}

Service::Model Service::model(const std::optional<std::string>& name) const {
  if (!name || name->empty()) return {options.model_names.front(), ""};
  if (is_base(*name)) return {*name, ""};
  const auto loaded = [&](const std::string& adapter) {
    try {
      serving.adapters().info(adapter);
      return true;
    } catch (const service::NoSuchAdapter&) {
      return false;
    }
  };
  if (loaded(*name)) return {*name, *name};
  for (const std::string& base : options.model_names)
    if (name->size() > base.size() + 1 && name->starts_with(base) && (*name)[base.size()] == ':')
      if (const std::string adapter = name->substr(base.size() + 1); loaded(adapter)) return {*name, adapter};
  throw no_such_model(*name);
}

std::vector<int32_t> Service::encode(std::string_view text, bool add_special) const {
  if (text.size() > max_prompt_bytes_)
    throw bad_request(fmt::format("This model's maximum context length is {} tokens. A prompt of {} bytes has more.",
                                  serving.max_model_len(), text.size()),
                      "prompt");
  return tokenizer.encode(text, add_special);
}

std::string Service::random_id() {
  const std::scoped_lock lock(random_mutex_);
  const uint64_t high = random_(), low = random_();
  return fmt::format("{:016x}{:016x}", high, low);
}

uint64_t Service::random_seed() {
  const std::scoped_lock lock(random_mutex_);
  return seeds_();
}

}  // namespace lockstep::server
