#include "recipes/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <random>
#include <sstream>

#include "core/printable.h"

namespace lockstep::recipes {

namespace {

// Of metrics that a fresh run has set aside; 1 is the oldest.
fs::Path previous_name(const fs::Path& directory, int number) {
  return directory / (number == 1 ? "metrics.previous.jsonl" : fmt::format("metrics.previous.{}.jsonl", number));
}

// The first number that nothing has yet.
int free_number(const fs::Path& directory) {
  int number = 1;
  while (fs::exists(previous_name(directory, number))) ++number;
  return number;
}

// The lines of a metrics file up to a step: those beyond a checkpoint would be written twice.
struct EarlierLines {
  std::string text;
  bool reaches = false;                  // that step
  std::set<std::string> evaluated = {};  // at that step
};
EarlierLines lines_until(const fs::Path& file, int64_t last) {
  EarlierLines earlier;
  std::istringstream lines(fs::read_file_if_exists(file).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, false);
    const int64_t step = json.is_object() ? json.value("step", int64_t{-1}) : -1;
    if (step < 0 || step > last) continue;
    earlier.text += line + "\n";
    earlier.reaches = earlier.reaches || step == last;
    if (step == last && json.contains("eval")) earlier.evaluated.insert(json_text(json["eval"]));
  }
  return earlier;
}

// ECMA-48, and DEC's private mode 7.
constexpr const char *kEraseRow = "\x1b[2K", *kRowUp = "\x1b[1A", *kNoWrap = "\x1b[?7l", *kWrap = "\x1b[?7h";

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Of eight letters and digits: what Weights & Biases calls a run by.
std::string new_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

}  // namespace

RunLog::RunLog(const std::string& save, int64_t resume_step, const Control& control, RunFacts facts,
               ReportOptions reports)
    : control_(control),
      resume_step_(resume_step),
      facts_(std::move(facts)),
      report_options_(std::move(reports)),
      table_(facts_.iterations) {
  if (save.empty()) return;
  fs::require_writable_directory(save);
  const fs::Path file = fs::Path(save) / "metrics.jsonl";
  path_ = file.string();
  if (resume_step == 0) return;
  EarlierLines earlier = lines_until(file, resume_step);
  // A fresh run that ended before its first checkpoint has set aside the lines of the one that has.
  for (int number = free_number(save) - 1; number > 0 && !earlier.reaches; --number)
    if (EarlierLines older = lines_until(previous_name(save, number), resume_step); older.reaches) {
      earlier = std::move(older);
      of_another_ = true;
    }
  kept_ = std::move(earlier.text);
  evaluated_ = std::move(earlier.evaluated);
}

void RunLog::open() {
  open_ = true;
  if (path_.empty()) return open_reports(std::filesystem::current_path());
  const fs::Path file = path_;
  const fs::Path directory = file.parent_path();
  if ((resume_step_ == 0 || of_another_) && fs::exists(file))
    std::filesystem::rename(file, previous_name(directory, free_number(directory)));
  if (resume_step_ > 0) fs::write_file_atomic(file, kept_);
  if (report_options_.any()) open_reports(file.parent_path());
  if (!facts_.kind.empty()) {
    OrderedJson json{{"kind", facts_.kind}, {"iterations", facts_.iterations}, {"arguments", facts_.arguments}};
    if (!facts_.id.empty()) json["id"] = facts_.id;
    fs::write_file_atomic(file.parent_path() / kRunFile, json_text(json) + "\n");
  }
  file_ = std::fopen(path_.c_str(), "a");
  if (file_ == nullptr)
    throw ResourceError({.what = "the run log cannot be written",
                         .where = path_,
                         .got = std::strerror(errno),
                         .attempt = "another SaveOptions::save directory"});
}

void RunLog::open_reports(const fs::Path& directory) {
  if (resume_step_ > 0 && !path_.empty())
    if (const auto earlier = fs::read_file_if_exists(directory / kRunFile, kMaxJsonFileBytes))
      facts_.id = JsonObject(parse_json(*earlier, (directory / kRunFile).string()), kRunFile).string("id", "");
  if (facts_.id.empty()) facts_.id = new_id();
  reports_ = make_reports(
      report_options_,
      {.save = directory.string(), .resume_step = resume_step_, .facts = facts_, .time = seconds_since_1970()});
  std::istringstream lines(kept_);
  for (std::string text; std::getline(lines, text);) {
    const OrderedJson line = OrderedJson::parse(text);
    for (const auto& report : reports_)
      report->recall(line.value("step", int64_t{0}), scalars_of(line), seconds_since_1970());
  }
}

RunLog::~RunLog() {
  erase();
  if (file_ != nullptr) std::fclose(file_);
}

void RunLog::write(const OrderedJson& line) {
  table_.add(line);
  if (path_.empty() && !report_options_.any()) return;
  if (!open_) open();
  const std::string text = json_text(line) + "\n";
  if (file_ != nullptr && (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0))
    throw ResourceError({.what = "the run log cannot be written",
                         .where = path_,
                         .got = std::strerror(errno),
                         .attempt = "free disk space, then SaveOptions::load to resume"});
  if (reports_.empty()) return;
  const int64_t step = line.value("step", int64_t{0});
  const Scalars scalars = scalars_of(line);
  for (const auto& report : reports_) report->add(step, scalars, seconds_since_1970());
}

void RunLog::say(const std::string& text) {
  progress("");
  *control_.info << text << std::endl;
}

void RunLog::erase() {
  if (drawn_ == 0) return;
  *control_.raw << '\r' << kEraseRow;
  for (; drawn_ > 1; --drawn_) *control_.raw << kRowUp << kEraseRow;
  control_.raw->flush();
  drawn_ = 0;
}

void RunLog::progress(const std::string& text) {
  if (!control_.terminal || control_.raw == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  if (!text.empty() && now - last_draw_ < std::chrono::milliseconds(100)) return;
  erase();
  last_draw_ = {};  // behind a line the table comes back at once
  if (text.empty()) return;
  const std::vector<std::string> rows = table_.rows(printable(text));
  // A narrow terminal cuts rows off instead of wrapping them, which could not be erased.
  *control_.raw << kNoWrap;
  for (size_t i = 0; i < rows.size(); ++i) *control_.raw << (i > 0 ? "\n" : "") << rows[i];
  *control_.raw << kWrap << std::flush;
  drawn_ = rows.size();
  last_draw_ = now;
}

Pace::Pace(int64_t done, int64_t total) : first_(done), total_(total) {}

std::string Pace::left(int64_t done) const {
  if (done <= first_) return "";
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  return duration_text(seconds.count() / static_cast<double>(done - first_) * static_cast<double>(total_ - done)) +
         " left";
}

std::string progress_bar(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 20;
  const int64_t full = total > 0 ? std::min(kWidth, kWidth * done / total) : 0;
  return fmt::format("[{}{}] {:3} %", std::string(static_cast<size_t>(full), '#'),
                     std::string(static_cast<size_t>(kWidth - full), '-'), total > 0 ? 100 * done / total : 0);
}

std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace lockstep::recipes
