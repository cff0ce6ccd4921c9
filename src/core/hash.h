// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  std::string hex();  // 64 lower-case digits; ends the hash

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
