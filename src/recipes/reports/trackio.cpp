// trackio's inbox: files of JSON Lines that are renamed into place, and that trackio imports and removes. There is at
// most one a second, because making a file costs more than all else that a report does. Records with a log_id that
// trackio has are passed over, so a resumed run may write a step again. Source: trackio/fragments.py.
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <deque>

#include "core/fs.h"
#include "core/hash.h"
#include "recipes/reports/append_file.h"
#include "recipes/reports/report.h"

namespace lockstep::recipes {

namespace {

std::string utc_text(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+00:00", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     static_cast<int64_t>((time - std::floor(time)) * 1e6));
}

OrderedJson number_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

class Trackio : public Report {
 public:
  Trackio(fs::Path directory, std::string project, const ReportRun& run)
      : directory_(std::move(directory)),
        project_(std::move(project)),
        id_(run.facts.id),
        name_(fmt::format("{}-{}", fs::Path(run.save).filename().string(), run.facts.id)),
        config_(run.facts.arguments),
        next_(run.resume_step * 8) {}

  ~Trackio() override {
    try {
      write();
    } catch (const Error&) {
      // metrics.jsonl has the numbers.
    }
  }

  void add(int64_t step, const Scalars& scalars, double time) override {
    lines_.push_back(line(step, scalars, time, std::exchange(config_, nullptr)));
    const bool clock_went_back = time < next_time_ - kSecondsOfAFile;
    if (time < next_time_ && !clock_went_back) return;
    next_time_ = time + kSecondsOfAFile;
    write();
  }

  // What a killed run may not have written, because it came within a second of its last file. The time is that of now:
  // metrics.jsonl has none.
  void recall(int64_t step, const Scalars& scalars, double time) override {
    constexpr size_t kMaxLines = 256;
    lines_.push_back(line(step, scalars, time, nullptr));
    if (lines_.size() > kMaxLines) lines_.pop_front();
  }

 private:
  static constexpr double kSecondsOfAFile = 1;

  std::string line(int64_t step, const Scalars& scalars, double time, OrderedJson config) const {
    OrderedJson metrics = OrderedJson::object();
    for (const auto& [name, value] : scalars) metrics[name] = number_json(value);
    Sha256 hash;
    hash.update(fmt::format("{} {} {}", id_, step, scalars.empty() ? "" : scalars.front().first));
    const OrderedJson record{{"v", 1},
                             {"kind", "metric"},
                             {"project", project_},
                             {"run", name_},
                             {"run_id", id_},
                             {"metrics", std::move(metrics)},
                             {"step", step},
                             {"timestamp", utc_text(time)},
                             {"config", std::move(config)},
                             {"log_id", hash.hex().substr(0, 32)}};
    return json_text(record) + "\n";
  }

  // Closed when it returns, because a file of another host's disk may arrive only then. False: errno says why not.
  static bool written(const fs::Path& path, std::string_view text) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) return false;
    const bool all = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    const int why = errno;
    const bool closed = std::fclose(file) == 0;
    if (!all) errno = why;
    return all && closed;
  }

  // Whole under its name, so that trackio never imports a part. Not synced: metrics.jsonl has the same numbers, and a
  // wait for the disk at each step would cost more than all other reports.
  void write() {
    if (lines_.empty()) return;
    std::string text;
    for (const std::string& line : std::exchange(lines_, {})) text += line;
    fs::Path file = directory_ / fmt::format("{:08}.jsonl", next_++);
    while (fs::exists(file)) file = directory_ / fmt::format("{:08}.jsonl", next_++);
    const fs::Path unfinished = directory_ / "unfinished";
    std::error_code error;
    bool is_there = written(unfinished, text);
    if (!is_there && errno == ENOENT) {
      std::filesystem::create_directories(directory_, error);
      is_there = !error && written(unfinished, text);
    }
    if (!error && !is_there) error = std::error_code(errno, std::generic_category());
    if (!error) std::filesystem::rename(unfinished, file, error);
    if (!error) return;
    std::error_code ignored;  // trackio removes the directory when it is empty
    std::filesystem::remove(unfinished, ignored);
    errno = error.value();
    fail_appending(file);
  }

  const fs::Path directory_;  // of this writer, which trackio removes when it is empty
  const std::string project_, id_, name_;
  OrderedJson config_;             // with the first record
  std::deque<std::string> lines_;  // that are not written
  double next_time_ = 0;           // of a file
  int64_t next_;
};

}  // namespace

std::unique_ptr<Report> make_trackio(const ReportOptions& options, const ReportRun& run) {
  const fs::Path root = options.trackio_dir.empty() ? fs::Path(run.save) / "trackio" : fs::Path(options.trackio_dir);
  return std::make_unique<Trackio>(root / "inbox" / ("lockstep-" + run.facts.id),
                                   options.trackio_project.empty() ? "lockstep" : options.trackio_project, run);
}

}  // namespace lockstep::recipes
