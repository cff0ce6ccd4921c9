// Who else is told about a training run: the dashboard, and files that other programs read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"
#include "server/dashboard/dashboard.h"

namespace lockstep::cli {

struct ReportForm {
  std::optional<int64_t> port;
  std::string host = "127.0.0.1", token_file;
  std::string tb_project, tb_experiment;
};

std::vector<Flag> report_flags(ReportForm& form, recipes::SaveOptions& save, bool has_samples);
// Rules of the files for other programs, with a line in `notes` for each that is written. ConfigError for settings of
// one that is not asked for.
void resolve_reports(const ReportForm& form, recipes::SaveOptions& save, Classified& given);
// The dashboard that the run serves, if it is asked for. ConfigError: without --save, or for settings of a dashboard
// that is not asked for.
std::optional<server::DashboardOptions> resolve_dashboard(const ReportForm& form, const recipes::SaveOptions& save,
                                                          const Classified& given);

server::DashboardOptions parse_dashboard(const Values& args);
std::string dashboard_help();

}  // namespace lockstep::cli
