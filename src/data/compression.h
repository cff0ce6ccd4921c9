// Compressed files, recognized by their first bytes and decompressed sequentially.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::data {

enum class Compression { none, gzip, xz, zstd };
const char* compression_name(Compression compression);

// By the magic bytes; the file's name does not matter.
Compression detect_compression(std::string_view bytes);

// Makes zstd frames. It keeps its tables, which are larger than what is mostly compressed here: new ones for each frame
// would cost as much as the work.
class ZstdCompressor {
 public:
  ZstdCompressor();
  std::string frame(std::string_view bytes);  // that holds all of them

 private:
  std::unique_ptr<void, void (*)(void*)> context_;
};

// Calls sink with the decompressed bytes, piece by piece. `next` returns compressed pieces, each valid until the next
// call; an empty piece is the end. All members, streams or frames of a file are read. FormatError naming `where`:
// damaged, truncated, followed by other data, or in need of more than 512 MiB (xz) or 128 MiB (zstd) of dictionary.
void decompress(Compression compression, const std::function<std::string_view()>& next, const std::string& where,
                const std::function<void(std::string_view)>& sink);

}  // namespace lockstep::data
