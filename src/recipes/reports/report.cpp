#include "recipes/reports/report.h"

namespace lockstep::recipes {

Scalars scalars_of(const OrderedJson& line) {
  std::string prefix;
  if (const auto eval = line.find("eval"); eval != line.end() && eval->is_string())
    prefix = "eval/" + eval->get<std::string>() + "/";
  Scalars scalars;
  for (const auto& [key, value] : line.items())
    if (value.is_number() && key != "step") scalars.emplace_back(prefix + key, value.get<double>());
  return scalars;
}

std::vector<std::unique_ptr<Report>> make_reports(const ReportOptions& options, const ReportRun& run) {
  std::vector<std::unique_ptr<Report>> reports;
  if (options.tensorboard) reports.push_back(make_tensorboard(options, run));
  if (options.wandb) reports.push_back(make_wandb(options, run));
  if (options.trackio) reports.push_back(make_trackio(options, run));
  return reports;
}

}  // namespace lockstep::recipes
