#include <fmt/format.h>

#include <ostream>

#include "checkpoint/train_state.h"
#include "commands/files/commands.h"
#include "commands/files/verification.h"
#include "core/printable.h"
#include "load/lora_factors.h"

namespace lockstep::commands {

namespace {

namespace stdfs = std::filesystem;

// Every iteration of a save directory, and what its markers name.
void verify_save_directory(const fs::Path& save, const VerifiedBase* base, Verification& report, Stream& stream) {
  report.holds([&] {
    const std::optional<int64_t> latest = checkpoint::latest_iteration(save), best = checkpoint::best_iteration(save);
    if (!latest)
      throw FormatError({.what = "the marker of the newest checkpoint is missing",
                         .where = save.string(),
                         .wanted = "latest_checkpointed_iteration.txt",
                         .attempt = "--load takes the newest that is whole"});
    report.checked(fmt::format("{}: newest checkpoint {}{}", save.string(), latest ? std::to_string(*latest) : "none",
                               best ? fmt::format(", best {}", *best) : ""));
  });
  std::vector<fs::Path> iterations;
  for (const stdfs::directory_entry& entry : stdfs::directory_iterator(save))
    if (entry.is_directory() && entry.path().filename().string().starts_with("iter_"))
      iterations.push_back(entry.path());
  std::ranges::sort(iterations);
  for (const fs::Path& iteration : iterations) verify_checkpoint(iteration, base, report, stream);
}

bool is_save_directory(const fs::Path& path) {
  if (!fs::is_directory(path)) return false;
  if (fs::exists(path / "latest_checkpointed_iteration.txt")) return true;
  for (const stdfs::directory_entry& entry : stdfs::directory_iterator(path))
    if (fs::exists(entry.path() / checkpoint::kTrainStateFile)) return true;
  return false;
}

}  // namespace

VerifiedBase::VerifiedBase(const recipes::BaseOptions& options, Stream& stream)
    : identity(load::identify_base(options.hf_checkpoint, stream, load::caches_below(options.home))),
      directory(identity.path) {
  directory.open_weights();
}

void run_verify(const VerifyOptions& options, const recipes::Control& control) {
  Stream stream(options.base.stream);
  std::optional<VerifiedBase> given;
  if (!options.base.hf_checkpoint.empty()) given.emplace(options.base, stream);
  const VerifiedBase* const base = given ? &*given : nullptr;
  const fs::Path path(options.path);
  Verification report;
  if (fs::exists(path / checkpoint::kTrainStateFile) || fs::exists(path / checkpoint::kAdapterDirectory))
    verify_checkpoint(path, base, report, stream);
  else if (fs::exists(path / checkpoint::kAdapterConfigFile) || fs::exists(path / checkpoint::kAdapterWeightsFile))
    verify_adapter(path, base, report, stream);
  else if (fs::exists(path / "config.json") || fs::exists(path / "model.safetensors"))
    verify_model(path, base, report, stream);
  else if (is_save_directory(path))
    verify_save_directory(path, base, report, stream);
  else
    throw ConfigError(
        {.what = "nothing to verify",
         .where = options.path,
         .wanted = "a checkpoint, a --save directory, a PEFT directory or a Hugging Face model directory"});
  for (const std::string& line : report.checked()) *control.out << "checked  " << printable(line) << "\n";
  for (const std::string& line : report.problems()) *control.out << "problem  " << printable(line) << "\n";
  if (report.problems().empty()) {
    *control.out << "whole    " << printable(options.path) << "\n";
    return;
  }
  throw FormatError(
      {.what = fmt::format("{} problem{} found", report.problems().size(), report.problems().size() == 1 ? "" : "s"),
       .where = options.path,
       .got = report.problems().front()});
}

}  // namespace lockstep::commands
