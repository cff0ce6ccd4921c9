#include "core/hash.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

// FIPS 180-4 examples.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesEqualTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 37);
  Sha256 hash;
  for (size_t begin = 0, size = 0; begin < text.size(); begin += size, ++size)
    hash.update(std::string_view(text).substr(begin, size));
  EXPECT_EQ(hash.hex(), sha256(text));
  Sha256 bytes;
  bytes.update(std::as_bytes(std::span(text)));
  EXPECT_EQ(bytes.hex(), sha256(text));
}

}  // namespace
}  // namespace lockstep
