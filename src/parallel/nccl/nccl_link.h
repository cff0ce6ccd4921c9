// A DeviceLink over an NCCL communicator. Its calls return at once and are asked about until they have begun; waits end
// at a deadline, and when the group has failed: then the communicator is aborted.
#pragma once

#include "parallel/device_link.h"
#include "parallel/group.h"
#include "parallel/nccl/nccl_library.h"

namespace lockstep::parallel::nccl {

class Link final : public DeviceLink {
 public:
  // Collective: returns when every two ranks are connected. `group` outlives it.
  Link(Library library, const UniqueId& id, Group& group, std::chrono::milliseconds deadline, Stream& stream);
  ~Link() override;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::string name() const override { return "NCCL " + library_.version_text(); }
  void exchange(std::span<const Transfer> transfers, Stream& stream) override;
  void add_two(Tensor total, ConstTensor partial, Stream& stream) override;
  void wait(Stream& stream) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  void require_connected() const;
  void check(Result result, const char* what);
  void settle(const char* what);            // until the last call has begun
  void look(const char* what, Time until);  // throws if the communicator, the group or time is at its end
  void connect_all(Stream& stream);         // which NCCL else does at the first call
  [[noreturn]] void fail(Result result, const char* what);
  void give_up() noexcept;

  const Library library_;
  Group& group_;
  const std::chrono::milliseconds deadline_;
  Comm* comm_ = nullptr;  // nullptr: given up
};

}  // namespace lockstep::parallel::nccl
