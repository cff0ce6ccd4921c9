// Messages on a connection: a length of 4 bytes, a type, the rest.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/tcp/socket.h"

namespace lockstep::parallel::tcp {

enum class FrameType : uint8_t {
  hello = 1,  // who a newcomer is (rendezvous.h)
  welcome,    // all have come: where their listeners are
  refused,    // a Report
  ready,      // this rank has a connection to every other one
  start,      // all are ready
  beat,       // a sign of life
  enter,      // this rank has come to a call
  go,         // all have come to it
  fail,       // this rank says why the group must end
  end,        // rank 0 says so to all
  interrupt,  // a rank was asked to stop
  leave,      // this rank makes no more calls
};

inline constexpr size_t kNewcomerBytes = 4096;     // of a frame of somebody whom rank 0 has not accepted yet
inline constexpr size_t kMemberBytes = 256 << 10;  // of any other

struct Frame {
  FrameType type{};
  std::vector<std::byte> bytes;
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

std::vector<std::byte> encode(FrameType type, std::span<const std::byte> bytes = {});
std::vector<std::byte> encode(FrameType type, std::string_view text);

// Cuts what arrives into frames.
class FrameReader {
 public:
  explicit FrameReader(size_t most) : most_(most) {}
  void set_most(size_t most) { most_ = most; }
  void add(std::span<const std::byte> bytes) { pending_.insert(pending_.end(), bytes.begin(), bytes.end()); }
  size_t pending() const { return pending_.size(); }
  size_t most() const { return most_; }
  // The next whole frame. FormatError: it is larger than it may be, or empty.
  std::optional<Frame> next();

 private:
  size_t most_;
  std::vector<std::byte> pending_;
};

// Reads what the socket has into the reader, at most a little more than a frame may hold; false: the connection has
// ended.
bool read_into(FrameReader& reader, const Socket& socket);
// The next frame, waiting for it. Throws what receive_all and FrameReader throw.
Frame receive_frame(const Socket& socket, size_t most, Deadline deadline);

}  // namespace lockstep::parallel::tcp
