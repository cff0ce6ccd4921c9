#include "cli/report_flags.h"

#include "cli/parse_shared.h"
#include "cli/secret_file.h"
#include "core/error.h"
#include "core/fs.h"

namespace lockstep::cli {

namespace {

constexpr size_t kMaxRuns = 64;

struct DashboardForm {
  server::DashboardOptions options;
  std::string token_file;
};

FlagSet dashboard_flags(DashboardForm& form) {
  FlagSet flags;
  flags.add("Options", {{"--host", "HOST", text(form.options.host),
                         "address to listen on; others than this machine's need a token"},
                        {"--port", "PORT", number(form.options.port, 0, 65535), "0: any free one"},
                        {"--token-file", "FILE", text(form.token_file),
                         "file with a token that the page must send: open the address with #token=TOKEN behind it"}});
  return flags;
}

}  // namespace

std::vector<Flag> report_flags(ReportForm& form, recipes::SaveOptions& save, bool has_samples) {
  std::vector<Flag> flags = {
      {"--dashboard", "PORT", number(form.port, 0, 65535),
       "a page about the run at this port while it goes on (0: any free one); as `lockstep dashboard SAVE`"},
      {"--dashboard-host", "HOST", text(form.host),
       "address that it listens on; others than this machine's need a token"},
      {"--dashboard-token-file", "FILE", text(form.token_file), "file with a token that the page must send"},
      {"--use-tensorboard", "", toggle(save.reports.tensorboard), "event files that TensorBoard reads"},
      {"--tensorboard-dir", "DIR", text(save.reports.tensorboard_dir), "where they go (SAVE/tensorboard)"},
      {"--tb-project-name", "NAME", text(form.tb_project), "a folder below it"},
      {"--tb-experiment-name", "NAME", text(form.tb_experiment), "a folder below that"},
      {"--use-wandb", "", toggle(save.reports.wandb), "an offline run of Weights & Biases, which `wandb sync` sends"},
      {"--wandb-dir", "DIR", text(save.reports.wandb_dir), "its folder wandb goes here (SAVE)"},
      {"--wandb-project", "NAME", text(save.reports.wandb_project), "its project (lockstep)"},
      {"--wandb-team", "NAME", text(save.reports.wandb_entity), "its entity"},
      {"--wandb-group", "NAME", text(save.reports.wandb_group), "its group"},
      {"--wandb-exp-name", "NAME", text(save.reports.wandb_name), "its name (that of the --save directory)"},
      {"--use-trackio", "", toggle(save.reports.trackio), "records for trackio's inbox"},
      {"--trackio-dir", "DIR", text(save.reports.trackio_dir),
       "TRACKIO_DIR of the trackio that shows them (SAVE/trackio)"},
      {"--trackio-project", "NAME", text(save.reports.trackio_project), "their project (lockstep)"}};
  if (has_samples)
    flags.push_back({"--keep-samples", "N", number(save.keep_samples, 0, kMany),
                     "newest samples of rollouts that stay in SAVE/samples (0: none are written)"});
  return flags;
}

void resolve_reports(const ReportForm& form, recipes::SaveOptions& save, Classified& given) {
  recipes::ReportOptions& reports = save.reports;
  const auto needs = [&](bool there, std::string_view needed, const std::vector<const char*>& flags) {
    for (const char* flag : flags)
      if (!there && given.given(flag) != nullptr)
        throw ConfigError({.what = std::string(flag) + " needs " + std::string(needed), .where = flag});
  };
  needs(reports.tensorboard, "--use-tensorboard", {"--tensorboard-dir", "--tb-project-name", "--tb-experiment-name"});
  for (const char* flag : {"--wandb-dir", "--wandb-project", "--wandb-team", "--wandb-group", "--wandb-exp-name"})
    if (!reports.wandb && given.given(flag) != nullptr)  // published scripts switch reports off by one flag
      given.notes.push_back(std::string(flag) + ": nothing is written for Weights & Biases without --use-wandb");
  needs(reports.trackio, "--use-trackio", {"--trackio-dir", "--trackio-project"});
  if (!form.tb_project.empty() || !form.tb_experiment.empty())
    reports.tensorboard_dir =
        ((reports.tensorboard_dir.empty() ? fs::Path(save.save) / "tensorboard" : fs::Path(reports.tensorboard_dir)) /
         form.tb_project / form.tb_experiment)
            .string();
  const std::string place = save.save.empty() ? "." : save.save;
  const std::string wandb = reports.wandb_dir.empty() ? place : reports.wandb_dir;
  if (reports.wandb)
    given.notes.push_back("--use-wandb: offline, nothing is sent; `wandb sync " + wandb +
                          "/wandb/offline-run-*` sends it");
  if (reports.trackio && reports.trackio_dir.empty())
    given.notes.push_back("--use-trackio: `TRACKIO_DIR=" + place + "/trackio trackio show` shows it");
}

std::optional<server::DashboardOptions> resolve_dashboard(const ReportForm& form, const recipes::SaveOptions& save,
                                                          const Classified& given) {
  for (const char* flag : {"--dashboard-host", "--dashboard-token-file"})
    if (!form.port && given.given(flag) != nullptr)
      throw ConfigError({.what = std::string(flag) + " needs --dashboard", .where = flag});
  if (!form.port) return std::nullopt;
  if (save.save.empty())
    throw ConfigError({.what = "--dashboard needs --save",
                       .where = "--dashboard",
                       .wanted = "a directory: the page shows the files of the run",
                       .attempt = "--save run"});
  server::DashboardOptions options{
      .runs = {save.save}, .host = form.host, .port = static_cast<int>(*form.port), .may_be_empty = true};
  if (!form.token_file.empty()) options.token = read_secret("--dashboard-token-file", form.token_file);
  return options;
}

server::DashboardOptions parse_dashboard(const Values& args) {
  DashboardForm form;
  const FlagSet flags = dashboard_flags(form);
  Classified given = parse_flags(args, flags, {}, args.size());
  if (given.positionals.size() > kMaxRuns)
    throw ConfigError({.what = "too many runs for one page",
                       .got = std::to_string(given.positionals.size()),
                       .wanted = "at most " + std::to_string(kMaxRuns)});
  if (given.positionals.empty())
    throw ConfigError({.what = "dashboard needs the directory of a run", .attempt = "lockstep dashboard run"});
  form.options.runs = std::move(given.positionals);
  if (!form.token_file.empty()) form.options.token = read_secret("--token-file", form.token_file);
  return form.options;
}

std::string dashboard_help() {
  DashboardForm form;
  return dashboard_flags(form).help(
      "dashboard RUN [RUN ...]",
      "A page about runs, finished or going on, out of the files of their --save directories: curves, the samples of\n"
      "each rollout with their rewards and log-probs, and settings side by side (docs/dashboard.md). At most 64 runs.",
      "Example:\n  lockstep dashboard run other_run --port 7860");
}

}  // namespace lockstep::cli
