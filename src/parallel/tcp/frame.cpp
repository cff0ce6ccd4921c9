#include "parallel/tcp/frame.h"

#include <array>
#include <cstring>

#include "core/error.h"

namespace lockstep::parallel::tcp {

namespace {

constexpr size_t kHead = sizeof(uint32_t) + 1;

// Of what follows the length: the type and the rest.
uint32_t length_of(std::span<const std::byte> head, size_t most) {
  uint32_t length = 0;
  std::memcpy(&length, head.data(), sizeof(length));
  if (length >= 1 && length <= most) return length;
  throw FormatError({.what = "what came over a connection is no message",
                     .got = std::to_string(length) + " bytes",
                     .wanted = "1 to " + std::to_string(most)});
}

}  // namespace

std::vector<std::byte> encode(FrameType type, std::span<const std::byte> bytes) {
  const auto length = static_cast<uint32_t>(bytes.size() + 1);
  std::vector<std::byte> frame(kHead + bytes.size());
  std::memcpy(frame.data(), &length, sizeof(length));
  frame[sizeof(length)] = static_cast<std::byte>(type);
  if (!bytes.empty()) std::memcpy(frame.data() + kHead, bytes.data(), bytes.size());
  return frame;
}

std::vector<std::byte> encode(FrameType type, std::string_view text) {
  return encode(type, std::as_bytes(std::span(text)));
}

std::optional<Frame> FrameReader::next() {
  if (pending_.size() < sizeof(uint32_t)) return std::nullopt;
  const size_t end = sizeof(uint32_t) + length_of(pending_, most_);
  if (pending_.size() < end) return std::nullopt;
  const auto first = pending_.begin();
  Frame frame{.type = static_cast<FrameType>(pending_[sizeof(uint32_t)]),
              .bytes = {first + kHead, first + static_cast<ptrdiff_t>(end)}};
  pending_.erase(first, first + static_cast<ptrdiff_t>(end));
  return frame;
}

bool read_into(FrameReader& reader, const Socket& socket) {
  std::array<std::byte, 4096> buffer;
  while (reader.pending() <= reader.most() + kHead) {  // else whoever sends faster than we read would fill our memory
    const ptrdiff_t got = receive_some(socket, buffer);
    if (got <= 0) return got == 0;
    reader.add(std::span(buffer).first(static_cast<size_t>(got)));
    if (static_cast<size_t>(got) < buffer.size()) break;
  }
  return true;
}

Frame receive_frame(const Socket& socket, size_t most, Deadline deadline) {
  std::array<std::byte, kHead> head;
  receive_all(socket, head, deadline);
  Frame frame{.type = static_cast<FrameType>(head.back()), .bytes = {}};
  frame.bytes.resize(length_of(head, most) - 1);
  receive_all(socket, frame.bytes, deadline);
  return frame;
}

}  // namespace lockstep::parallel::tcp
