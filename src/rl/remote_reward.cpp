#include "rl/remote_reward.h"

#include <array>
#include <charconv>
#include <utility>

#include "rl/reward/code.h"
#include "rl/reward/extract.h"
#include "rl/score_json.h"

namespace lockstep::rl {

namespace {

std::string with_fields(std::string_view text, const RewardSample& sample) {
  const std::array<std::pair<std::string_view, const std::string*>, 3> fields = {
      {{"{prompt}", &sample.row->prompt}, {"{response}", &sample.response}, {"{label}", &sample.row->label}}};
  std::string out;
  while (!text.empty()) {
    bool found = false;
    for (const auto& [name, value] : fields) {
      if (!text.starts_with(name)) continue;
      out += *value;
      text.remove_prefix(name.size());
      found = true;
      break;
    }
    if (found) continue;
    out += text.front();
    text.remove_prefix(1);
  }
  return out;
}

std::optional<double> last_score(std::string_view text) {
  constexpr std::string_view kOpen = "<score>", kClose = "</score>";
  const size_t close = text.rfind(kClose);
  if (close == std::string_view::npos) return std::nullopt;
  const size_t open = text.rfind(kOpen, close);
  if (open == std::string_view::npos) return std::nullopt;
  const std::string_view inside = trimmed(text.substr(open + kOpen.size(), close - open - kOpen.size()));
  double score = 0;
  const auto [end, error] = std::from_chars(inside.data(), inside.data() + inside.size(), score);
  const bool whole = error == std::errc() && end == inside.data() + inside.size();
  return whole ? std::optional(score) : std::nullopt;
}

// A member of members; null: it is not there.
Json member(const Json& value, std::initializer_list<const char*> keys) {
  const Json* at = &value;
  for (const char* key : keys) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return *at;
}

}  // namespace

std::vector<std::string> RemoteReward::requests(const RewardSample& sample, std::string& /*failure*/) const {
  return {json_text(
      OrderedJson{{"prompt", sample.row->prompt}, {"response", sample.response}, {"label", sample.row->label}})};
}

Score RemoteReward::read(const RewardSample& /*sample*/, const std::vector<std::string>& answers) const {
  const Json answer = Json::parse(answers[0], nullptr, false);
  if (answer.is_discarded()) return Score::unknown("the answer is no JSON: " + excerpt(answers[0]));
  return score_of_json(answer, reward_key_);
}

const char* judge_prompt() {
  return "You grade the answer to a task.\n\nTask:\n{prompt}\n\nReference answer:\n{label}\n\nAnswer to "
         "grade:\n{response}\n\n"
         "How good is the answer, from 0 (wrong) to 1 (right)? Reason in a few words, then end with "
         "<score>NUMBER</score>.";
}

std::vector<std::string> JudgeReward::requests(const RewardSample& sample, std::string& /*failure*/) const {
  const std::string text = with_fields(judge_.prompt.empty() ? judge_prompt() : judge_.prompt, sample);
  OrderedJson messages = OrderedJson::array();
  messages.push_back({{"role", "user"}, {"content", text}});
  return {json_text(OrderedJson{
      {"model", judge_.model}, {"messages", messages}, {"temperature", 0}, {"max_tokens", judge_.max_tokens}})};
}

Score JudgeReward::read(const RewardSample& /*sample*/, const std::vector<std::string>& answers) const {
  const Json answer = Json::parse(answers[0], nullptr, false);
  const Json choices = member(answer, {"choices"});
  const Json said = choices.is_array() && !choices.empty() ? member(choices[0], {"message", "content"}) : Json();
  if (!said.is_string()) return Score::unknown("the judge's answer is no chat completion: " + excerpt(answers[0]));
  const auto text = said.get<std::string>();
  const std::optional<double> score = last_score(text);
  return score ? Score::of(*score) : Score::unknown("the judge gave no <score>: " + excerpt(text));
}

std::vector<std::string> SandboxFusionReward::requests(const RewardSample& sample, std::string& failure) const {
  const std::optional<CodeCases> cases = code_cases(sample.row->label);
  if (!cases) failure = std::string("the label is not ") + wanted_cases();
  std::vector<std::string> bodies;
  if (!cases) return bodies;
  const std::string code = code_of(sample.response);
  for (const CodeCase& one : cases->cases)
    bodies.push_back(json_text(OrderedJson{{"code", code + one.appended},
                                           {"language", "python"},
                                           {"stdin", one.input},
                                           {"compile_timeout", sandbox_.run_timeout_s},
                                           {"run_timeout", sandbox_.run_timeout_s},
                                           {"memory_limit_MB", sandbox_.memory_mb},
                                           {"files", OrderedJson::object()},
                                           {"fetch_files", OrderedJson::array()}}));
  return bodies;
}

Score SandboxFusionReward::read(const RewardSample& sample, const std::vector<std::string>& answers) const {
  const std::optional<CodeCases> cases = code_cases(sample.row->label);
  size_t passed = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Json answer = Json::parse(answers[i], nullptr, false);
    const Json status = member(answer, {"status"});
    if (status != "Success" && status != "Failed") return Score::unknown("the sandbox failed: " + excerpt(answers[i]));
    const Json out = member(answer, {"run_result", "stdout"});
    const bool ran = status == "Success" && member(answer, {"run_result", "return_code"}) == 0 && out.is_string();
    passed += ran && cases->cases[i].passes(out.get<std::string>()) ? 1 : 0;
  }
  return Score::of(static_cast<double>(passed) / static_cast<double>(answers.size()));
}

}  // namespace lockstep::rl
