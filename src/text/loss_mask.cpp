#include "text/loss_mask.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"

namespace lockstep::text {

namespace {

constexpr const char* kWeightKeys[] = {"weight", "step_loss_mask"};
constexpr const char* kWhiteSpace = " \t\r\n";
constexpr const char* kBlocksHelp =
    "a template with {% generation %} blocks (ChatOptions::template_file FILE), such as TRL's *_training.jinja";

struct Turn {
  size_t message = 0;  // of a block: its own number, where nobody asks for the message
  Span span;
  float weight = 1;
};

std::string turn_name(size_t message) {
  return "messages[" + std::to_string(message) + "]";
}

bool is_assistant(const OrderedJson& message) {
  return message.is_object() && message.value("role", OrderedJson()) == "assistant";
}

// The weight of a message, which then says it no more.
float take_weight(OrderedJson& message, size_t index) {
  if (!message.is_object()) return 1;
  double weight = 1;
  for (const char* key : kWeightKeys) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) continue;
    const double factor = found->is_boolean() ? found->get<bool>() : found->is_number() ? found->get<double>() : -1;
    if (!(factor >= 0) || !std::isfinite(factor))
      throw DataError({.what = "a message's weight is not one",
                       .where = turn_name(index) + "." + key,
                       .got = found->dump(),
                       .wanted = "0, 1, or a finite number >= 0"});
    if (factor > 0 && factor != 1 && !is_assistant(message))
      throw DataError({.what = "only turns of the assistant are targets",
                       .where = turn_name(index) + "." + key,
                       .got = found->dump(),
                       .wanted = "no weight, or a weight on a message of the assistant"});
    weight *= factor;
    message.erase(key);
  }
  return static_cast<float>(weight);
}

// The beginning of a conversation, with what the template sees beside it.
ChatInput beginning(const ChatInput& conversation, OrderedJson messages, bool add_generation_prompt) {
  return {.messages = std::move(messages),
          .tools = conversation.tools,
          .kwargs = conversation.kwargs,
          .add_generation_prompt = add_generation_prompt,
          .now = conversation.now};
}

MaskedTokens tokens_of(const Tokenizer& tokenizer, std::string text, float weight) {
  Encoding encoding = tokenizer.encode_with_spans(text);
  MaskedTokens tokens{.text = std::move(text), .ids = std::move(encoding.ids), .spans = std::move(encoding.spans)};
  tokens.weights.assign(tokens.ids.size(), weight);
  return tokens;
}

// The first token that holds this byte.
std::optional<size_t> token_at(const std::vector<Span>& spans, size_t byte) {
  const auto found =
      std::partition_point(spans.begin(), spans.end(), [byte](const Span& span) { return span.end <= byte; });
  if (found == spans.end() || found->begin > byte) return std::nullopt;
  return static_cast<size_t>(found - spans.begin());
}

// Tokens [first, end) of a stretch of text; nullopt when its first character has none. transformers takes everything up
// to the end of the row when it finds no token, or token 0, for the last character.
std::optional<std::pair<size_t, size_t>> tokens_in(const MaskedTokens& tokens, const Span& span) {
  const std::optional<size_t> first = token_at(tokens.spans, span.begin);
  if (!first) return std::nullopt;
  size_t last_character = span.end;
  while (last_character > 0 && (static_cast<unsigned char>(tokens.text[--last_character]) & 0xC0) == 0x80) continue;
  const size_t last = token_at(tokens.spans, last_character).value_or(0);
  return std::pair(*first, last == 0 ? tokens.ids.size() : last + 1);
}

// Without what stands behind the end token.
void drop_trailing_space(const Tokenizer& tokenizer, const MaskedTokens& tokens, Span& span) {
  const size_t last = tokens.text.find_last_not_of(kWhiteSpace, span.end - 1);
  if (last == std::string::npos || last < span.begin) return;
  const std::optional<size_t> token = token_at(tokens.spans, last);
  if (token && tokenizer.is_special(tokens.ids[*token]) && tokens.spans[*token].end == last + 1) span.end = last + 1;
}

