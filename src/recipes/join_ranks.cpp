#include "recipes/join_ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ostream>

#include "core/error.h"
#include "core/gpu.h"
#include "parallel/gather.h"
#include "parallel/mpi/mpi_group.h"
#include "parallel/nccl/nccl_group.h"

namespace lockstep::recipes {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void require_own_gpus(parallel::Group& group, const RankOptions& options) {
  const std::string mine = host_name() + " " + gpu_identity().uuid;
  const auto all = parallel::gather_varied(group, std::as_bytes(std::span(mine)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto sharing = std::ranges::count(all, all[rank]);
    if (sharing <= options.ranks_per_device) continue;
    throw ConfigError({.what = "several ranks have one GPU",
                       .where = fmt::format("rank {}", rank),
                       .got = fmt::format("{} ranks on it", sharing),
                       .wanted = fmt::format("{} (RankOptions::ranks_per_device)", options.ranks_per_device),
                       .attempt = "as many ranks as there are GPUs, or RankOptions::ranks_per_device"});
  }
}

}  // namespace

std::unique_ptr<parallel::Group> join_ranks(const Control& control, const Base& base, Stream& stream,
                                            const RankOptions& options) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_minutes * 60'000));
  std::unique_ptr<parallel::Group> group = control.join(rank_identity(base, stream));
  if (group->size() == 1) return group;
  if (options.wire == Wire::mpi) {
    group = parallel::with_mpi(std::move(group), timeout);
    *control.info << fmt::format("note    what moves between the {} ranks does so by MPI\n", group->size());
  }
  if (stream.device() == Device::cpu) return group;
  require_own_gpus(*group, options);
  if (options.wire == Wire::mpi) return group;
  if (options.wire == Wire::host || options.ranks_per_device > 1) {
    *control.info << "note    gradients move between ranks through host memory, over TCP\n";
    return group;
  }
  try {
    group = parallel::with_nccl(std::move(group), stream, {.deadline = timeout});
  } catch (const ConfigError& error) {
    Fault fault = error.fault();
    fault.attempt += (fault.attempt.empty() ? "" : "; or ") +
                     std::string("RankOptions::wire gloo: through host memory, slower, with the same bits");
    throw ConfigError(std::move(fault));
  }
  *control.info << fmt::format("note    gradients move between the GPUs of {} ranks by {}\n", group->size(),
                               group->device_link()->name());
  return group;
}

}  // namespace lockstep::recipes
