#include "data/compression.h"

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/error.h"

namespace lockstep::data {

namespace {

constexpr size_t kPieceBytes = 1 << 17;
constexpr uint64_t kXzMemory = uint64_t{512} << 20;

[[noreturn]] void fail(Compression compression, const std::string& where, const std::string& reason) {
  throw FormatError({.what = std::string("cannot unpack ") + compression_name(compression) + " data",
                     .where = where,
                     .got = reason,
                     .attempt = "the file may be cut off or damaged: copy or download it again"});
}

using Source = std::function<std::string_view()>;
using Sink = std::function<void(std::string_view)>;

uint8_t* bytes_of(std::string_view bytes) {
  return reinterpret_cast<uint8_t*>(const_cast<char*>(bytes.data()));  // the libraries' input pointers are not const
}

void unpack_gzip(const Source& next, const std::string& where, const Sink& sink) {
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  std::vector<char> piece(kPieceBytes);
  std::string_view input = next();
  for (;;) {
    if (input.empty()) input = next();
    // zlib counts its input in 32 bits.
    const size_t given = std::min<size_t>(input.size(), 1 << 30);
    stream.next_in = bytes_of(input);
    stream.avail_in = static_cast<uInt>(given);
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = kPieceBytes;
    const int status = inflate(&stream, Z_NO_FLUSH);
    input.remove_prefix(given - stream.avail_in);
    sink({piece.data(), kPieceBytes - stream.avail_out});
    if (status == Z_STREAM_END) {
      // gzip itself allows zeros behind a member, as tapes leave them.
      bool zeros = false;
      while (input.find_first_not_of('\0') == std::string_view::npos) {
        zeros = zeros || !input.empty();
        input = next();
        if (input.empty()) return;
      }
      if (zeros) fail(Compression::gzip, where, "data behind zeros");
      inflateReset(&stream);
    } else if (status == Z_BUF_ERROR) {
      if (given == 0) fail(Compression::gzip, where, "the data ends early");
    } else if (status != Z_OK) {
      fail(Compression::gzip, where, stream.msg != nullptr ? stream.msg : "invalid data");
    }
  }
}

const char* xz_reason(lzma_ret status) {
  switch (status) {
    case LZMA_BUF_ERROR: return "the data ends early";
    case LZMA_MEMLIMIT_ERROR: return "a dictionary of more than 512 MiB";
    case LZMA_FORMAT_ERROR: return "no xz data";
    case LZMA_OPTIONS_ERROR: return "unsupported options";
    default: return "invalid data";
  }
}

void unpack_xz(const Source& next, const std::string& where, const Sink& sink) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, kXzMemory, LZMA_CONCATENATED) != LZMA_OK) throw std::bad_alloc();
  const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> owner(&stream, lzma_end);
  std::vector<uint8_t> piece(kPieceBytes);
  bool ended = false;
  for (lzma_ret status = LZMA_OK; status != LZMA_STREAM_END;) {
    if (stream.avail_in == 0 && !ended) {
      const std::string_view input = next();
      ended = input.empty();
      stream.next_in = bytes_of(input);
      stream.avail_in = input.size();
    }
    stream.next_out = piece.data();
    stream.avail_out = kPieceBytes;
    status = lzma_code(&stream, ended ? LZMA_FINISH : LZMA_RUN);
    sink({reinterpret_cast<const char*>(piece.data()), kPieceBytes - stream.avail_out});
    if (status == LZMA_MEM_ERROR) throw std::bad_alloc();
    if (status != LZMA_OK && status != LZMA_STREAM_END) fail(Compression::xz, where, xz_reason(status));
  }
}

void unpack_zstd(const Source& next, const std::string& where, const Sink& sink) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (!context) throw std::bad_alloc();
  std::vector<char> piece(kPieceBytes);
  std::string_view bytes = next();
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  for (;;) {
    ZSTD_outBuffer output{piece.data(), piece.size(), 0};
    const size_t left = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(left)) fail(Compression::zstd, where, ZSTD_getErrorName(left));
    sink({piece.data(), output.pos});
    const bool full = left != 0 && output.pos == output.size;  // there may be more without any input
    if (input.pos < input.size || full) continue;
    bytes = next();
    input = {bytes.data(), bytes.size(), 0};
    if (!bytes.empty()) continue;
    if (left == 0) return;
    fail(Compression::zstd, where, "the data ends early");
  }
}

}  // namespace

const char* compression_name(Compression compression) {
  constexpr const char* kNames[] = {"plain", "gzip", "xz", "zstd"};
  return kNames[static_cast<int>(compression)];
}

Compression detect_compression(std::string_view bytes) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\x1f\x8b")) return Compression::gzip;
  if (bytes.starts_with("\xfd\x37zXZ\0"sv)) return Compression::xz;
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return Compression::zstd;
  return Compression::none;
}

ZstdCompressor::ZstdCompressor()
    : context_(ZSTD_createCCtx(), [](void* context) { ZSTD_freeCCtx(static_cast<ZSTD_CCtx*>(context)); }) {
  if (!context_) throw std::bad_alloc();
}

std::string ZstdCompressor::frame(std::string_view bytes) {
  constexpr int kFastLevel = -1;  // what a run writes while it trains: half the time of the default, a third more bytes
  std::string frame(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compressCCtx(static_cast<ZSTD_CCtx*>(context_.get()), frame.data(), frame.size(),
                                        bytes.data(), bytes.size(), kFastLevel);
  if (ZSTD_isError(size)) throw std::bad_alloc();  // the bound leaves nothing else
  frame.resize(size);
  return frame;
}

void decompress(Compression compression, const Source& next, const std::string& where, const Sink& sink) {
  switch (compression) {
    case Compression::none:
      for (std::string_view piece = next(); !piece.empty(); piece = next()) sink(piece);
      return;
    case Compression::gzip: return unpack_gzip(next, where, sink);
    case Compression::xz: return unpack_xz(next, where, sink);
    case Compression::zstd: return unpack_zstd(next, where, sink);
  }
}

}  // namespace lockstep::data
