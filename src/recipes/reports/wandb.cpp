// Weights & Biases, offline: wandb/offline-run-DATE-ID/run-ID.wandb, which `wandb sync` uploads. All lines of a step
// are one record of its history. Source: wandb/proto/wandb_internal.proto.
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <map>
#include <optional>

#include "core/fs.h"
#include "recipes/reports/append_file.h"
#include "recipes/reports/protobuf.h"
#include "recipes/reports/report.h"
#include "recipes/reports/wandb_log.h"

namespace lockstep::recipes {

namespace {

// Fields of Record and of what it holds.
namespace wandb_field {
constexpr int kNum = 1, kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21;
constexpr int kItem = 1, kHistoryStep = 2, kStepNum = 1, kKey = 1, kValueJson = 16;
constexpr int kRunId = 1, kEntity = 2, kProject = 3, kConfig = 4, kGroup = 6, kName = 8, kStartTime = 17;
}  // namespace wandb_field
constexpr int64_t kOpening = 2;              // records ahead of the history: header and run
constexpr const char* kProducer = "0.31.0";  // the version of wandb whose format this is

std::string number_text(double value) {
  return std::isfinite(value) ? json_text(Json(value))
         : std::isnan(value)  ? "NaN"
         : value > 0          ? "Infinity"
                              : "-Infinity";
}

Message item(const std::string& key, const std::string& value_json) {
  return Message().text(wandb_field::kKey, key).text(wandb_field::kValueJson, value_json);
}

// The step of a record of the history; nullopt for any other record.
std::optional<int64_t> step_of(std::string_view record) {
  while (const std::optional<MessageField> field = next_field(record)) {
    if (field->number != wandb_field::kHistory) continue;
    std::string_view history = field->text;
    while (const std::optional<MessageField> part = next_field(history)) {
      if (part->number != wandb_field::kHistoryStep) continue;
      std::string_view step = part->text;
      const std::optional<MessageField> number = next_field(step);
      return number ? static_cast<int64_t>(number->value) : 0;
    }
  }
  return std::nullopt;
}

// The log of this run that an earlier process wrote; empty: there is none.
fs::Path log_of(const fs::Path& folder, const std::string& id) {
  if (!fs::is_directory(folder)) return {};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    fs::Path log = entry.path() / fmt::format("run-{}.wandb", id);
    if (fs::is_file(log)) return log;
  }
  return {};
}

std::string date_text(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}_{:02}{:02}{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

class Wandb : public Report {
 public:
  Wandb(const ReportOptions& options, const ReportRun& run) : start_(run.time) {
    const fs::Path folder = fs::Path(options.wandb_dir.empty() ? run.save : options.wandb_dir) / "wandb";
    const fs::Path earlier = run.resume_step > 0 ? log_of(folder, run.facts.id) : fs::Path();
    if (!earlier.empty()) {
      cut(earlier, run.resume_step);
      file_.emplace(earlier);
      return;
    }
    file_.emplace(folder / fmt::format("offline-run-{}-{}", date_text(run.time), run.facts.id) /
                  fmt::format("run-{}.wandb", run.facts.id));
    file_->append(wandb_log_header());
    position_ = wandb_log_header().size();
    write(wandb_field::kHeader, Message().message(1, Message().text(1, kProducer).text(2, kProducer)));
    write(wandb_field::kRun, run_record(options, run));
  }

  ~Wandb() override {
    try {
      flush();
      Message summary;
      for (const auto& [name, value] : last_) summary.message(1, item(name, number_text(value)));
      write(wandb_field::kSummary, summary);
      write(wandb_field::kExit, Message().integer(2, static_cast<int64_t>(time_ - start_)));
    } catch (const Error&) {
      // Without its end the run counts as crashed there; metrics.jsonl has everything.
    }
  }

  void add(int64_t step, const Scalars& scalars, double time) override {
    if (step != step_) flush();
    step_ = step;
    time_ = time;
    for (const auto& [name, value] : scalars) {
      open_[name] = value;
      last_[name] = value;
    }
  }

  // A step is written when the next one begins, so that of a killed run may be missing.
  void recall(int64_t step, const Scalars& scalars, double time) override {
    if (step > written_) add(step, scalars, time);
  }

 private:
  static Message run_record(const ReportOptions& options, const ReportRun& run) {
    Message config;
    if (run.facts.arguments.is_object())
      for (const auto& [name, value] : run.facts.arguments.items())
        config.message(1, item(name.substr(std::min<size_t>(name.find_first_not_of('-'), name.size())),
                               json_text(OrderedJson(value))));
    const auto whole = static_cast<int64_t>(run.time);
    Message record;
    record.text(wandb_field::kRunId, run.facts.id);
    if (!options.wandb_entity.empty()) record.text(wandb_field::kEntity, options.wandb_entity);
    record.text(wandb_field::kProject, options.wandb_project.empty() ? "lockstep" : options.wandb_project);
    record.message(wandb_field::kConfig, config);
    if (!options.wandb_group.empty()) record.text(wandb_field::kGroup, options.wandb_group);
    record.text(wandb_field::kName,
                options.wandb_name.empty() ? fs::Path(run.save).filename().string() : options.wandb_name);
    record.message(
        wandb_field::kStartTime,
        Message().integer(1, whole).integer(2, static_cast<int64_t>((run.time - static_cast<double>(whole)) * 1e9)));
    return record;
  }

  // Takes off what is beyond the step, and the end of the run.
  void cut(const fs::Path& log, int64_t step) {
    const std::string bytes = fs::read_file(log);
    for (const WandbLogRecord& record : read_wandb_log(bytes)) {
      const std::optional<int64_t> at = step_of(record.data);
      if (at ? *at > step : num_ >= kOpening) break;
      ++num_;
      position_ = record.end;
      if (at) written_ = *at;
    }
    std::filesystem::resize_file(log, position_);
  }

  void flush() {
    if (open_.empty()) return;
    Message history;
    for (const auto& [name, value] : open_) history.message(wandb_field::kItem, item(name, number_text(value)));
    history.message(wandb_field::kItem, item("_step", std::to_string(step_)));
    history.message(wandb_field::kItem, item("_timestamp", number_text(time_)));
    history.message(wandb_field::kItem, item("_runtime", number_text(time_ - start_)));
    history.message(wandb_field::kHistoryStep, Message().integer(wandb_field::kStepNum, step_));
    open_.clear();
    write(wandb_field::kHistory, history);
  }

  void write(int field, const Message& content) {
    const std::string bytes =
        wandb_log_record(Message().integer(wandb_field::kNum, ++num_).message(field, content).bytes(), position_);
    file_->append(bytes);
    position_ += bytes.size();
  }

  const double start_;
  std::optional<AppendFile> file_;
  uint64_t position_ = 0;  // bytes of the file
  int64_t num_ = 0;        // records in it
  int64_t written_ = -1;   // the last step in it that an earlier process wrote
  int64_t step_ = 0;       // that is open
  double time_ = start_;
  std::map<std::string, double> open_, last_;
};

}  // namespace

std::unique_ptr<Report> make_wandb(const ReportOptions& options, const ReportRun& run) {
  return std::make_unique<Wandb>(options, run);
}

}  // namespace lockstep::recipes
