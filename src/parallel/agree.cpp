#include "parallel/agree.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "core/make_error.h"
#include "parallel/gather.h"

namespace lockstep::parallel {

namespace {

// What travels of an error.
struct Report {
  std::string kind;  // empty: nothing that the other ranks could throw as itself
  Fault fault;
  int32_t exit_code = 1;

  std::array<std::string*, 6> texts() {
    return {&kind, &fault.what, &fault.where, &fault.got, &fault.wanted, &fault.attempt};
  }
};

Report report_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    return {typed.kind(), typed.fault(), typed.exit_code()};
  } catch (const std::bad_alloc&) {
    const ResourceError typed({.what = "out of memory"});
    return {typed.kind(), typed.fault(), typed.exit_code()};
  } catch (const std::exception& other) {
    return {"", {.what = other.what()}, 1};
  } catch (...) {
    return {"", {.what = "an exception without a message"}, 1};
  }
}

std::vector<std::byte> packed(Report report) {
  std::vector<std::byte> bytes;
  const auto add = [&](const void* from, size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + count);
  };
  add(&report.exit_code, sizeof(report.exit_code));
  for (const std::string* text : report.texts()) {
    const uint64_t length = text->size();
    add(&length, sizeof(length));
    add(text->data(), text->size());
  }
  return bytes;
}

Report unpacked(std::span<const std::byte> bytes) {
  Report report;
  const auto take = [&](void* to, size_t count) {
    std::memcpy(to, bytes.data(), count);
    bytes = bytes.subspan(count);
  };
  take(&report.exit_code, sizeof(report.exit_code));
  for (std::string* text : report.texts()) {
    uint64_t length = 0;
    take(&length, sizeof(length));
    text->resize(length);
    take(text->data(), length);
  }
  return report;
}

std::vector<std::vector<std::byte>> gather_reports(Group& group, const std::exception_ptr& mine) {
  if (!mine) return gather_varied(group, {});
  try {
    return gather_varied(group, packed(report_of(mine)));
  } catch (...) {
    std::rethrow_exception(mine);
  }
}

}  // namespace

void agree(Group& group, const std::exception_ptr& mine) {
  const std::vector<std::vector<std::byte>> reports = gather_reports(group, mine);
  const auto first = std::ranges::find_if(reports, [](const auto& bytes) { return !bytes.empty(); });
  if (first == reports.end()) return;
  const int rank = static_cast<int>(first - reports.begin());
  if (rank == group.rank()) std::rethrow_exception(mine);
  Report report = unpacked(*first);
  if (const std::exception_ptr same = make_error(report.kind, report.fault)) std::rethrow_exception(same);
  throw PeerFailed(rank, std::move(report.fault), report.exit_code);
}

void fail(Group& group, const std::exception_ptr& error) noexcept {
  const Report report = report_of(error);
  group.fail(report.fault, report.exit_code);
}

}  // namespace lockstep::parallel
