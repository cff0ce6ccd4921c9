#include "parallel/tcp/open_call.h"

#include <algorithm>
#include <string>

namespace lockstep::parallel::tcp {

namespace {

std::string name_of(const CallShape& call) {
  constexpr const char* kNames[] = {"barrier", "broadcast", "all_gather", "all_to_all"};
  return std::string(kNames[std::clamp(static_cast<int>(call.verb), 0, 3)]) +
         (call.group > 0 ? " of the second group" : "");
}

std::string text_of(const CallShape& call) {
  return name_of(call) + " of " + std::to_string(call.bytes) + " bytes, root " + std::to_string(call.root);
}

}  // namespace

bool OpenCall::come(int rank, const CallShape& call, Deadline until) {
  if (arrived_ == 0) until_ = until;
  calls_[static_cast<size_t>(rank)] = call;
  return ++arrived_ == calls_.size();
}

std::optional<Fault> OpenCall::difference() const {
  for (size_t rank = 1; rank < calls_.size(); ++rank)
    if (calls_[rank] != calls_[0])
      return Fault{.what = "the ranks of a group make different calls",
                   .where = "rank " + std::to_string(rank),
                   .got = text_of(*calls_[rank]),
                   .wanted = text_of(*calls_[0]) + ", as rank 0"};
  return std::nullopt;
}

Fault OpenCall::missing(std::chrono::milliseconds within) const {
  std::string ranks, name;
  for (size_t rank = 0; rank < calls_.size(); ++rank)
    if (calls_[rank])
      name = name_of(*calls_[rank]);
    else
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return {.what = "not all ranks came to a call within its deadline",
          .where = name,
          .got = "no sign of rank " + ranks,
          .wanted = "all " + std::to_string(calls_.size()) + " within " + std::to_string(within.count()) + " ms"};
}

void OpenCall::close() {
  std::ranges::fill(calls_, std::nullopt);
  arrived_ = 0;
}

}  // namespace lockstep::parallel::tcp
