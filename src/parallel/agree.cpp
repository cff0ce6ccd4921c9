#include "parallel/agree.h"

#include <algorithm>

#include "parallel/gather.h"
#include "parallel/report.h"

namespace lockstep::parallel {

namespace {

std::vector<std::vector<std::byte>> gather_reports(Group& group, const std::exception_ptr& mine) {
  if (!mine) return gather_varied(group, {});
  try {
    return gather_varied(group, pack_report(report_of(mine)));
  } catch (...) {
    std::rethrow_exception(mine);
  }
}

}  // namespace

void agree(Group& group, const std::exception_ptr& mine, MakeError make) {
  const std::vector<std::vector<std::byte>> reports = gather_reports(group, mine);
  const auto first = std::ranges::find_if(reports, [](const auto& bytes) { return !bytes.empty(); });
  if (first == reports.end()) return;
  const int rank = static_cast<int>(first - reports.begin());
  if (rank == group.rank()) std::rethrow_exception(mine);
  Report report = unpack_report(*first);
  if (const std::exception_ptr same = make(report.kind, report.fault)) std::rethrow_exception(same);
  throw PeerFailed(rank, std::move(report.fault), report.exit_code);
}

void fail(Group& group, const std::exception_ptr& error) noexcept {
  const Report report = report_of(error);
  group.fail(report.fault, report.exit_code);
}

}  // namespace lockstep::parallel
