// Other programs that are told about a run: files in their formats, written beside metrics.jsonl and never sent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "recipes/run_facts.h"

namespace lockstep::recipes {

// Which of them; the directories are made when the first line is written.
struct ReportOptions {
  bool tensorboard = false;
  std::string tensorboard_dir;  // empty: SAVE/tensorboard, without SAVE of the current directory; so the others
  bool wandb = false;
  std::string wandb_dir;      // a folder wandb/ is made in it; empty: SAVE
  std::string wandb_project;  // empty: "lockstep"
  std::string wandb_entity, wandb_group, wandb_name;
  bool trackio = false;
  std::string trackio_dir;      // TRACKIO_DIR of the trackio that shows it; empty: SAVE/trackio
  std::string trackio_project;  // empty: "lockstep"

  bool any() const { return tensorboard || wandb || trackio; }
};

// The numbers of a line of metrics.jsonl by name, but for the step; those of an evaluation are named eval/SET/NAME.
using Scalars = std::vector<std::pair<std::string, double>>;
Scalars scalars_of(const OrderedJson& line);

class Report {
 public:
  Report() = default;
  virtual ~Report() = default;
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // The lines of a step come one after the other. `time`: seconds since 1970. ResourceError: a file cannot be written.
  virtual void add(int64_t step, const Scalars& scalars, double time) = 0;
  // A line that the run wrote before it was resumed, for reports that may lack it.
  virtual void recall(int64_t step, const Scalars& scalars, double time) { (void)step, (void)scalars, (void)time; }
};

struct ReportRun {
  std::string save;         // its directory, or the current one
  int64_t resume_step = 0;  // what an earlier process wrote beyond it does not count; 0: a new run
  RunFacts facts;
  double time = 0;  // now
};
std::vector<std::unique_ptr<Report>> make_reports(const ReportOptions& options, const ReportRun& run);

// The makers; each reads its part of the options.
std::unique_ptr<Report> make_tensorboard(const ReportOptions& options, const ReportRun& run);
std::unique_ptr<Report> make_wandb(const ReportOptions& options, const ReportRun& run);
std::unique_ptr<Report> make_trackio(const ReportOptions& options, const ReportRun& run);

}  // namespace lockstep::recipes
