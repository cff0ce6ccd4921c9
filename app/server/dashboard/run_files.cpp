#include "server/dashboard/run_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/json.h"
#include "recipes/run_facts.h"

namespace lockstep::server {

namespace {

constexpr size_t kMaxLines = 2000;
constexpr int64_t kMaxGroups = 1000;
constexpr size_t kReadAtOnce = size_t{64} << 20;

bool is_mixed(const recipes::SampleGroup& group) {
  std::optional<float> first;
  for (const std::optional<float>& reward : group.rewards) {
    if (!reward) continue;
    if (first && *first != *reward) return true;
    first = reward;
  }
  return false;
}

bool passes(const recipes::SampleGroup& group, const GroupFilter& filter) {
  if (filter.step && group.step != *filter.step) return false;
  switch (filter.show) {
    case GroupFilter::Show::all: return true;
    case GroupFilter::Show::mixed: return is_mixed(group);
    case GroupFilter::Show::equal: return !is_mixed(group);
    case GroupFilter::Show::truncated: return std::ranges::count(group.truncated, true) > 0;
    case GroupFilter::Show::unknown:
      return std::ranges::any_of(group.rewards, [](const std::optional<float>& reward) { return !reward; });
  }
  return false;
}

}  // namespace

std::string GrowingFile::next(bool& is_new) {
  struct stat status {};
  const bool there = ::stat(path_.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  const uint64_t inode = there ? status.st_ino : 0;
  const size_t size = there ? static_cast<size_t>(status.st_size) : 0;
  if (inode != inode_ || size < read_) {
    is_new = inode_ != 0;
    inode_ = inode;
    read_ = 0;
  }
  if (size == read_) return {};
  const fs::File file(path_);
  std::string bytes(std::min({kReadAtOnce, size - read_, file.size() - std::min(read_, file.size())}), '\0');
  file.read(bytes.data(), read_, bytes.size());
  const size_t end = bytes.rfind('\n');
  bytes.resize(end == std::string::npos ? 0 : end + 1);
  read_ += bytes.size();
  return bytes;
}

RunFiles::RunFiles(std::string directory, bool may_be_empty)
    : directory_(std::filesystem::absolute(directory).lexically_normal()),
      metrics_file_(directory_ / "metrics.jsonl"),
      index_file_(samples_directory() / recipes::kSampleIndex) {
  name_ = (directory_.has_filename() ? directory_ : directory_.parent_path()).filename().string();
  const bool there = fs::is_file(metrics_file_.path()) || fs::is_file(directory_ / recipes::kRunFile);
  if (!there && !may_be_empty)
    throw ConfigError({.what = "this is no directory of a run",
                       .where = directory,
                       .got = fs::exists(directory_) ? "neither metrics.jsonl nor run.json" : "nothing",
                       .wanted = "what --save of lockstep train, sft or dpo named"});
}

bool RunFiles::refresh() {
  const size_t metrics = metrics_.size(), groups = groups_.size();
  const int64_t epoch = epoch_, groups_epoch = groups_epoch_;
  // The run writes it once, before its first line.
  if (facts_.empty() || metrics_.empty())
    if (auto text = fs::read_file_if_exists(directory_ / recipes::kRunFile, kMaxJsonFileBytes))
      if (Json::accept(*text)) facts_ = *text;
  metrics_file_.read(
      [&] {
        metrics_.clear();
        facts_.clear();
        ++epoch_;
      },
      [&](std::string_view line) {
        if (Json::accept(line)) metrics_.emplace_back(line);
      });
  index_file_.read(
      [&] {
        groups_.clear();
        samples_ = 0;
        ++groups_epoch_;
      },
      [&](std::string_view line) {
        groups_.push_back(recipes::parse_index_line(line, index_file_.path().string()));
        samples_ += groups_.back().num_samples();
      });
  return metrics_.size() != metrics || groups_.size() != groups || epoch_ != epoch || groups_epoch_ != groups_epoch;
}

std::string RunFiles::state_json(size_t id) const {
  return fmt::format(R"({{"id":{},"epoch":{},"metrics":{},"groups":{},"samples":{},"last_step":{}}})", id, epoch_,
                     metrics_.size(), groups_.size(), samples_, groups_.empty() ? 0 : groups_.back().step);
}

std::string RunFiles::summary_json(size_t id) const {
  const OrderedJson facts = facts_.empty() ? OrderedJson::object() : OrderedJson::parse(facts_);
  OrderedJson summary = OrderedJson::parse(state_json(id));
  summary.update({{"name", name_}, {"path", directory_.string()}});
  for (const char* key : {"kind", "iterations", "arguments"})
    summary[key] = facts.is_object() && facts.contains(key) ? facts[key] : OrderedJson(nullptr);
  return json_text(summary);
}

std::string RunFiles::metrics_json(size_t from) const {
  const size_t first = std::min(from, metrics_.size()), end = std::min(metrics_.size(), first + kMaxLines);
  std::string out = fmt::format(R"({{"epoch":{},"from":{},"total":{},"lines":[)", epoch_, first, metrics_.size());
  for (size_t i = first; i < end; ++i) {
    if (i > first) out += ',';
    out += metrics_[i];
  }
  return out + "]}";
}

std::string RunFiles::groups_json(const GroupFilter& filter) const {
  const int64_t count = std::clamp<int64_t>(filter.count, 0, kMaxGroups);
  int64_t total = 0;
  std::string lines;
  const auto add = [&](const recipes::SampleGroup& group) {
    if (!passes(group, filter)) return;
    if (total >= filter.first && total < filter.first + count) {
      if (!lines.empty()) lines += ',';
      lines += recipes::index_line(group);
    }
    ++total;
  };
  if (filter.oldest_first)
    std::ranges::for_each(groups_, add);
  else
    std::for_each(groups_.rbegin(), groups_.rend(), add);
  return fmt::format(R"({{"epoch":{},"total":{},"groups":[{}]}})", groups_epoch_, total, lines);
}

const recipes::SampleGroup* RunFiles::find(int64_t step, int64_t group) const {
  const auto found = std::ranges::find_if(
      groups_, [&](const recipes::SampleGroup& entry) { return entry.step == step && entry.group == group; });
  return found == groups_.end() ? nullptr : &*found;
}

}  // namespace lockstep::server
