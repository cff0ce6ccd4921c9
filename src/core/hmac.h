// What a shared secret is proved with: HMAC-SHA-256 (RFC 2104) and random bytes, by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace lockstep {

using Mac = std::array<std::byte, 32>;

Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

// Whether both hold the same bytes; takes as long wherever they differ.
bool same_secret(std::span<const std::byte> a, std::span<const std::byte> b);

// Of the system's generator for secrets. ResourceError if it has none.
void fill_random(std::span<std::byte> bytes);

}  // namespace lockstep
