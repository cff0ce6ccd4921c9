#include "versions/directory_sink.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace lockstep::versions {

namespace stdfs = std::filesystem;

DirectorySink::DirectorySink(fs::Path directory, int64_t keep, CopyOptions copy, Stream& stream)
    : directory_(std::move(directory)), keep_(keep), copy_(std::move(copy)), stream_(stream) {
  fs::require_writable_directory(directory_);
}

fs::Path DirectorySink::place(const lora::PolicyId& policy) const {
  const std::string name = fmt::format("v{}", policy.version);
  return policy.name == lora::kActor ? directory_ / name : directory_ / policy.name / name;
}

void DirectorySink::stage(const Version& version) {
  // A run that goes on publishes the version it had reached again.
  std::error_code ignored;
  stdfs::remove(place(version->policy) / "STABLE", ignored);
  write_rollout_copy(place(version->policy), *version, copy_, stream_);
}

void DirectorySink::commit(const lora::PolicyId& policy) {
  const fs::Path there = place(policy), link = there.parent_path() / "latest", fresh = there.parent_path() / ".latest";
  fs::write_file_atomic(there / "STABLE", "");
  std::error_code error;
  stdfs::remove(fresh, error);
  stdfs::create_directory_symlink(there.filename(), fresh, error);
  if (!error) stdfs::rename(fresh, link, error);
  if (error)
    throw ResourceError(
        {.what = "the link to the newest version cannot be written", .where = link.string(), .got = error.message()});
  held_.push_back(policy);
}

void DirectorySink::abort(const lora::PolicyId& policy) noexcept {
  std::error_code ignored;
  stdfs::remove_all(place(policy), ignored);
}

void DirectorySink::drop(const lora::PolicyId& policy) noexcept {
  std::erase(held_, policy);
  kept_.push_back(policy);
  while (static_cast<int64_t>(kept_.size() + held_.size()) > keep_ && !kept_.empty()) {
    std::error_code ignored;
    stdfs::remove(place(kept_.front()) / "STABLE", ignored);  // first: nobody takes half of it for whole
    stdfs::remove_all(place(kept_.front()), ignored);
    kept_.erase(kept_.begin());
  }
}

}  // namespace lockstep::versions
