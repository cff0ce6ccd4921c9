// parallel: how the ranks of one job communicate. A rank is a process, or a thread of one.
//
//   includes    core only
//   memory      callers own every buffer; a Group's is host memory, and a call no longer uses it when it returns
//   threads     a Group is used by one thread at a time; fail, interrupt and interrupted may be called from any
//
// A Group moves bytes and never adds numbers: parallel/tree_sum.h does, so that no transport can change the order of
// a sum. A Group of one (`solo`) has nothing to move, so callers are written once for one rank and for many.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"

namespace lockstep::parallel {

// Another rank failed, or this one reported its failure (Group::fail), and the group ended. The exit code is that of
// the failed rank's own error: it becomes the job's.
class PeerFailed final : public Error {
 public:
  PeerFailed(int rank, Fault fault, int exit_code);
  int rank() const { return rank_; }
  const char* kind() const override { return "PeerFailed"; }
  int exit_code() const override { return exit_code_; }

 private:
  int rank_, exit_code_;
};

// The verbs are collective: every rank makes the same calls in the same order. They throw ShapeError when sizes do not
// fit (or, where the transport can see it, when the ranks make different calls), PeerFailed when a rank has failed or
// is gone, and Cancelled when not all ranks have entered a call within its deadline. After a call has thrown, the group
// is dead: all later calls, of every rank, throw. Outputs must not overlap inputs.
class DeviceLink;  // parallel/device_link.h

class Group {
 public:
  virtual ~Group() = default;  // not collective
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // out holds size() pieces in rank order, each as large as `mine`.
  virtual void all_gather(std::span<std::byte> out, std::span<const std::byte> mine) = 0;
  // Both hold size() pieces of one size: piece r of `in` goes to rank r, piece r of `out` came from rank r.
  virtual void all_to_all(std::span<std::byte> out, std::span<const std::byte> in) = 0;
  virtual void barrier() = 0;

  // This rank cannot continue: from now on the calls of all ranks throw PeerFailed with this fault. Only the first call
  // counts. In a group of one it has no effect.
  virtual void fail(const Fault& fault, int exit_code) noexcept = 0;
  // Throws PeerFailed or Cancelled if the group has failed, as far as this rank has heard; does not wait, and is not
  // collective. For long work between calls.
  virtual void check() = 0;
  // Whether check() would throw. Unlike check() it does not count as this rank having heard of the failure
  // (Timeouts::exit_after): for what has to be cleaned up first and may hang.
  virtual bool failed() const noexcept = 0;
  // Asks all ranks to stop at a convenient point; interrupted() returns whether any rank has asked. Neither waits, and
  // a rank may hear of it a moment later.
  virtual void interrupt() noexcept = 0;
  virtual bool interrupted() const noexcept = 0;

  // A second group of the same ranks, for another thread: its calls have an order of their own, and never wait for
  // those of this one. A failure or an interrupt of one is one of both. Bytes move through host memory, whatever this
  // one has: kernels of two NCCL communicators may wait for one another. At most once for each group, which outlives
  // it; not collective, and the others do not hear of its end.
  virtual std::unique_ptr<Group> second() = 0;

  // The way between the memories of the ranks' GPUs; nullptr: there is none, and what lies on a GPU moves through host
  // memory.
  virtual DeviceLink* device_link() { return nullptr; }
};

struct Timeouts {
  std::chrono::milliseconds call = std::chrono::minutes(10);  // until all ranks have entered a call
  // Of processes: until all have come, a sign of life every so often, how long none may come, and how long after a
  // failure a process that has not noticed it is given (parallel/connect.h).
  std::chrono::milliseconds meet = std::chrono::minutes(10);
  // Together beat, silence and exit_after are the longest that a job outlives one of its ranks.
  std::chrono::milliseconds beat = std::chrono::milliseconds(250);
  std::chrono::milliseconds silence = std::chrono::seconds(7);
  // How long the other host may leave a sign of life without a receipt. Its kernel gives receipts, however busy its
  // processes are: only a cut network or a host that has stopped gives none. Packets that are lost are sent again after
  // 0.2, 0.6 and 1.4 s.
  std::chrono::milliseconds receipt = std::chrono::milliseconds(1500);
  std::chrono::milliseconds exit_after = std::chrono::seconds(6);
};

std::unique_ptr<Group> solo();

// `size` ranks inside one process, each for a thread of its own: for tests, and for several ranks on one GPU. A rank
// whose Group is destroyed counts as gone. ConfigError for a size below 1.
std::vector<std::unique_ptr<Group>> threads(int size, Timeouts timeouts = {});

}  // namespace lockstep::parallel
