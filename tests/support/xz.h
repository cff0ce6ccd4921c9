// Whole .xz files, for test data that is kept compressed.
#pragma once

#include <lzma.h>

#include <array>
#include <stdexcept>
#include <string>

#include "core/fs.h"

namespace lockstep::testing {

inline std::string read_xz(const fs::Path& path) {
  const std::string packed = fs::read_file(path);
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, UINT64_MAX, 0) != LZMA_OK) throw std::runtime_error("no xz decoder");
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string bytes;
  std::array<uint8_t, 1 << 16> block;
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    stream.next_out = block.data();
    stream.avail_out = block.size();
    result = lzma_code(&stream, LZMA_FINISH);
    bytes.append(reinterpret_cast<const char*>(block.data()), block.size() - stream.avail_out);
  }
  lzma_end(&stream);
  if (result != LZMA_STREAM_END) throw std::runtime_error("damaged xz file: " + path.string());
  return bytes;
}

}  // namespace lockstep::testing
