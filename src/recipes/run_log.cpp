#include "recipes/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <sstream>

namespace lockstep::recipes {

namespace {

// SAVE/metrics.previous.jsonl, or the first name of that kind nothing has yet.
fs::Path free_name(const fs::Path& directory) {
  fs::Path name = directory / "metrics.previous.jsonl";
  for (int i = 2; fs::exists(name); ++i) name = directory / fmt::format("metrics.previous.{}.jsonl", i);
  return name;
}

}  // namespace

RunLog::RunLog(const std::string& save, int64_t resume_step, const Control& control)
    : control_(control), resume_step_(resume_step) {
  if (save.empty()) return;
  fs::require_writable_directory(save);
  const fs::Path file = fs::Path(save) / "metrics.jsonl";
  path_ = file.string();
  const std::optional<std::string> earlier = resume_step == 0 ? std::nullopt : fs::read_file_if_exists(file);
  if (!earlier) return;
  // Lines of an interrupted run beyond the checkpoint would be written twice: they are left out.
  std::istringstream lines(*earlier);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, false);
    const int64_t step = json.is_object() ? json.value("step", int64_t{-1}) : -1;
    if (step < 0 || step > resume_step) continue;
    kept_ += line + "\n";
    if (step == resume_step && json.contains("eval")) evaluated_.insert(json_text(json["eval"]));
  }
}

void RunLog::open() {
  const fs::Path file = path_;
  if (resume_step_ > 0)
    fs::write_file_atomic(file, kept_);
  else if (fs::exists(file))
    std::filesystem::rename(file, free_name(file.parent_path()));
  file_ = std::fopen(path_.c_str(), "a");
  if (file_ == nullptr)
    throw ResourceError({.what = "the run log cannot be written",
                         .where = path_,
                         .got = std::strerror(errno),
                         .attempt = "another SaveOptions::save directory"});
}

RunLog::~RunLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void RunLog::write(const OrderedJson& line) {
  if (path_.empty()) return;
  if (file_ == nullptr) open();
  const std::string text = json_text(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    throw ResourceError({.what = "the run log cannot be written",
                         .where = path_,
                         .got = std::strerror(errno),
                         .attempt = "free disk space, then SaveOptions::load to resume"});
}

void RunLog::say(const std::string& text) {
  progress("");
  *control_.info << text << std::endl;
}

void RunLog::progress(const std::string& text) {
  if (!control_.terminal) return;
  const auto now = std::chrono::steady_clock::now();
  if (!text.empty() && now - last_draw_ < std::chrono::milliseconds(100)) return;
  if (text.empty() && drawn_ == 0) return;
  const size_t blank = drawn_ > text.size() ? drawn_ - text.size() : 0;
  *control_.info << '\r' << text << std::string(blank, ' ') << (text.empty() ? "\r" : "") << std::flush;
  drawn_ = text.size();
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
