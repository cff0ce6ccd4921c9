// The connections on which the bytes of a call move: one between every two ranks.
#pragma once

#include <span>
#include <vector>

#include "parallel/tcp/control.h"
#include "parallel/tcp/socket.h"

namespace lockstep::parallel::tcp {

class Mesh {
 public:
  // `sockets`: by rank; this rank's own is closed. `group`: whose calls they are. `control` outlives the mesh.
  Mesh(std::vector<Socket> sockets, int rank, size_t group, Control& control, Timeouts timeouts)
      : sockets_(std::move(sockets)), rank_(rank), group_(group), control_(control), timeouts_(timeouts) {}

  // Sends `to[r]` to rank r and fills `from[r]` with what it sends; empty pieces are not waited for. All ranks have
  // come to the call (Control::enter). A connection that ends, or on which nothing moves until the deadline, ends the
  // group. A failure of the group that is heard of meanwhile does not stop bytes that still come, so that a call of
  // which all ranks have sent their part is whole.
  void exchange(const std::vector<std::span<const std::byte>>& to, const std::vector<std::span<std::byte>>& from);

 private:
  bool move(std::vector<std::span<const std::byte>>& to, std::vector<std::span<std::byte>>& from, Deadline until);
  [[noreturn]] void give_up(int rank, const char* why);

  std::vector<Socket> sockets_;
  const int rank_;
  const size_t group_;
  Control& control_;
  const Timeouts timeouts_;
};

}  // namespace lockstep::parallel::tcp
