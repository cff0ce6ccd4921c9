#include "recipes/samples/sample_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/json.h"

namespace lockstep::recipes {

namespace {

constexpr size_t kNumberChars = 32;
constexpr size_t kTokenChars = 64;  // of a line, for each token; more is allowed

void separate(std::string& out) {
  if (out.back() != '{') out += ',';
}

// `key` needs no escapes.
void append_key(std::string& out, std::string_view key) {
  separate(out);
  out += '"';
  out += key;
  out += "\":";
}

// A tree of JSON for every token would cost more than all else.
void append_quoted(std::string& out, std::string_view text) {
  const bool plain = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (!plain) {
    out += json_text(Json(text));
    return;
  }
  out += '"';
  out += text;
  out += '"';
}

void append_text(std::string& out, std::string_view key, std::string_view text) {
  append_key(out, key);
  append_quoted(out, text);
}

void append_integer(std::string& out, int64_t number) {
  char text[kNumberChars];
  out.append(text, std::to_chars(text, text + kNumberChars, number).ptr);
}

void append_number(std::string& out, std::string_view key, int64_t number) {
  append_key(out, key);
  append_integer(out, number);
}

void append_list(std::string& out, size_t size, const auto& append) {
  out += '[';
  for (size_t i = 0; i < size; ++i) {
    if (i > 0) out += ',';
    append(i);
  }
  out += ']';
}

void append_list(std::string& out, std::string_view key, size_t size, const auto& append) {
  append_key(out, key);
  append_list(out, size, append);
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void append_ids(std::string& out, std::string_view key, std::span<const int32_t> ids) {
  append_list(out, key, ids.size(), [&](size_t i) { append_integer(out, ids[i]); });
}

// One number where all are the same, else the list under the plural.
template <class T>
void append_one_or_all(std::string& out, const std::string& key, std::span<const T> values, const auto& append) {
  if (values.empty()) return;
  if (std::ranges::all_of(values, [&](const T& value) { return value == values.front(); })) {
    append_key(out, key);
    append(values.front());
  } else {
    append_list(out, key + "s", values.size(), [&](size_t i) { append(values[i]); });
  }
}

void append_pieces(std::string& out, std::span<const int32_t> response, const text::Tokenizer& tokenizer) {
  text::StreamingDecoder decoder(tokenizer, false);
  append_list(out, "pieces", response.size(), [&](size_t i) {
    std::string piece = decoder.push(response[i]);
    if (i + 1 == response.size()) piece += decoder.finish();
    append_quoted(out, piece);
  });
}

}  // namespace

void append_exact_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  if (value == 0 && std::signbit(value)) {
    out += "-0.0";  // readers take -0 for the integer, which has no sign
    return;
  }
  char text[kNumberChars];
  char* end = std::to_chars(text, text + kNumberChars, value).ptr;
  double as_double = 0;
  std::from_chars(text, end, as_double);
  // Not every shortest text of a float is nearest to it among the doubles' readings.
  if (static_cast<float>(as_double) != value)
    end = std::to_chars(text, text + kNumberChars, static_cast<double>(value)).ptr;
  out.append(text, end);
}

size_t response_begin(const rl::Trajectory& trajectory) {
  size_t begin = 0;
  while (begin < trajectory.tokens.size() && trajectory.mask[begin] == 0 &&
         trajectory.versions[begin] == lora::PolicyId::kBase && trajectory.sampled_logprobs[begin] == 0)
    ++begin;
  return begin;
}

std::string sample_line(int64_t step, const rl::Trajectory& trajectory, const TrainedRows& rows,
                        const text::Tokenizer* tokenizer) {
  const size_t begin = response_begin(trajectory), size = trajectory.tokens.size() - begin;
  const std::span<const int32_t> tokens(trajectory.tokens);
  const auto add_float = [](std::string& out, float value) { append_exact_float(out, value); };
  std::string out = "{";
  out.reserve(kTokenChars * trajectory.tokens.size() + trajectory.response.size());
  append_number(out, "step", step);
  append_number(out, "group", trajectory.group);
  append_number(out, "index", trajectory.index);
  if (trajectory.row) {
    append_text(out, "prompt", trajectory.row->prompt);
    append_text(out, "label", trajectory.row->label);
  }
  append_text(out, "response", trajectory.response);
  append_key(out, "reward");
  if (trajectory.reward)
    add_float(out, *trajectory.reward);
  else
    out += "null";
  if (!trajectory.reward_parts.empty()) {
    append_key(out, "rewards");
    out += '{';
    for (const rl::ScorePart& part : trajectory.reward_parts) {
      separate(out);
      out += json_text(Json(part.name)) + ":";
      if (part.value)
        add_float(out, *part.value);
      else
        out += "null";
    }
    out += '}';
  }
  append_key(out, "truncated");
  out += trajectory.truncated ? "true" : "false";
  append_ids(out, "prompt_tokens", tokens.first(begin));
  append_ids(out, "tokens", tokens.subspan(begin));
  if (tokenizer != nullptr) append_pieces(out, tokens.subspan(begin), *tokenizer);
  const auto of_response = [&](const auto& values) { return std::span(values).subspan(begin, size); };
  append_one_or_all<int64_t>(out, "version", of_response(trajectory.versions),
                             [&](int64_t version) { append_integer(out, version); });
  // Row begin - 1 is of the response's first token.
  const auto of_rows = [&](const std::vector<float>& values) {
    return values.size() + 1 != trajectory.tokens.size() || begin == 0 ? std::span<const float>()
                                                                       : std::span(values).subspan(begin - 1, size);
  };
  append_one_or_all<float>(out, "advantage", of_rows(rows.advantages), [&](float value) { add_float(out, value); });
  const std::span<const float> sampled = of_response(trajectory.sampled_logprobs);
  size_t sampled_begin = 0, sampled_end = 0;  // their text
  const auto add_floats = [&](const char* key, std::span<const float> values) {
    if (values.empty()) return;
    append_key(out, key);
    if (sampled_end > 0 && same_bits(values, sampled))  // as they mostly are on policy; numbers are slow to print
      out.append(out, sampled_begin, sampled_end - sampled_begin);
    else
      append_list(out, values.size(), [&](size_t i) { add_float(out, values[i]); });
  };
  if (!sampled.empty()) {
    append_key(out, "sampled_logprobs");
    sampled_begin = out.size();
    append_list(out, size, [&](size_t i) { add_float(out, sampled[i]); });
    sampled_end = out.size();
  }
  add_floats("policy_logprobs", of_rows(rows.policy_logprobs));
  add_floats("ref_logprobs", of_rows(rows.ref_logprobs));
  add_floats("train_logprobs", of_rows(rows.train_logprobs));
  add_floats("entropy", of_rows(rows.entropy));
  out += '}';
  return out;
}

}  // namespace lockstep::recipes
