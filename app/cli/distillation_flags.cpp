#include "cli/distillation_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/hidden_secrets.h"
#include "net/http_client.h"
#include "rl/teacher_dialect.h"

namespace lockstep::cli {

namespace {

constexpr std::string_view kLossModes =
    "policy_gradient|forward_kl_topk|forward_kl_topk_tail|k2|k3|low_var_kl|abs|mse|k3+|low_var_kl+";

bool is_teacher_function(const std::string& path, std::string_view name) {
  for (const std::string_view system : {"miles", "slime", "vime"})
    if (path == fmt::format("{}.rollout.on_policy_distillation.{}", system, name)) return true;
  return false;
}

[[noreturn]] void contradicts(const char* what, const char* flag, const std::string& got,
                              const std::string& wanted = {}) {
  throw ConfigError({.what = what, .where = flag, .got = hide_secrets(got), .wanted = wanted});
}

// NAME=URL, as miles has it, or one URL.
void read_urls(const DistillationForm& form, recipes::RlOptions& o) {
  for (const std::string& text : form.teacher_urls) {
    size_t equals = text.find('=');
    if (text.find_first_of(":/?") < equals) equals = std::string::npos;  // of the URL's query
    recipes::TeacherServer server;
    if (equals != std::string::npos) server.name = text.substr(0, equals);
    server.url = equals == std::string::npos ? text : text.substr(equals + 1);
    for (const recipes::TeacherServer& other : o.teacher_servers)
      if (other.name == server.name)
        contradicts("a teacher is named twice", "--opd-teacher-urls", text, "NAME=URL for each");
    o.teacher_servers.push_back(std::move(server));
  }
  if (o.teacher_servers.size() > 1 &&
      std::ranges::any_of(o.teacher_servers, [](const auto& server) { return server.name.empty(); }))
    contradicts("several teachers need names", "--opd-teacher-urls", form.teacher_urls.front(), "NAME=URL for each");
}

void check_servers(recipes::RlOptions& o) {
  if (o.teacher_servers.empty()) return;
  if (!o.teacher.empty())
    contradicts("a run's teacher is a directory or a server", "--opd-teacher-urls",
                o.teacher_servers[0].url + " and --opd-teacher-load " + o.teacher);
  if (o.sampling.temperature != 1)
    throw ConfigError(
        {.what = "servers report log-probs at temperature 1, and the teacher's are compared with the actor's",
         .where = "--opd-teacher-urls",
         .got = "--rollout-temperature " + shown_number(o.sampling.temperature),
         .wanted = "--rollout-temperature 1, or --opd-teacher-load"});
  const rl::Distillation& how = o.distillation;
  if (o.loss.distill.kind != train::DistillKind::none || !how.asks_policy() || !how.crosses()) return;
  for (const recipes::TeacherServer& server : o.teacher_servers)
    if (rl::dialect_of(net::parse_address(server.url, "--opd-teacher-urls").prefix) != rl::TeacherDialect::generate)
      throw ConfigError(
          {.what = "vLLM's and our servers say the log-probs of a prompt's own and of their likeliest tokens only",
           .where = "--opd-top-k-strategy",
           .got = rl::token_set_name(how.tokens),
           .wanted = "only-teacher or intersection; SGLang's http://HOST:PORT/generate; or --opd-teacher-load"});
}

// The bounds of a loss that flows; ConfigError for one that this loss does not have.
void read_bounds(const DistillationForm& form, train::DistillTerm& term) {
  const bool top = term.kind == train::DistillKind::forward_kl_topk;
  const auto read = [&](const std::optional<float>& given, const char* flag, bool is_read, float& bound) {
    if (given && !is_read && *given != bound)  // scripts carry the defaults along
      contradicts("this loss does not have such a bound", flag, shown_number(*given),
                  "a --distillation-loss-mode that reads it");
    if (given) bound = *given;
  };
  read(form.max_clamp, "--distillation-loss-max-clamp", term.kind != train::DistillKind::none, term.max_value);
  read(form.min_clamp, "--distillation-log-prob-min-clamp", top, term.min_logprob);
  read(form.tail_eps, "--distillation-tail-mass-eps", top && term.tail, term.tail_eps);
}

// How the teacher's log-probs become part of the loss.
void resolve_loss(const DistillationForm& form, recipes::RlOptions& o) {
  if (form.loss_mode.empty() || form.loss_mode == "policy_gradient") {
    if (o.distillation.top == 0 && !(form.token_set.empty() && form.token_weight.empty()))
      contradicts("the choice of tokens needs their number", "--opd-top-k-strategy, --opd-reward-weight-mode",
                  form.token_set + form.token_weight, "--opd-log-prob-top-k above 0");
    return read_bounds(form, o.loss.distill);
  }
  train::DistillTerm& term = o.loss.distill;
  term.tail = form.loss_mode == "forward_kl_topk_tail";
  const bool candidates = term.tail || form.loss_mode == "forward_kl_topk";
  term.kind = candidates ? train::DistillKind::forward_kl_topk : train::DistillKind::estimator;
  if (!candidates) term.estimator = train::parse_kl_type(form.loss_mode);
  term.coef = static_cast<float>(o.distillation.coef);
  read_bounds(form, term);
  if (!form.token_set.empty() || !form.token_weight.empty())
    contradicts("a loss that flows is over the teacher's likeliest tokens, by its probabilities",
                "--opd-top-k-strategy, --opd-reward-weight-mode", form.token_set + " " + form.token_weight,
                "neither with --distillation-loss-mode " + form.loss_mode);
  if (candidates) o.training.candidates = o.distillation.top;
  if (candidates && o.distillation.top == 0)
    contradicts((form.loss_mode + " needs the number of tokens").c_str(), "--opd-log-prob-top-k", "0",
                "1 or more; verl has 128");
  if (!candidates && o.distillation.top > 0)
    contradicts("this loss reads the sampled token alone", "--opd-log-prob-top-k", shown_number(o.distillation.top),
                "0, or --distillation-loss-mode forward_kl_topk");
}

void check_unused(const DistillationForm& form, const recipes::RlOptions& o) {
  const auto needs = [](bool given, const char* flag) {
    if (given) throw ConfigError({.what = fmt::format("{} needs --use-opd", flag), .where = flag});
  };
  needs(!o.teacher.empty(), "--opd-teacher-load");
  needs(!form.teacher_urls.empty(), "--opd-teacher-urls");
  needs(o.distillation.top > 0, "--opd-log-prob-top-k");
  needs(!form.loss_mode.empty(), "--distillation-loss-mode");
}

}  // namespace

std::vector<Flag> distillation_flags(DistillationForm& form, recipes::RlOptions& o) {
  const auto into = [](std::string& target) { return [&target](const std::string& name) { target = name; }; };
  return {
      {"--use-opd", "", toggle(form.use_opd), "advantages lose the difference of log-probs to a teacher's"},
      {"--opd-type", "TYPE", choice("megatron|sglang", "", into(form.type)),
       "megatron: the teacher is in this process; sglang: it is a server"},
      {"--opd-teacher-load", "DIR", text(o.teacher),
       "the base, an adapter on it, or another model of the same vocabulary"},
      {"--opd-teacher-urls", "URL", texts(form.teacher_urls),
       "instead: a vLLM or Lockstep server of it, HOST:PORT, or SGLang's http://HOST:PORT/generate; several: NAME=URL"},
      {"--opd-teacher-key", "KEY", text(o.teacher_key),
       "member of a row's metadata that names its teacher; \"default\" is that of the other rows"},
      {"--opd-teacher-model", "NAME", text(o.teacher_model), "as that server calls it (its first model)"},
      {"--opd-kl-coef", "X", number(o.distillation.coef, kAboveZero, 1000), "factor of the difference, or of the loss"},
      {"--opd-log-prob-top-k", "K", number(o.distillation.top, 0, 4096),
       "the difference is over so many of the likeliest tokens (0: over the sampled one)"},
      {"--opd-top-k-strategy", "SET",
       choice("only-student|only-teacher|intersection|union|xor", "only-student", into(form.token_set)),
       "whose likeliest tokens"},
      {"--opd-reward-weight-mode", "WHOSE", choice("student_p|teacher_p|none", "student_p", into(form.token_weight)),
       "by whose probability they are weighted"},
      {"--opd-topk-per-position", "", toggle(o.teacher_per_position),
       "ask a patched SGLang for each position's own tokens instead of all of them everywhere"},
      {"--distillation-loss-mode", "NAME", choice(kLossModes, "policy_gradient", into(form.loss_mode)),
       "policy_gradient: in the advantages; else a loss whose gradient flows, verl's names: forward_kl_topk over the "
       "teacher's likeliest tokens (_tail: and all others as one), or an estimator of KL by the sampled one"},
      {"--distillation-loss-max-clamp", "X", number(form.max_clamp, 0, 1e6),
       "most that this loss is of a token (10; 0: any)"},
      {"--distillation-log-prob-min-clamp", "X", number(form.min_clamp, -1e6, 0),
       "of forward_kl_topk: log-probs are at least this (-10; 0: any)"},
      {"--distillation-tail-mass-eps", "X", number(form.tail_eps, kAboveZero, 1),
       "of forward_kl_topk_tail: the policy's probability of all other tokens is at least this (1e-7)"}};
}

void take_teacher_functions(DistillationForm& form, recipes::RlOptions& o, Classified& given) {
  if (!is_teacher_function(o.reward.python_path, "reward_func")) return;
  const std::string path = std::exchange(o.reward.python_path, {});
  if (!form.use_opd)
    throw ConfigError({.what = "this function asks a teacher", .where = "--custom-rm-path", .wanted = "--use-opd"});
  o.reward.choices = {{.rule = {.type = rl::RewardType::zero}}};
  given.notes.push_back(fmt::format("--custom-rm-path {}: is what --use-opd does; the reward is 0", path));
  if (o.reward.url.empty()) return;
  if (form.teacher_urls.empty()) {
    form.teacher_urls = {o.reward.url};
    given.notes.push_back(fmt::format("--rm-url {}: the teacher", hide_secrets(o.reward.url)));
  }
  o.reward.url.clear();
  std::erase_if(given.used, [](const Occurrence& occurrence) { return occurrence.flag == "--rm-url"; });
}

void resolve_distillation(const DistillationForm& form, recipes::RlOptions& o, std::vector<std::string>& notes) {
  o.distill = form.use_opd || o.advantage.estimator == rl::Estimator::on_policy_distillation;
  if (!o.distill) return check_unused(form, o);
  if (!form.token_set.empty()) o.distillation.tokens = rl::token_set_of(form.token_set);
  if (!form.token_weight.empty()) o.distillation.weight = rl::token_weight_of(form.token_weight);
  resolve_loss(form, o);
  read_urls(form, o);
  check_servers(o);
  if (o.teacher_servers.empty() && !o.teacher_model.empty())
    throw ConfigError({.what = "--opd-teacher-model needs --opd-teacher-urls", .where = "--opd-teacher-model"});
  if (o.teacher.empty() && o.teacher_servers.empty())
    throw ConfigError(
        {.what = "distillation needs a teacher",
         .where = "--opd-teacher-load",
         .wanted =
             "the directory of the base, of an adapter on it, or of another model of its vocabulary; or a server: "
             "--opd-teacher-urls"});
  if (!form.type.empty() && (form.type == "sglang") != !o.teacher_servers.empty())
    contradicts("--opd-type says where the teacher is", "--opd-type", form.type,
                "megatron with --opd-teacher-load, sglang with --opd-teacher-urls");
  if (o.distillation.asks_policy() && o.loss.distill.kind == train::DistillKind::none)
    notes.push_back(
        "--opd-log-prob-top-k: the policy's likeliest tokens come from one more forward pass over each rollout");
}

}  // namespace lockstep::cli
