#include "recipes/policies.h"

#include <fmt/format.h>

#include <map>
#include <ostream>

#include "checkpoint/train_state.h"
#include "core/fs.h"
#include "recipes/adapter.h"
#include "rl/http_teacher.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kReference = "reference";  // as a policy of a checkpoint

// Of a checkpoint or a save directory: the adapter inside its newest iteration.
std::string adapter_below(const std::string& path) {
  if (fs::exists(fs::Path(path) / "adapter_config.json")) return path;
  if (fs::exists(fs::Path(path) / checkpoint::kAdapterDirectory))
    return (fs::Path(path) / checkpoint::kAdapterDirectory).string();
  if (const std::optional<int64_t> newest = checkpoint::latest_iteration(path))
    return (fs::Path(path) / checkpoint::iteration_directory_name(*newest) / checkpoint::kAdapterDirectory).string();
  return {};
}

void require_same_vocabulary(const Base& teacher, const Base& base) {
  const auto tokenizer = [](const Base& of) { return fs::read_file(of.path / "tokenizer.json"); };
  if (teacher.config.vocab_size == base.config.vocab_size && tokenizer(teacher) == tokenizer(base)) return;
  throw ConfigError({.what = "the teacher has another vocabulary than the base",
                     .where = teacher.path.string(),
                     .got = fmt::format("{} tokens", teacher.config.vocab_size),
                     .wanted = fmt::format("{} tokens and the same tokenizer.json", base.config.vocab_size)});
}

void require_vocabulary(const rl::Distillation& distillation, const Base& base) {
  if (distillation.top <= base.config.vocab_size) return;
  throw ConfigError({.what = "a vocabulary has fewer tokens than are to be compared",
                     .where = "RlOptions::distillation",
                     .got = std::to_string(distillation.top),
                     .wanted = "at most " + std::to_string(base.config.vocab_size)});
}

std::unique_ptr<rl::Teacher> teacher_behind_http(const RlOptions& options) {
  std::map<std::string, std::unique_ptr<rl::Teacher>> teachers;
  for (const TeacherServer& server : options.teacher_servers)
    teachers[server.name] = std::make_unique<rl::HttpTeacher>(
        rl::HttpTeacherOptions{.address = net::parse_address(server.url, "RlOptions::teacher_servers"),
                               .model = options.teacher_model,
                               .per_position = options.teacher_per_position},
        options.sampling.temperature);
  if (teachers.size() == 1) return std::move(teachers.begin()->second);
  return std::make_unique<rl::NamedTeachers>(std::move(teachers));
}

}  // namespace

PolicyPath policy_path(const std::string& path, const BaseOptions& base) {
  if (path.empty() || path == base.hf_checkpoint) return PolicyPath::base;
  const fs::Path directory = load::model_directory(base.hf_checkpoint, load::caches_below(base.home));
  if (fs::exists(path) && fs::same_place(path, directory)) return PolicyPath::base;
  if (!std::filesystem::is_directory(path))
    throw ConfigError({.what = "the policy is not there", .where = path, .wanted = "a directory"});
  if (!adapter_below(path).empty()) return PolicyPath::adapter;
  if (fs::exists(fs::Path(path) / "config.json")) return PolicyPath::model;
  throw ConfigError({.what = "the directory holds no policy",
                     .where = path,
                     .wanted = "adapter_config.json, a checkpoint of ours, or config.json"});
}

lora::AdapterVersion load_policy_adapter(const std::string& path, const char* what, const Base& base,
                                         const Control& control) {
  *control.info << fmt::format("{} {}\n", what, path);
  return load_adapter(adapter_below(path), base, control);
}

std::optional<Base> load_teacher_model(const RlOptions& options, const Base& base, Stream& stream,
                                       const Control& control) {
  if (!options.distill || !options.teacher_servers.empty() ||
      policy_path(options.teacher, options.base) != PolicyPath::model)
    return std::nullopt;
  BaseOptions of_teacher = options.base;
  of_teacher.hf_checkpoint = options.teacher;
  *control.info << "teacher\n";
  Base teacher = load_base(of_teacher, stream, control);
  require_same_vocabulary(teacher, base);
  return teacher;
}

Policies::Policies(const RlOptions& options, const Base& base, const std::optional<Base>& model, TrainingRun& run,
                   Stream& stream, const Control& control)
    : run_(run) {
  const auto adapter = [&](const std::string& path, const char* what) {
    return load_policy_adapter(path, what, base, control);
  };
  const bool has_reference = options.use_kl_loss || options.kl_reward_coef != 0;
  if (has_reference && policy_path(options.reference, options.base) == PolicyPath::adapter)
    reference_ = adapter(options.reference, "reference");
  if (options.ref_update_interval > 0) {
    if (auto kept = run.resumed_policy(kReference)) reference_ = std::move(kept);
    if (reference_) keep_reference();
  }
  if (!options.distill) return;
  require_vocabulary(options.distillation, base);
  if (!options.teacher_servers.empty()) {
    teacher_ = teacher_behind_http(options);
    return;
  }
  if (model) {
    teacher_ =
        std::make_unique<rl::ModelTeacher>(model->model, options.sampling.temperature, run.memory().max_tokens, stream);
    return;
  }
  std::optional<lora::AdapterVersion> version;
  if (policy_path(options.teacher, options.base) == PolicyPath::adapter) version = adapter(options.teacher, "teacher");
  teacher_ = std::make_unique<rl::AdapterTeacher>(run.trainer(), std::move(version));
}

void Policies::keep_reference() {
  run_.keep_policy(kReference, [this] { return *reference_; });
}

void Policies::follow_actor() {
  const bool is_new = !reference_;
  reference_ = run_.trainer().adapter();
  if (is_new) keep_reference();
}

}  // namespace lockstep::recipes
