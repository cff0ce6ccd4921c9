#include "parallel/nccl/nccl_group.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "parallel/agree.h"
#include "parallel/gather.h"
#include "parallel/nccl/nccl_link.h"

namespace lockstep::parallel {

namespace {

// Host memory moves as in `group`.
class NcclGroup final : public Group {
 public:
  NcclGroup(std::unique_ptr<Group> group, std::unique_ptr<nccl::Link> link)
      : group_(std::move(group)), link_(std::move(link)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void broadcast(std::span<std::byte> bytes, int root) override { group_->broadcast(bytes, root); }
  void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) override { group_->all_gather(out, mine); }
  void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) override { group_->all_to_all(out, in); }
  void barrier() override { group_->barrier(); }
  void fail(const Fault& fault, int exit_code) noexcept override { group_->fail(fault, exit_code); }
  void check() override { group_->check(); }
  bool failed() const noexcept override { return group_->failed(); }
  void interrupt() noexcept override { group_->interrupt(); }
  bool interrupted() const noexcept override { return group_->interrupted(); }
  std::unique_ptr<Group> second() override { return group_->second(); }
  DeviceLink* device_link() override { return link_.get(); }

 private:
  const std::unique_ptr<Group> group_;      // outlives
  const std::unique_ptr<nccl::Link> link_;  // which asks it
};

void require_one_version(Group& group, const nccl::Library& library) {
  const std::vector<int> versions = gather_values(group, std::span(&library.version, 1));
  for (size_t rank = 1; rank < versions.size(); ++rank)
    if (versions[rank] != versions[0])
      throw ConfigError({.what = "the ranks have different versions of NCCL",
                         .where = "rank " + std::to_string(rank),
                         .got = std::to_string(versions[rank]),
                         .wanted = std::to_string(versions[0]) + ", as rank 0"});
}

}  // namespace

std::unique_ptr<Group> with_nccl(std::unique_ptr<Group> group, Stream& stream, const NcclOptions& options) {
  if (group->size() == 1) return group;
  nccl::Library library{};
  nccl::UniqueId id{};
  agree_after(*group, [&] { library = nccl::load(options.library); });
  require_one_version(*group, library);
  agree_after(*group, [&] {
    if (group->rank() != 0) return;
    if (const nccl::Result result = library.unique_id(&id); result != nccl::kSuccess)
      throw ConfigError({.what = "NCCL cannot begin", .where = "ncclGetUniqueId", .got = library.error_string(result)});
  });
  group->broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
  std::unique_ptr<nccl::Link> link;
  together(*group, [&] { link = std::make_unique<nccl::Link>(library, id, *group, options.deadline, stream); });
  return std::make_unique<NcclGroup>(std::move(group), std::move(link));
}

}  // namespace lockstep::parallel
