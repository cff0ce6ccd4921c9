#include "text/decoder.h"

#include <charconv>

#include "core/utf8.h"
#include "text/byte_level.h"
#include "text/component.h"

namespace lockstep::text {

namespace {

constexpr int64_t kMaxStripped = 1 << 20;

std::string replaced(const TextPattern& pattern, std::string_view with, std::string_view token) {
  std::vector<Span> matches;
  SearchBudget budget(token.size());
  pattern.find(token, matches, budget);
  std::string out;
  size_t done = 0;
  for (const Span& match : matches) {
    out.append(token.substr(done, match.begin - done)).append(with);
    done = match.end;
  }
  return out.append(token.substr(done));
}

// The byte of "<0x0A>"; nothing when `token` is no such token.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

// Both ends of one token.
std::string_view stripped(std::string_view token, std::string_view character, size_t start, size_t stop) {
  for (; start > 0 && token.starts_with(character); --start) token.remove_prefix(character.size());
  for (; stop > 0 && token.ends_with(character); --stop) token.remove_suffix(character.size());
  return token;
}

}  // namespace

Decoder::Decoder(const Json& json, const std::string& where) : present_(true) {
  for_each_component(json, where + ": decoder", "decoders",
                     [&](const Json& step, const std::string& place) { add_step(step, place); });
}

void Decoder::add_step(const Json& json, const std::string& where) {
  const JsonObject step(json, where);
  const std::string type = step.string("type");
  if (fused_ && type != "Strip" && type != "Replace" && type != "Fuse")
    unsupported_component(where, type + " behind Fuse or ByteLevel", "it before them");
  if (type == "ByteLevel") {
    steps_.push_back(ByteLevel{});
    fused_ = true;
  } else if (type == "Replace") {
    Replace replace{TextPattern(step.value("pattern"), where + ": Replace: pattern"), step.string("content")};
    const std::string_view literal = replace.pattern.literal();
    if (fused_ && (literal.empty() || read_utf8(literal).size != literal.size()))
      unsupported_component(where, "Replace of more than a character behind Fuse or ByteLevel", "it before them");
    steps_.push_back(std::move(replace));
  } else if (type == "ByteFallback") {
    steps_.push_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.push_back(Fuse{});
    fused_ = true;
  } else if (type == "Strip") {
    const auto count = [&](const char* key) {
      const int64_t value = step.integer(key, 0);
      if (value < 0 || value > kMaxStripped)
        unsupported_component(where + ": Strip: " + key, std::to_string(value), "0 or more");
      return static_cast<size_t>(value);
    };
    steps_.push_back(Strip{one_character(step, "content", " "), count("start"), count("stop"), fused_});
  } else if (type == "Metaspace") {
    const bool prefix = step.boolean("add_prefix_space", true) && step.string("prepend_scheme", "always") != "never";
    const Json pattern = {{"String", one_character(step, "replacement", "\u2581")}};
    steps_.push_back(Metaspace{TextPattern(pattern, where), prefix});
  } else {
    unsupported_component(where, type,
                          "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or a Sequence of them");
  }
}

Decoder::State Decoder::begin() const {
  State state;
  state.steps_.resize(steps_.size());
  for (size_t i = 0; i < steps_.size(); ++i)
    if (const auto* strip = std::get_if<Strip>(&steps_[i])) state.steps_[i].to_strip = strip->start;
  return state;
}

std::string Decoder::prepared(std::string_view spelling) const {
  const bool bytes = !steps_.empty() && std::holds_alternative<ByteLevel>(steps_[0]);
  return bytes ? spelled_bytes(spelling) : std::string(spelling);
}

std::string Decoder::bytes_of(std::string_view spelling) const {
  std::string token(spelling);
  for (const Step& step : steps_) {
    if (std::holds_alternative<Fuse>(step)) break;
    if (std::holds_alternative<ByteLevel>(step)) return spelled_bytes(token);
    if (const auto* replace = std::get_if<Replace>(&step)) token = replaced(replace->pattern, replace->text, token);
    if (const auto* metaspace = std::get_if<Metaspace>(&step)) token = replaced(metaspace->pattern, " ", token);
    if (std::holds_alternative<ByteFallback>(step)) {
      if (const auto byte = byte_of(token)) return std::string(1, *byte);
    }
    if (const auto* strip = std::get_if<Strip>(&step))
      token = std::string(stripped(token, strip->character, strip->start, strip->stop));
  }
  return token;
}

void Decoder::push(State& state, std::string_view token, std::string& text) const {
  if (!present_ && state.begun_) text += ' ';
  state.begun_ = true;
  emit(0, state, token, text);
}

void Decoder::emit(size_t step, State& state, std::string_view token, std::string& text) const {
  if (step == steps_.size()) {
    text += token;
    return;
  }
  State::Step& own = state.steps_[step];
  const bool first = !own.begun;
  own.begun = true;
  if (std::holds_alternative<ByteLevel>(steps_[step])) {
    emit_characters(step, state, step == 0 ? std::string(token) : spelled_bytes(token), text);
  } else if (const auto* replace = std::get_if<Replace>(&steps_[step])) {
    emit(step + 1, state, replaced(replace->pattern, replace->text, token), text);
  } else if (std::holds_alternative<ByteFallback>(steps_[step])) {
    if (const auto byte = byte_of(token)) {
      own.held += *byte;
      return;
    }
    flush_bytes(step, state, text);
    emit(step + 1, state, token, text);
  } else if (const auto* strip = std::get_if<Strip>(&steps_[step])) {
    if (strip->fused) return strip_stream(step, state, token, text);
    emit(step + 1, state, stripped(token, strip->character, strip->start, strip->stop), text);
  } else if (const auto* metaspace = std::get_if<Metaspace>(&steps_[step])) {
    emit(step + 1, state, replaced(metaspace->pattern, first && metaspace->drop_first ? "" : " ", token), text);
  } else {
    emit(step + 1, state, token, text);
  }
}

// The bytes of a run are text together, or each of them is U+FFFD.
void Decoder::flush_bytes(size_t step, State& state, std::string& text) const {
  const std::string bytes = std::move(state.steps_[step].held);
  state.steps_[step].held.clear();
  if (bytes.empty()) return;
  if (valid_utf8_prefix(bytes) == bytes.size()) return emit(step + 1, state, bytes, text);
  for (size_t i = 0; i < bytes.size(); ++i) emit(step + 1, state, "\uFFFD", text);
}

// Passes on whole characters; a part of one waits for the next bytes.
void Decoder::emit_characters(size_t step, State& state, std::string_view bytes, std::string& text) const {
  std::string& held = state.steps_[step].held;
  held += bytes;
  std::string_view rest = held;
  std::string whole;
  while (!rest.empty()) {
    const size_t valid = valid_utf8_prefix(rest);
    whole += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Char damaged = read_utf8(rest);
    if (damaged.cut) break;
    append_lossy(whole, rest.substr(0, damaged.size));
    rest.remove_prefix(damaged.size);
  }
  held = std::string(rest);
  if (!whole.empty()) emit(step + 1, state, whole, text);
}

void Decoder::strip_stream(size_t step, State& state, std::string_view part, std::string& text) const {
  const Strip& strip = std::get<Strip>(steps_[step]);
  State::Step& own = state.steps_[step];
  while (own.to_strip > 0 && !part.empty()) {
    if (!part.starts_with(strip.character)) {
      own.to_strip = 0;
      break;
    }
    part.remove_prefix(strip.character.size());
    --own.to_strip;
  }
  if (part.empty()) return;
  // What may be the end of the text waits.
  std::string whole = std::move(own.held);
  whole += part;
  const size_t kept = stripped(whole, strip.character, 0, strip.stop).size();
  own.held = whole.substr(kept);
  whole.resize(kept);
  if (!whole.empty()) emit(step + 1, state, whole, text);
}

void Decoder::finish(State& state, std::string& text) const {
  for (size_t step = 0; step < steps_.size(); ++step) {
    State::Step& own = state.steps_[step];
    if (std::holds_alternative<ByteFallback>(steps_[step])) {
      flush_bytes(step, state, text);
    } else if (std::holds_alternative<ByteLevel>(steps_[step]) && !own.held.empty()) {
      std::string whole;
      append_lossy(whole, own.held);
      own.held.clear();
      emit(step + 1, state, whole, text);
    }
  }
  state = begin();
}

}  // namespace lockstep::text
