#include "rl/teacher_dialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/json.h"
#include "rl/score_json.h"

namespace lockstep::rl {

namespace {

struct Entry {
  int32_t token = 0;
  float logprob = 0;
};

// What an answer says of one place of the sequence: the token there, the likeliest ones, and those asked for.
struct Place {
  std::vector<Entry> itself, likeliest, others;
};

[[noreturn]] void refuse(const std::string& where, const std::string& got) {
  throw FormatError({.what = "the teacher's answer has no log-probs of the prompt",
                     .where = where,
                     .got = got,
                     .wanted = "the log-prob of every token of the prompt, and of the tokens that were asked for",
                     .attempt = "a vLLM or Lockstep server that allows prompt_logprobs, or SGLang's /generate"});
}

bool is_asked(const train::Datum& datum, size_t t) {
  return datum.targets[t] >= 0 && (datum.weights.empty() || datum.weights[t] > 0);
}

std::vector<int32_t> row_candidates(const SequenceQuestion& question, size_t t) {
  const auto per_row = static_cast<size_t>(question.num_candidates());
  std::vector<int32_t> tokens;
  if (!is_asked(question.datum, t)) return tokens;
  for (const int32_t token : question.candidates.subspan(t * per_row, per_row))
    if (token >= 0) tokens.push_back(token);
  return tokens;
}

OrderedJson generate_body(const SequenceQuestion& question) {
  OrderedJson body = {{"input_ids", sequence_of(question.datum)},
                      {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 0}, {"skip_special_tokens", false}}},
                      {"return_logprob", true},
                      {"logprob_start_len", 0}};
  if (question.top > 0) body["top_logprobs_num"] = question.top;
  if (question.candidates.empty()) return body;
  OrderedJson positions = OrderedJson::array({OrderedJson::array()});  // of the first token, which nothing predicts
  std::set<int32_t> all;
  for (size_t t = 0; t < question.datum.tokens.size(); ++t) {
    const std::vector<int32_t> tokens = row_candidates(question, t);
    all.insert(tokens.begin(), tokens.end());
    positions.push_back(tokens);
  }
  positions.erase(positions.begin() + static_cast<std::ptrdiff_t>(sequence_of(question.datum).size()), positions.end());
  if (question.per_position)
    body["token_ids_logprob_positions"] = positions;
  else
    body["token_ids_logprob"] = all;
  return body;
}

// [[logprob, token, text], ...] of SGLang; null: nothing.
std::vector<Entry> triples(const Json& list, const std::string& where) {
  std::vector<Entry> entries;
  if (list.is_null()) return entries;
  if (!list.is_array()) refuse(where, excerpt(json_text(list)));
  for (const Json& triple : list) {
    if (!triple.is_array() || triple.size() < 2 || !triple[0].is_number() || !triple[1].is_number_integer())
      refuse(where, excerpt(json_text(triple)));
    entries.push_back({triple[1].get<int32_t>(), triple[0].get<float>()});
  }
  return entries;
}

std::vector<Place> read_generate(const Json& json, const SequenceQuestion& question, const std::string& where) {
  const Json& answer = json.is_array() && json.size() == 1 ? json[0] : json;
  const size_t length = sequence_of(question.datum).size();
  std::vector<Place> places(length);
  const auto each = [&](const char* field, bool wanted, const auto& take) {
    if (!wanted) return;
    const Json* meta = answer.is_object() && answer.contains("meta_info") ? &answer["meta_info"] : nullptr;
    if (meta == nullptr || !meta->is_object() || !meta->contains(field) || !(*meta)[field].is_array() ||
        (*meta)[field].size() != length)
      refuse(where, fmt::format("no meta_info.{} of {} tokens: {}", field, length, excerpt(json_text(json))));
    for (size_t p = 1; p < length; ++p) take(places[p], (*meta)[field][p]);
  };
  each("input_token_logprobs", true,
       [&](Place& place, const Json& triple) { place.itself = triples(Json::array({triple}), where); });
  each("input_top_logprobs", question.top > 0,
       [&](Place& place, const Json& list) { place.likeliest = triples(list, where); });
  each("input_token_ids_logprobs", !question.candidates.empty(),
       [&](Place& place, const Json& list) { place.others = triples(list, where); });
  return places;
}

