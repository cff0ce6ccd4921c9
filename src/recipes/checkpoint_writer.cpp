#include "recipes/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ostream>
#include <utility>

#include "core/stopwatch.h"

namespace lockstep::recipes {

namespace {

constexpr double kSlowDiskMs = 1000;

}  // namespace

std::vector<int64_t> superfluous(const SaveOptions& options, const std::vector<int64_t>& saved,
                                 const std::set<int64_t>& read) {
  if (!options.total_limit && !options.retain_interval) return {};
  const auto newest = static_cast<size_t>(std::max<int64_t>(1, options.total_limit.value_or(1)));
  std::vector<int64_t> gone;
  for (size_t i = 0; i + newest < saved.size(); ++i) {
    const bool retained = options.retain_interval && saved[i] % *options.retain_interval == 0;
    if (!retained && !read.contains(saved[i])) gone.push_back(saved[i]);
  }
  return gone;
}

CheckpointWriter::CheckpointWriter(const SaveOptions& options, std::vector<int64_t> saved, const Control& control)
    : options_(options), control_(control), saved_(std::move(saved)) {}

CheckpointWriter::~CheckpointWriter() = default;  // of std::async: waits

std::optional<int64_t> CheckpointWriter::newest() const {
  return saved_.empty() ? std::nullopt : std::optional(saved_.back());
}

void CheckpointWriter::begin(TrainingSnapshot snapshot, const std::set<int64_t>& read) {
  wait();
  writing_ = snapshot.iteration();
  std::vector<int64_t> saved = saved_;
  std::erase_if(saved, [&](int64_t iteration) { return iteration >= snapshot.iteration(); });
  saved.push_back(snapshot.iteration());
  removing_ = superfluous(options_, saved, read);
  done_ = std::async(std::launch::async, [save = fs::Path(options_.save), is_first = saved_.empty(),
                                          removing = removing_, snapshot = std::move(snapshot)]() mutable {
    if (is_first) checkpoint::unmark_best(save);  // an earlier run's, before its checkpoints are replaced
    snapshot.save(save);
    for (const int64_t iteration : removing) checkpoint::remove_iteration(save, iteration);
  });
}

void CheckpointWriter::remove_superfluous(const std::set<int64_t>& read) {
  wait();
  for (const int64_t iteration : superfluous(options_, saved_, read)) {
    checkpoint::remove_iteration(options_.save, iteration);
    std::erase(saved_, iteration);
  }
}

void CheckpointWriter::wait() {
  if (!done_.valid()) return;
  const int64_t iteration = *std::exchange(writing_, std::nullopt);
  const bool late = done_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  const Stopwatch watch;
  done_.get();
  if (late && watch.ms() > kSlowDiskMs)
    *control_.info << fmt::format("note    waited {:.1f} s for the checkpoint of iteration {} to reach the disk\n",
                                  watch.ms() / 1000, iteration);
  std::erase_if(saved_, [&](int64_t saved) {
    return saved >= iteration || std::ranges::find(removing_, saved) != removing_.end();
  });
  saved_.push_back(iteration);
}

}  // namespace lockstep::recipes
