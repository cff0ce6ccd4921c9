#include "rl/reward/code.h"

#include "core/json.h"
#include "rl/reward/extract.h"

namespace lockstep::rl {

namespace {

std::string_view without_end(std::string_view line) {
  const size_t last = line.find_last_not_of(" \t\r");
  return last == std::string_view::npos ? std::string_view() : line.substr(0, last + 1);
}

std::string canonical(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out.append(without_end(text.substr(begin, end - begin))).append("\n");
    begin = end + 1;
  }
  return std::string(trimmed(out));
}

bool all_texts(const Json& list) {
  if (!list.is_array() || list.empty()) return false;
  for (const Json& item : list)
    if (!item.is_string()) return false;
  return true;
}

std::optional<CodeCases> of_statements(const Json& statements) {
  if (!all_texts(statements)) return std::nullopt;
  CodeCases cases;
  for (const Json& statement : statements)
    cases.cases.push_back({.appended = "\n\n" + statement.get<std::string>() + "\n"});
  return cases;
}

}  // namespace

bool CodeCase::passes(std::string_view printed) const {
  return !output || canonical(*output) == canonical(printed);
}

std::optional<CodeCases> code_cases(std::string_view label) {
  const Json json = Json::parse(label, nullptr, false);
  if (json.is_array()) return of_statements(json);
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"assert_case", "tests"})
    if (json.contains(key)) return of_statements(json[key]);
  if (!json.contains("inputs") || !json.contains("outputs")) return std::nullopt;
  const Json &inputs = json["inputs"], &outputs = json["outputs"];
  if (!all_texts(inputs) || !all_texts(outputs) || inputs.size() != outputs.size()) return std::nullopt;
  CodeCases cases;
  for (size_t i = 0; i < inputs.size(); ++i)
    cases.cases.push_back({.input = inputs[i].get<std::string>(), .output = outputs[i].get<std::string>()});
  return cases;
}

const char* wanted_cases() {
  return "JSON: {\"inputs\": [text, ...], \"outputs\": [text, ...]}, or a list of statements";
}

std::string code_of(std::string_view response) {
  constexpr std::string_view kFence = "```";
  const std::string_view text = behind_thought(response);
  const size_t close = text.rfind(kFence);
  const size_t open = close == std::string_view::npos || close == 0 ? close : text.rfind(kFence, close - 1);
  if (open == std::string_view::npos || open == close) return std::string(text);
  const std::string_view inside = text.substr(open + kFence.size(), close - open - kFence.size());
  const size_t line = inside.find('\n');
  return std::string(line == std::string_view::npos ? inside : inside.substr(line + 1));
}

}  // namespace lockstep::rl