std::vector<Place> read_completion(const Json& json, const SequenceQuestion& question, const std::string& where) {
  const Json* choice =
      json.is_object() && json.contains("choices") && json["choices"].is_array() && !json["choices"].empty()
          ? &json["choices"][0]
          : nullptr;
  if (choice == nullptr || !choice->is_object() || !choice->contains("prompt_logprobs"))
    refuse(where, excerpt(json_text(json)));
  const Json& tokens = (*choice)["prompt_logprobs"];
  const std::vector<int32_t> sequence = sequence_of(question.datum);
  if (!tokens.is_array() || tokens.size() != sequence.size())
    refuse(where, tokens.is_array() ? fmt::format("{} tokens instead of {}", tokens.size(), sequence.size())
                                    : excerpt(json_text(tokens)));
  std::vector<Place> places(sequence.size());
  for (size_t p = 1; p < sequence.size(); ++p) {
    if (!tokens[p].is_object()) continue;
    for (const auto& [id, said] : tokens[p].items()) {
      if (!said.is_object() || !said.contains("logprob") || !said["logprob"].is_number()) continue;
      places[p].likeliest.push_back({static_cast<int32_t>(std::stol(id)), said["logprob"].get<float>()});
    }
    places[p].itself = places[p].others = places[p].likeliest;
    std::ranges::sort(places[p].likeliest, [](const Entry& a, const Entry& b) {
      return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
    });
  }
  return places;
}

float logprob_of(std::span<const Entry> entries, int32_t token, size_t place, const std::string& where) {
  const auto found = std::ranges::find(entries, token, &Entry::token);
  if (found == entries.end()) refuse(where, fmt::format("nothing of token {} at place {}", token, place));
  return found->logprob;
}

}  // namespace

TeacherDialect dialect_of(const std::string& path) {
  return path.ends_with("/generate") ? TeacherDialect::generate : TeacherDialect::completions;
}

std::vector<int32_t> sequence_of(const train::Datum& datum) {
  std::vector<int32_t> tokens = datum.tokens;
  if (!datum.targets.empty() && datum.targets.back() >= 0) tokens.push_back(datum.targets.back());
  return tokens;
}

std::string request_of(TeacherDialect dialect, const std::string& model, const SequenceQuestion& question) {
  if (dialect == TeacherDialect::generate) return json_text(generate_body(question));
  return json_text(OrderedJson{{"model", model},
                               {"prompt", sequence_of(question.datum)},
                               {"max_tokens", 1},
                               {"temperature", 0},
                               {"add_special_tokens", false},
                               {"prompt_logprobs", question.top}});
}

train::RowOutputs read_answer(TeacherDialect dialect, const std::string& body, const SequenceQuestion& question,
                              const std::string& where) {
  const Json json = parse_json(body, where);
  const std::vector<Place> places = dialect == TeacherDialect::generate ? read_generate(json, question, where)
                                                                        : read_completion(json, question, where);
  const train::Datum& datum = question.datum;
  const auto top = static_cast<size_t>(question.top), others = static_cast<size_t>(question.num_candidates());
  const size_t rows = datum.tokens.size();
  train::RowOutputs said{.logprob = std::vector<float>(rows), .entropy = {}};
  said.top.assign(rows * top, -1);
  said.top_logprob.assign(rows * top, 0);
  said.candidate_logprob.assign(rows * others, 0);
  for (size_t t = 0; t < rows; ++t) {
    if (!is_asked(datum, t)) continue;
    const Place& place = places[t + 1];
    said.logprob[t] = logprob_of(place.itself, datum.targets[t], t + 1, where);
    if (place.likeliest.size() < top)
      refuse(where, fmt::format("{} of the {} likeliest tokens at place {}", place.likeliest.size(), top, t + 1));
    for (size_t i = 0; i < top; ++i) {
      said.top[t * top + i] = place.likeliest[i].token;
      said.top_logprob[t * top + i] = place.likeliest[i].logprob;
    }
    for (size_t i = 0; i < others; ++i)
      if (const int32_t token = question.candidates[t * others + i]; token >= 0)
        said.candidate_logprob[t * others + i] = logprob_of(place.others, token, t + 1, where);
  }
  return said;
}

}  // namespace lockstep::rl
