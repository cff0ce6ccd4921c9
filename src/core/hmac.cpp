#include "core/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/error.h"

namespace lockstep {

Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  Mac mac;
  unsigned int size = 0;
  const auto* const result = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                  reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                  reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (result == nullptr || size != mac.size()) throw ResourceError({.what = "OpenSSL offers no HMAC-SHA-256"});
  return mac;
}

bool same_secret(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) == 1) return;
  throw ResourceError({.what = "the system has no random bytes"});
}

}  // namespace lockstep
