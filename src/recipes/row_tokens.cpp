#include "recipes/row_tokens.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "recipes/chat.h"
#include "text/loss_mask.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kLossMasks[] = {"auto", "assistant", "completion", "all"};

bool is_conversation(const OrderedJson& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const OrderedJson& m) { return m.is_object(); });
}

std::string keys_of(const OrderedJson& row) {
  std::vector<std::string> keys;
  for (const auto& [name, value] : row.items()) keys.push_back(name);
  return fmt::format("{}", fmt::join(keys, ", "));
}

const OrderedJson& field(const OrderedJson& row, const std::string& key) {
  const auto found = row.find(key);
  if (found != row.end() && !found->is_null()) return *found;
  if (found != row.end()) throw DataError({.what = "a field is null", .where = key, .wanted = "a value"});
  throw DataError({.what = "a row lacks a key", .got = keys_of(row), .wanted = key});
}

bool has(const OrderedJson& row, const std::string& key) {
  const auto found = row.find(key);
  return found != row.end() && !found->is_null();
}

[[noreturn]] void wrong_type(const std::string& key, const OrderedJson& value, const std::string& wanted) {
  throw DataError(
      {.what = "a value has the wrong type", .where = key, .got = value.dump().substr(0, 80), .wanted = wanted});
}

std::string string_of(const OrderedJson& row, const std::string& key) {
  const OrderedJson& value = field(row, key);
  if (!value.is_string()) wrong_type(key, value, "a string");
  return value.get<std::string>();
}

int64_t integer_of(const OrderedJson& value, const char* what, int64_t limit) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= limit)
    throw DataError({.what = what, .got = value.dump(), .wanted = fmt::format("an integer from 0 to {}", limit - 1)});
  return value.get<int64_t>();
}

const OrderedJson& list_of(const OrderedJson& row, const std::string& key) {
  const OrderedJson& value = field(row, key);
  if (!value.is_array()) wrong_type(key, value, "a list");
  return value;
}

// Of a row that has none of the keys which name a shape, or null there.
[[noreturn]] void refuse_shape(const OrderedJson& row, const std::string& messages_key) {
  for (const std::string& key :
       {std::string("tokens"), messages_key, std::string("text"), std::string("prompt"), std::string("completion")})
    if (row.contains(key)) field(row, key);  // throws: it is null
  throw DataError(
      {.what = "a row has none of the shapes of training data",
       .got = "keys " + keys_of(row),
       .wanted = fmt::format(R"({{"{}"}}, {{"prompt", "completion"}}, {{"text"}}, or {{"tokens", "loss_mask"}})",
                             messages_key),
       .attempt = "RowOptions::messages_key KEY, where lists of messages lie under another key"});
}

// The tokens of both sides of a preference and of the prompt that they share.
struct Preference {
  OrderedJson prompt, chosen, rejected;
};

OrderedJson part(const OrderedJson& value, size_t begin, size_t end) {
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    return text.substr(begin, end - begin);
  }
  return OrderedJson(OrderedJson::array_t(value.begin() + static_cast<std::ptrdiff_t>(begin),
                                          value.begin() + static_cast<std::ptrdiff_t>(end)));
}

// The common beginning of both sides, in whole characters or messages. As in TRL's extract_prompt, a space before the
// difference belongs to the completion.
size_t shared_length(const OrderedJson& chosen, const OrderedJson& rejected) {
  if (chosen.is_array()) {
    const size_t most = std::min(chosen.size(), rejected.size());
    size_t i = 0;
    while (i < most && chosen[i] == rejected[i]) ++i;
    return std::min(i, most > 0 ? most - 1 : 0);  // each side keeps a message of its own
  }
  const std::string a = chosen.get<std::string>(), b = rejected.get<std::string>();
  const size_t most = std::min(a.size(), b.size());
  size_t i = 0;
  while (i < most && a[i] == b[i]) ++i;
  const bool nested = i == most && most > 0;
  if (nested) --i;
  while (i > 0 && i < a.size() && (static_cast<unsigned char>(a[i]) & 0xC0) == 0x80) --i;
  return !nested && i > 0 && a[i - 1] == ' ' ? i - 1 : i;
}

