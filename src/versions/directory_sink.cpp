#include "versions/directory_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace lockstep::versions {

namespace stdfs = std::filesystem;

namespace {

constexpr const char* kStable = "STABLE";

void remove_version(const fs::Path& directory) {
  std::error_code ignored;
  stdfs::remove(directory / kStable, ignored);  // first: nobody takes half of it for whole
  stdfs::remove_all(directory, ignored);
}

}  // namespace

DirectorySink::DirectorySink(fs::Path directory, int64_t keep, CopyOptions copy, Stream& stream, Patience patience)
    : directory_(std::move(directory)),
      keep_(keep),
      copy_(std::move(copy)),
      stream_(stream),
      patience_(std::move(patience)) {
  fs::require_writable_directory(directory_);
}

fs::Path DirectorySink::place(const lora::PolicyId& policy) const {
  const std::string name = fmt::format("v{}", policy.version);
  return policy.name == lora::kActor ? directory_ / name : directory_ / policy.name / name;
}

void DirectorySink::stage(const Version& version) {
  // A run that goes on publishes the version it had reached again.
  std::error_code ignored;
  stdfs::remove(place(version->policy) / kStable, ignored);
  written_ = write_patiently(patience_, [&] { write_rollout_copy(place(version->policy), *version, copy_, stream_); });
}

// Versions, by their names and the file that makes them whole, of which this run knows nothing.
void DirectorySink::remove_earlier(const fs::Path& parent, const lora::PolicyId& policy) const {
  std::error_code error;
  for (const auto& entry : stdfs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_version =
        name.size() > 1 && name.front() == 'v' && name.find_first_not_of("0123456789", 1) == std::string::npos;
    if (is_version && entry.path() != place(policy) && fs::exists(entry.path() / kStable)) remove_version(entry.path());
  }
}

void DirectorySink::commit(const lora::PolicyId& policy) {
  held_.push_back(policy);
  if (!written_) return;  // the run is being stopped
  const fs::Path there = place(policy), link = there.parent_path() / "latest", fresh = there.parent_path() / ".latest";
  try {
    fs::write_file_atomic(there / kStable, "");
    std::error_code error;
    stdfs::remove(fresh, error);
    stdfs::create_directory_symlink(there.filename(), fresh, error);
    if (!error) stdfs::rename(fresh, link, error);
    if (error)
      throw ResourceError(
          {.what = "the link to the newest version cannot be written", .where = link.string(), .got = error.message()});
  } catch (...) {
    held_.pop_back();
    throw;
  }
  const auto is_same = [&](const lora::PolicyId& one) { return one.name == policy.name; };
  if (std::ranges::count_if(held_, is_same) == 1 && std::ranges::none_of(kept_, is_same))
    remove_earlier(there.parent_path(), policy);
}

void DirectorySink::abort(const lora::PolicyId& policy) noexcept {
  std::error_code ignored;
  stdfs::remove_all(place(policy), ignored);
}

void DirectorySink::drop(const lora::PolicyId& policy) noexcept {
  std::erase(held_, policy);
  kept_.push_back(policy);
  while (static_cast<int64_t>(kept_.size() + held_.size()) > keep_ && !kept_.empty()) {
    remove_version(place(kept_.front()));
    kept_.erase(kept_.begin());
  }
}

}  // namespace lockstep::versions
