// Compressed files, known by their first bytes and unpacked from end to end.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::data {

enum class Compression { none, gzip, xz, zstd };
const char* compression_name(Compression compression);

// By the magic bytes; a name says nothing.
Compression detect_compression(std::string_view bytes);

// Calls sink with the unpacked bytes, piece by piece. `next` gives the packed ones, each piece valid until the next
// call; an empty piece is the end. All members, streams or frames of a file are read. FormatError naming `where`:
// damaged, cut off, followed by something else, or in need of more than 512 MiB (xz) or 128 MiB (zstd) of dictionary.
void decompress(Compression compression, const std::function<std::string_view()>& next, const std::string& where,
                const std::function<void(std::string_view)>& sink);

}  // namespace lockstep::data