Preference preference_of(const OrderedJson& row) {
  const OrderedJson &chosen = field(row, "chosen"), &rejected = field(row, "rejected");
  const bool strings = chosen.is_string() && rejected.is_string();
  if (!strings && !(is_conversation(chosen) && is_conversation(rejected)))
    wrong_type("chosen, rejected", chosen, "two strings, or two lists of messages");
  if (has(row, "prompt")) {
    const OrderedJson& prompt = field(row, "prompt");
    if (strings ? !prompt.is_string() : !is_conversation(prompt))
      wrong_type("prompt", prompt, strings ? "a string, as chosen and rejected" : "a list of messages");
    return {prompt, chosen, rejected};
  }
  const size_t shared = shared_length(chosen, rejected);
  const auto size = [&](const OrderedJson& value) { return strings ? value.get<std::string>().size() : value.size(); };
  return {part(chosen, 0, shared), part(chosen, shared, size(chosen)), part(rejected, shared, size(rejected))};
}

void mask_prompt(RowTokens& row, const std::vector<int32_t>& prompt) {
  row.prompt = text::common_prefix_length(prompt, row.tokens);
  row.unaligned = row.prompt < prompt.size();
  std::fill_n(row.weights.begin(), row.prompt, 0.0f);
}

OrderedJson joined(const OrderedJson& first, const OrderedJson& second) {
  OrderedJson all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

}  // namespace

const char* loss_mask_name(LossMaskType type) {
  return kLossMasks[static_cast<int>(type)];
}

LossMaskType parse_loss_mask_type(const std::string& name) {
  for (int i = 0; i < 4; ++i)
    if (name == kLossMasks[i]) return static_cast<LossMaskType>(i);
  for (const char* model : {"qwen", "qwen3", "qwen3_5", "distill_qwen"})
    if (name == model) return LossMaskType::assistant;
  throw ConfigError({.what = "unknown loss mask",
                     .where = "RowOptions::loss_mask",
                     .got = name,
                     .wanted = "auto, assistant, completion or all"});
}

struct RowTokenizer::Tools {
  text::Tokenizer tokenizer;
  int32_t eos;
  std::optional<text::ChatTemplate> chat_template;
};

RowTokenizer::RowTokenizer(const Base& base, const RowOptions& options) : base_(base), options_(options) {}
RowTokenizer::~RowTokenizer() = default;

RowTokenizer::Tools& RowTokenizer::tools() {
  if (!tools_) {
    text::Tokenizer tokenizer = text::Tokenizer::load(base_.path.string());
    const int32_t eos = eos_for_training(base_, tokenizer);
    tools_ = std::make_unique<Tools>(
        Tools{std::move(tokenizer), eos, load_chat_template(base_.path.string(), options_.chat)});
  }
  return *tools_;
}

RowTokens RowTokenizer::from_tokens(const OrderedJson& row) const {
  RowTokens result;
  for (const OrderedJson& token : list_of(row, "tokens"))
    result.tokens.push_back(static_cast<int32_t>(integer_of(token, "not a token id", base_.config.vocab_size)));
  for (const OrderedJson& value : list_of(row, "loss_mask"))
    result.weights.push_back(static_cast<float>(integer_of(value, "not a value of loss_mask", 2)));
  if (result.weights.size() != result.tokens.size())
    throw DataError({.what = "tokens and loss_mask differ in length",
                     .got = fmt::format("{} tokens, {} mask values", result.tokens.size(), result.weights.size())});
  if (!result.weights.empty() && result.weights[0] != 0)
    throw DataError({.what = "the first token cannot be a target: nothing comes before it",
                     .got = "loss_mask[0] = 1",
                     .wanted = "0"});
  return result;
}

RowTokens RowTokenizer::from_text(const std::string& prompt, const std::string& completion) {
  const Tools& t = tools();
  RowTokens result;
  result.tokens = t.tokenizer.encode(prompt + completion, true);
  if (result.tokens.empty() || result.tokens.back() != t.eos) result.tokens.push_back(t.eos);
  result.weights.assign(result.tokens.size(), 1.0f);
  if (prompt.empty() || options_.loss_mask == LossMaskType::all) return result;
  mask_prompt(result, t.tokenizer.encode(prompt, true));
  return result;
}

