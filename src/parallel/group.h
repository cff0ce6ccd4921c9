// parallel: how processes of one job talk.
//
//   includes    core only
//   memory      callers own every buffer; calls return when the result is there
//   threads     a Group is used by one thread at a time
//
// A Group of one (`solo`) is a set of no-ops, so recipes are written once for one process and for many.
#pragma once

#include <chrono>
#include <memory>
#include <span>

namespace lockstep::parallel {

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Sums in rank order, so that the result does not depend on timing.
  virtual void all_reduce(std::span<float> values) = 0;
  // out holds size() pieces in rank order.
  virtual void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) = 0;
  // Throws Cancelled when not all ranks arrive before the deadline.
  virtual void barrier(std::chrono::milliseconds deadline) = 0;
};

std::unique_ptr<Group> solo();

}  // namespace lockstep::parallel
