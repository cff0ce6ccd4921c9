// Compressed files, recognized by their first bytes and decompressed sequentially.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::data {

enum class Compression { none, gzip, xz, zstd };
const char* compression_name(Compression compression);

// By the magic bytes; the file's name does not matter.
Compression detect_compression(std::string_view bytes);

// One zstd frame that holds all of `bytes`.
std::string compress_zstd(std::string_view bytes);

// Calls sink with the decompressed bytes, piece by piece. `next` returns compressed pieces, each valid until the next
// call; an empty piece is the end. All members, streams or frames of a file are read. FormatError naming `where`:
// damaged, truncated, followed by other data, or in need of more than 512 MiB (xz) or 128 MiB (zstd) of dictionary.
void decompress(Compression compression, const std::function<std::string_view()>& next, const std::string& where,
                const std::function<void(std::string_view)>& sink);

}  // namespace lockstep::data