namespace {

const text::ChatTemplate& require_template(const std::optional<text::ChatTemplate>& chat_template, const Base& base) {
  if (chat_template) return *chat_template;
  throw ConfigError({.what = "messages need a chat template, and the model has none",
                     .where = base.path.string(),
                     .wanted = "chat_template.jinja, or chat_template in tokenizer_config.json",
                     .attempt = "ChatOptions::template_file FILE, or rows of {\"prompt\", \"completion\"} strings"});
}

RowTokens taken(text::MaskedTokens tokens) {
  return {.tokens = std::move(tokens.ids), .weights = std::move(tokens.weights)};
}

}  // namespace

RowTokens RowTokenizer::from_messages(const OrderedJson& row, const OrderedJson& messages) {
  const Tools& t = tools();
  const text::ChatTemplate& chat_template = require_template(t.chat_template, base_);
  text::ChatInput conversation = conversation_of(row, messages, options_.chat, "");
  if (options_.loss_mask == LossMaskType::all)
    return taken(text::render_tokens(chat_template, t.tokenizer, std::move(conversation)));
  if (options_.loss_mask == LossMaskType::completion)
    throw DataError({.what = "messages have turns and no completion", .attempt = "RowOptions::loss_mask assistant"});
  return taken(text::assistant_tokens(chat_template, t.tokenizer, std::move(conversation)));
}

RowTokens RowTokenizer::from_prompt(const OrderedJson& row, const OrderedJson& prompt, const OrderedJson& completion) {
  const Tools& t = tools();
  const text::ChatTemplate& chat_template = require_template(t.chat_template, base_);
  text::ChatInput whole = conversation_of(row, joined(prompt, completion), options_.chat, "");
  text::ChatInput asked = conversation_of(row, prompt, options_.chat, "");
  asked.add_generation_prompt = true;
  const bool assistant = options_.loss_mask == LossMaskType::assistant;
  RowTokens result = taken(assistant ? text::assistant_tokens(chat_template, t.tokenizer, std::move(whole))
                                     : text::render_tokens(chat_template, t.tokenizer, std::move(whole)));
  if (options_.loss_mask == LossMaskType::all) return result;
  mask_prompt(result, text::render_tokens(chat_template, t.tokenizer, std::move(asked)).ids);
  return result;
}

RowTokens RowTokenizer::sequence(const OrderedJson& row) {
  RowTokens result;
  const bool completes = has(row, "prompt") && has(row, "completion");
  if (has(row, "tokens")) {
    result = from_tokens(row);
  } else if (!completes && has(row, options_.messages_key)) {
    const OrderedJson& messages = field(row, options_.messages_key);
    if (!is_conversation(messages)) wrong_type(options_.messages_key, messages, "a list of messages");
    result = from_messages(row, messages);
  } else if (!completes && has(row, "text")) {
    result = from_text("", string_of(row, "text"));
  } else if (!has(row, "prompt") && !has(row, "completion")) {
    refuse_shape(row, options_.messages_key);
  } else {
    const OrderedJson &prompt = field(row, "prompt"), &completion = field(row, "completion");
    if (is_conversation(prompt) && is_conversation(completion))
      result = from_prompt(row, prompt, completion);
    else if (options_.loss_mask == LossMaskType::assistant)
      wrong_type("prompt, completion", prompt, "lists of messages, of which assistant turns can be told");
    else
      result = from_text(string_of(row, "prompt"), string_of(row, "completion"));
  }
  if (!result.weights.empty()) result.weights[0] = 0;  // nothing comes before it
  return result;
}

std::array<RowTokens, 2> RowTokenizer::preference(const OrderedJson& row) {
  const Preference sides = preference_of(row);
  std::array<RowTokens, 2> result;
  for (size_t i : {size_t{0}, size_t{1}}) {
    const OrderedJson& side = i == 0 ? sides.chosen : sides.rejected;
    result[i] = side.is_string() ? from_text(sides.prompt.get<std::string>(), side.get<std::string>())
                                 : from_prompt(row, sides.prompt, side);
  }
  const size_t prompt = std::max<size_t>(1, std::min(result[0].prompt, result[1].prompt));
  for (RowTokens& side : result)
    for (size_t t = 0; t < side.weights.size(); ++t) side.weights[t] = t < prompt ? 0.0f : 1.0f;
  return result;
}

}  // namespace lockstep::recipes
