// The way between the memories of the ranks' GPUs. Like a Group it moves bytes and adds nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/stream.h"

namespace lockstep::parallel {

// Calls are collective, of the Group's thread. They throw PeerFailed, Cancelled or DeviceError; the link and its group
// are dead then.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;  // not collective
  virtual std::string name() const = 0;
  // Queued on the stream, whose device holds all of it: to[r] goes to rank r, from[r] is filled with what rank r sends
  // here. One entry for each rank, this one's own is not looked at; sender and receiver agree on sizes, and 0 moves
  // nothing.
  virtual void exchange(const std::vector<std::span<const std::byte>>& to,
                        const std::vector<std::span<std::byte>>& from, Stream& stream) = 0;
  // Waits until what is queued on the stream has run; unlike Stream::synchronize it notices that a rank is gone.
  virtual void wait(Stream& stream) = 0;
};

}  // namespace lockstep::parallel
