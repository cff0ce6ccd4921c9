// The way between the memories of the ranks' GPUs. It moves bytes, and adds only where a sum has one order.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::parallel {

// Bytes to and from another rank in one exchange; either may be empty.
struct Transfer {
  int rank = 0;
  std::span<const std::byte> to = {};
  std::span<std::byte> from = {};
};

// Calls are collective, of the Group's thread. They throw PeerFailed, Cancelled or DeviceError; the link and its group
// are dead then.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;  // not collective
  virtual std::string name() const = 0;
  // Queued on the stream, whose device holds all of it: nothing may be written and read, or written twice. Of several
  // transfers with one rank the first goes to its first with this rank; both agree on sizes, and 0 moves nothing.
  virtual void exchange(std::span<const Transfer> transfers, Stream& stream) = 0;
  // total = this rank's partial sum + the other's, of two ranks: one addition for each float, so its bits do not depend
  // on who makes it. Queued on the stream.   total, partial  [N] f32 on its device, may be the same memory
  virtual void add_two(Tensor total, ConstTensor partial, Stream& stream) = 0;
  // Waits until what is queued on the stream has run; unlike Stream::synchronize it notices that a rank is gone.
  virtual void wait(Stream& stream) = 0;
};

}  // namespace lockstep::parallel