// The text that `begins` must begin is `whole`.
void require_prefix(const std::string& begins, const std::string& whole, size_t message) {
  if (whole.starts_with(begins)) return;
  const auto differ = std::mismatch(begins.begin(), begins.end(), whole.begin(), whole.end());
  const auto at = static_cast<size_t>(differ.first - begins.begin());
  throw DataError({.what = "the chat template renders the beginning of the conversation differently when more follows",
                   .where = turn_name(message),
                   .got = "\"" + begins.substr(at, 40) + "\" at byte " + std::to_string(at),
                   .wanted = "\"" + whole.substr(at, 40) + "\", as in the whole conversation",
                   .attempt = kBlocksHelp});
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

// The tokens of a turn say what its text says, as the tokenizer reads that text alone.
void verify_turn(const Tokenizer& tokenizer, const MaskedTokens& tokens, const Turn& turn) {
  const auto range = tokens_in(tokens, turn.span);
  std::string got, wanted = tokens.text.substr(turn.span.begin, turn.span.end - turn.span.begin);
  if (range) {
    const auto [first, end] = *range;
    got = tokenizer.decode(std::span(tokens.ids).subspan(first, end - first));
    wanted = tokens.text.substr(tokens.spans[first].begin, tokens.spans[end - 1].end - tokens.spans[first].begin);
  }
  if (trimmed(got) == trimmed(tokenizer.decode(tokenizer.encode(wanted)))) return;
  throw DataError({.what = "the tokens of a turn do not decode to its text",
                   .where = turn_name(turn.message),
                   .got = "\"" + got.substr(0, 80) + "\"",
                   .wanted = "\"" + wanted.substr(0, 80) + "\""});
}

std::vector<Turn> derived_turns(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                const ChatInput& conversation, const std::vector<float>& weights,
                                const MaskedTokens& tokens) {
  std::vector<Turn> turns;
  OrderedJson prefix = OrderedJson::array();
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const OrderedJson& message = conversation.messages[i];
    if (!is_assistant(message)) {
      prefix.push_back(message);
      continue;
    }
    if (prefix.empty())
      throw DataError({.what = "what stands before the first turn cannot be rendered by itself",
                       .where = turn_name(i),
                       .got = "a conversation that begins with the assistant",
                       .wanted = "a message of the user or the system before it",
                       .attempt = kBlocksHelp});
    const std::string before = chat_template.render(beginning(conversation, prefix, true)).text;
    require_prefix(before, tokens.text, i);
    prefix.push_back(message);
    const bool last = i + 1 == conversation.messages.size();
    const std::string with = last ? tokens.text : chat_template.render(beginning(conversation, prefix, false)).text;
    require_prefix(with, tokens.text, i);
    if (with.size() <= before.size()) continue;
    Turn turn{i, {before.size(), with.size()}, weights[i]};
    drop_trailing_space(tokenizer, tokens, turn.span);
    // A tokenizer that trims its spans has no token for the space before a word.
    while (turn.span.begin + 1 < turn.span.end && !token_at(tokens.spans, turn.span.begin)) ++turn.span.begin;
    verify_turn(tokenizer, tokens, turn);
    turns.push_back(turn);
  }
  return turns;
}

// Blocks and messages of the assistant are in the same order.
std::vector<Turn> generation_turns(const std::vector<Span>& spans, const ChatInput& conversation,
                                   const std::vector<float>& weights) {
  std::vector<size_t> messages;
  bool plain = true;
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    if (is_assistant(conversation.messages[i])) {
      messages.push_back(i);
      plain = plain && weights[i] == 1;
    }
  if (!plain && messages.size() != spans.size())
    throw DataError({.what = "weights of messages cannot be matched to the template's {% generation %} blocks",
                     .where = "messages",
                     .got = std::to_string(spans.size()) + " blocks",
                     .wanted = std::to_string(messages.size()) + ", one for each message of the assistant"});
  std::vector<Turn> turns;
  for (size_t i = 0; i < spans.size(); ++i)
    turns.push_back({plain ? i : messages[i], spans[i], plain ? 1 : weights[messages[i]]});
  return turns;
}

}  // namespace

MaskedTokens render_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, ChatInput input) {
  for (size_t i = 0; i < input.messages.size(); ++i)
    if (const float weight = take_weight(input.messages[i], i); weight != 1)
      throw DataError({.what = "weights of messages go with targets that are the assistant's turns",
                       .where = turn_name(i),
                       .got = std::to_string(weight),
                       .attempt = "RowOptions::loss_mask assistant; of a preference loss, whose targets are whole "
                                  "completions, rows without weights"});
  return tokens_of(tokenizer, chat_template.render(input).text, 1);
}

MaskedTokens assistant_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, ChatInput conversation) {
  std::vector<float> weights;
  for (size_t i = 0; i < conversation.messages.size(); ++i) weights.push_back(take_weight(conversation.messages[i], i));
  Rendered rendered = chat_template.render(conversation);
  MaskedTokens tokens = tokens_of(tokenizer, std::move(rendered.text), 0);
  const std::vector<Turn> turns = chat_template.marks_generation(!conversation.tools.is_null())
                                      ? generation_turns(rendered.generation_spans, conversation, weights)
                                      : derived_turns(chat_template, tokenizer, conversation, weights, tokens);
  for (const Turn& turn : turns) {
    const auto range = tokens_in(tokens, turn.span);
    if (!range) break;  // as transformers
    for (size_t t = range->first; t < range->second; ++t) tokens.weights[t] = turn.weight;
  }
  return tokens;
}

size_t common_prefix_length(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace lockstep::text
