#include "recipes/reference.h"

#include <fmt/format.h>

#include "checkpoint/train_state.h"
#include "core/fs.h"
#include "recipes/base.h"

namespace lockstep::recipes {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& path, const std::string& attempt) {
  throw ConfigError({.what = what, .where = "the reference", .got = path, .attempt = attempt});
}

// A PEFT directory, a checkpoint of ours, or a save directory with one.
bool is_adapter(const fs::Path& path) {
  if (fs::exists(path / "adapter_config.json") || fs::exists(path / checkpoint::kAdapterDirectory)) return true;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (fs::exists(entry.path() / checkpoint::kAdapterDirectory)) return true;
  return false;
}

// Megatron's: iter_0000001 or release, and the file that says which.
bool is_megatron(const fs::Path& path) {
  if (fs::exists(path / "latest_checkpointed_iteration.txt") || fs::exists(path / "common.pt")) return true;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().filename().string().starts_with("iter_") || entry.path().filename() == "release") return true;
  return false;
}

}  // namespace

std::optional<std::string> check_reference(const std::string& path, const BaseOptions& options, bool used) {
  if (path == options.hf_checkpoint) return std::nullopt;
  const fs::Path base = load::model_directory(options.hf_checkpoint, load::caches_below(options.home));
  if (fs::exists(path) && fs::same_place(path, base)) return std::nullopt;
  if (!std::filesystem::is_directory(path))
    refuse("the reference is not there", path, "a directory, or none: the base is the reference");
  if (is_adapter(path))
    return used ? std::nullopt : std::optional(fmt::format("{}: not read, for nothing asks for a reference", path));
  const bool hugging_face = fs::exists(fs::Path(path) / "config.json");
  if (!hugging_face && !is_megatron(path))
    refuse("the reference is no model", path, "the directory of the base, or none");
  if (hugging_face) {
    StreamOptions on_cpu = options.stream;
    on_cpu.device = Device::cpu;
    Stream stream(on_cpu);
    if (load::identify_base(path, stream, load::caches_below(options.home)).fingerprint ==
        load::identify_base(options.hf_checkpoint, stream, load::caches_below(options.home)).fingerprint)
      return std::nullopt;
  }
  if (used)
    refuse(hugging_face ? "not available yet: a reference that is another model than the base"
                        : "not available yet: a reference in Megatron's format",
           path, "drop it: the base is the reference");
  return fmt::format("{}: not read, for nothing asks for a reference", path);
}

}  // namespace lockstep::recipes
