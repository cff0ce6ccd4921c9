#include "recipes/run_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ostream>
#include <sstream>

namespace lockstep::recipes {

namespace {

// Lines of an interrupted run beyond the checkpoint would be written twice: drop them.
void keep_until(const fs::Path& file, int64_t step) {
  std::istringstream lines(fs::read_file(file));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
        json["step"].get<int64_t>() <= step)
      kept += line + "\n";
  }
  fs::write_file_atomic(file, kept);
}

}  // namespace

RunLog::RunLog(const std::string& save, int64_t resume_step, const Control& control) : control_(control) {
  if (save.empty()) return;
  fs::require_writable_directory(save);
  const fs::Path file = fs::Path(save) / "metrics.jsonl";
  path_ = file.string();
  if (std::filesystem::exists(file)) {
    if (resume_step > 0) keep_until(file, resume_step);
    else std::filesystem::rename(file, fs::Path(save) / "metrics.previous.jsonl");
  }
  file_ = std::fopen(path_.c_str(), "a");
  if (file_ == nullptr)
    throw ResourceError({.what = "the run log cannot be written", .where = path_, .got = std::strerror(errno),
                         .attempt = "another --save directory"});
}

RunLog::~RunLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void RunLog::write(const OrderedJson& line) {
  if (file_ == nullptr) return;
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    throw ResourceError({.what = "the run log cannot be written", .where = path_, .got = std::strerror(errno),
                         .attempt = "free disk space, then --load to resume"});
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

std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace lockstep::recipes
