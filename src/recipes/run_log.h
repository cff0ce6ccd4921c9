// The run log: SAVE/metrics.jsonl (one JSON object per line, floats that read back exactly) and the terminal.
#pragma once

#include <chrono>
#include <cstdio>
#include <set>
#include <string>

#include "core/fs.h"
#include "core/json.h"
#include "core/stopwatch.h"
#include "recipes/control.h"
#include "recipes/live_table.h"
#include "recipes/reports/report.h"
#include "recipes/run_facts.h"

namespace lockstep::recipes {

class RunLog {
 public:
  // `save` empty: no file, and the reports go to the current directory. The file is touched by the first line written:
  // a fresh run (resume_step 0) then sets an existing file aside as metrics.previous.jsonl (or .previous.2.jsonl, ...),
  // a resumed one keeps the lines up to resume_step and goes on after them. `facts` become SAVE/run.json then, and each
  // line goes to the `reports` too. ResourceError when a file cannot be written.
  RunLog(const std::string& save, int64_t resume_step, const Control& control, RunFacts facts = {},
         ReportOptions reports = {});
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // The file of a resumed run has this evaluation's line of resume_step.
  bool has_evaluation(const std::string& name) const { return evaluated_.contains(json_text(Json(name))); }

  void write(const OrderedJson& line);  // appended and flushed at once
  void say(const std::string& text);    // one line on the terminal
  // What is being done, for a table that is redrawn while work goes on (recipes/live_table.h); nothing when not a
  // terminal. Empty text removes it.
  void progress(const std::string& text);

 private:
  void open();
  void open_reports(const fs::Path& directory);
  void erase();

  const Control& control_;
  const int64_t resume_step_;
  RunFacts facts_;
  const ReportOptions report_options_;
  std::vector<std::unique_ptr<Report>> reports_;
  std::string path_, kept_;          // kept_: lines of a resumed run
  bool of_another_ = false;          // what lies at path_ is of a run that came after the one that is resumed
  std::set<std::string> evaluated_;  // names, as JSON
  std::FILE* file_ = nullptr;
  bool open_ = false;
  LiveTable table_;
  size_t drawn_ = 0;  // rows of it on the screen
  std::chrono::steady_clock::time_point last_draw_{};
};

// Progress and time left of a loop of `total` steps.
class Pace {
 public:
  Pace(int64_t done, int64_t total);
  std::string left(int64_t done) const;  // "3m12s left", "" before the first step is done

 private:
  int64_t first_, total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string progress_bar(int64_t done, int64_t total);  // "[#####---------------]  25 %"
std::string duration_text(double seconds);              // "8.2s", "3m12s", "1h04m"

}  // namespace lockstep::recipes
