#include "data/parquet/column_reader.h"

#include <fmt/format.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "core/error.h"

namespace lockstep::data::parquet {

namespace {

enum Codec : int32_t { kPlain, kSnappy, kGzip, kLzo, kBrotli, kLz4, kZstd, kLz4Raw };

std::string codec_name(int32_t codec) {
  constexpr const char* kNames[] = {"none", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};
  return codec >= 0 && codec <= kLz4Raw ? kNames[codec] : fmt::format("codec {}", codec);
}

// The most that a byte of packed data can stand for: what a page says it unpacks to is believed up to that.
int64_t max_unpacked(int32_t codec, size_t packed) {
  const int64_t ratio = codec == kSnappy ? 32 : codec == kGzip ? 1040 : 1 << 16;
  return ratio * static_cast<int64_t>(packed) + 64;
}

// nullptr, or what is wrong.
const char* unpack_snappy(std::string_view packed, char* out, size_t size) {
  size_t promised = 0;
  if (!snappy::GetUncompressedLength(packed.data(), packed.size(), &promised) || promised != size)
    return "Snappy data of another length";
  return snappy::RawUncompress(packed.data(), packed.size(), out) ? nullptr : "invalid Snappy data";
}

const char* unpack_gzip(std::string_view packed, char* out, size_t size) {
  z_stream stream{};
  if (inflateInit2(&stream, 32 + MAX_WBITS) != Z_OK) throw std::bad_alloc();  // 32: zlib's header or gzip's
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = static_cast<uInt>(size);
  // Some writers cut a page into several gzip members.
  while (inflate(&stream, Z_FINISH) == Z_STREAM_END) {
    if (stream.avail_in == 0) return stream.avail_out == 0 ? nullptr : "gzip data of another length";
    inflateReset(&stream);
  }
  return "invalid gzip data";
}

const char* unpack_zstd(std::string_view packed, char* out, size_t size) {
  const size_t made = ZSTD_decompress(out, size, packed.data(), packed.size());
  if (ZSTD_isError(made)) return ZSTD_getErrorName(made);
  return made == size ? nullptr : "zstd data of another length";
}

}  // namespace

ColumnReader::ColumnReader(const ByteSource& file, const Column& column, const ColumnChunk& chunk, std::string where)
    : column_(column), where_(std::move(where)), codec_(chunk.codec), file_(file), left_(chunk.num_values) {
  const auto fail = [&](const char* what, std::string got, std::string attempt) {
    throw FormatError({.what = what, .where = where_, .got = std::move(got), .attempt = std::move(attempt)});
  };
  if (chunk.encrypted) fail("an encrypted Parquet column", "", "decrypt the file beforehand");
  if (chunk.elsewhere) fail("a Parquet column in another file", "", "write the table into one file");
  if (codec_ != kPlain && codec_ != kSnappy && codec_ != kGzip && codec_ != kZstd)
    fail("a Parquet codec that is not available", codec_name(codec_), "write the file with zstd, snappy, gzip or none");
  if (chunk.physical != static_cast<int32_t>(column.physical))
    fail("a Parquet column of two types",
         fmt::format("{} in the schema, type {}", physical_name(column.physical), chunk.physical), "");
  int64_t begin = chunk.data_page_offset;
  const auto dictionary = chunk.dictionary_page_offset;
  if (dictionary && *dictionary > 0 && *dictionary < begin) begin = *dictionary;
  const auto size = static_cast<int64_t>(file.size());
  if (begin < 0 || begin > size || chunk.total_compressed_size < 0 || chunk.total_compressed_size > size - begin ||
      left_ < 0)
    fail("a Parquet column outside its file",
         fmt::format("{} bytes at {}, {} values, in {} bytes", chunk.total_compressed_size, begin, left_, size),
         "the file may be cut off or damaged: copy or download it again");
  place_ = static_cast<size_t>(begin);
  end_ = place_ + static_cast<size_t>(chunk.total_compressed_size);
}

// A header does not say how long it is: most have less than a hundred bytes, one with statistics of long texts more.
PageHeader ColumnReader::take_header() {
  constexpr size_t kAtFirst = 1 << 12, kMax = 1 << 26, kGrowth = 16;
  for (size_t most = kAtFirst;; most *= kGrowth) {
    const size_t bytes = std::min(most, end_ - place_);
    try {
      size_t header_bytes = 0;
      const PageHeader page = read_page_header(file_.read(place_, bytes, packed_page_), where_, header_bytes);
      place_ += header_bytes;
      return page;
    } catch (const FormatError&) {
      if (bytes == end_ - place_ || most >= kMax) throw;
    }
  }
}

int ColumnReader::level(HybridReader& levels, int max_level) const {
  if (max_level == 0) return 0;
  const uint32_t level = levels.next();
  if (level > static_cast<uint32_t>(max_level)) damaged_page(where_, fmt::format("level {} of {}", level, max_level));
  return static_cast<int>(level);
}

void ColumnReader::peek() {
  peeked_ = true;
  while (in_page_ == 0) {
    if (!next_page()) {
      repetition_ = -1;
      definition_ = 0;
      return;
    }
  }
  --in_page_;
  repetition_ = level(repetitions_, column_.max_repetition);
  definition_ = level(definitions_, column_.max_definition);
}

// False: the chunk has no more entries.
bool ColumnReader::next_page() {
  if (left_ == 0) return false;
  const PageHeader page = take_header();
  if (page.compressed_size < 0 || page.uncompressed_size < 0 ||
      static_cast<size_t>(page.compressed_size) > end_ - place_)
    damaged_page(where_, fmt::format("a page of {} bytes where {} are left", page.compressed_size, end_ - place_));
  const std::string_view body = file_.read(place_, static_cast<size_t>(page.compressed_size), packed_page_);
  place_ += body.size();
  if (page.crc) {
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
    if (static_cast<uint32_t>(crc) != static_cast<uint32_t>(*page.crc)) damaged_page(where_, "a wrong checksum");
  }
  if (page.type == static_cast<int32_t>(PageType::index)) return true;
  if (!page.has_details || page.num_values < 0)
    damaged_page(where_, fmt::format("no header of a page of type {}", page.type));
  if (page.type == static_cast<int32_t>(PageType::dictionary)) return start_dictionary(page, body), true;
  if (page.num_values > left_)
    damaged_page(where_, fmt::format("a page of {} values where {} are left", page.num_values, left_));
  left_ -= page.num_values;
  in_page_ = page.num_values;
  encoding_ = page.encoding;
  values_.reset();
  if (page.type == static_cast<int32_t>(PageType::data))
    start_data_page(page, body);
  else
    start_data_page_v2(page, body);
  return true;
}

void ColumnReader::start_dictionary(const PageHeader& page, std::string_view body) {
  if (has_dictionary_) damaged_page(where_, "a second dictionary");
  has_dictionary_ = true;
  std::swap(packed_dictionary_, packed_page_);  // the body stays where it is
  dictionary_page_ = unpacked(body, page.uncompressed_size);
  dictionary_ = read_dictionary(dictionary_page_.view, page.num_values, column_, where_);
}

void ColumnReader::start_data_page(const PageHeader& page, std::string_view body) {
  page_ = unpacked(body, page.uncompressed_size);
  std::string_view bytes = page_.view;
  repetitions_ = take_levels(bytes, column_.max_repetition, page.repetition_encoding);
  definitions_ = take_levels(bytes, column_.max_definition, page.definition_encoding);
  value_bytes_ = bytes;
}

void ColumnReader::start_data_page_v2(const PageHeader& page, std::string_view body) {
  const int64_t repetition_bytes = page.repetition_bytes, definition_bytes = page.definition_bytes;
  const int64_t level_bytes = repetition_bytes + definition_bytes;
  if (repetition_bytes < 0 || definition_bytes < 0 || level_bytes > static_cast<int64_t>(body.size()) ||
      level_bytes > page.uncompressed_size)
    damaged_page(where_, fmt::format("levels of {} bytes in a page of {}", level_bytes, body.size()));
  const auto levels = [&](size_t begin, int64_t size, int max_level) {
    return HybridReader(body.substr(begin, static_cast<size_t>(size)), std::bit_width(static_cast<unsigned>(max_level)),
                        where_);
  };
  repetitions_ = levels(0, repetition_bytes, column_.max_repetition);
  definitions_ = levels(static_cast<size_t>(repetition_bytes), definition_bytes, column_.max_definition);
  body.remove_prefix(static_cast<size_t>(level_bytes));
  if (page.is_compressed && !body.empty())
    page_ = unpacked(body, page.uncompressed_size - level_bytes);
  else
    page_ = {.owned = nullptr, .view = body};
  value_bytes_ = page_.view;
}

void ColumnReader::start_values() {
  values_ = make_value_reader({.bytes = value_bytes_,
                               .encoding = encoding_,
                               .column = column_,
                               .dictionary = has_dictionary_ ? &dictionary_ : nullptr,
                               .where = where_});
}

HybridReader ColumnReader::take_levels(std::string_view& bytes, int max_level, int32_t encoding) {
  if (max_level == 0) return {};
  if (encoding != static_cast<int32_t>(Encoding::rle))
    throw FormatError({.what = "an encoding of Parquet levels that cannot be read",
                       .where = where_,
                       .got = fmt::format("encoding {}", encoding),
                       .wanted = "RLE (3)"});
  const uint32_t size = take_u32(bytes, where_);
  if (size > bytes.size()) damaged_page(where_, "levels end early");
  HybridReader levels(bytes.substr(0, size), std::bit_width(static_cast<unsigned>(max_level)), where_);
  bytes.remove_prefix(size);
  return levels;
}

ColumnReader::Bytes ColumnReader::unpacked(std::string_view packed, int64_t size) const {
  if (codec_ == kPlain) {
    if (size != static_cast<int64_t>(packed.size())) damaged_page(where_, "two sizes of an uncompressed page");
    return {.owned = nullptr, .view = packed};
  }
  if (size > max_unpacked(codec_, packed.size()))
    damaged_page(where_, fmt::format("{} bytes that unpack to {}", packed.size(), size));
  const auto count = static_cast<size_t>(size);
  Bytes bytes{.owned = std::make_unique_for_overwrite<char[]>(count + 1), .view = {}};
  const char* reason = codec_ == kSnappy ? unpack_snappy(packed, bytes.owned.get(), count)
                       : codec_ == kGzip ? unpack_gzip(packed, bytes.owned.get(), count)
                                         : unpack_zstd(packed, bytes.owned.get(), count);
  if (reason != nullptr) damaged_page(where_, reason);
  bytes.view = {bytes.owned.get(), count};
  return bytes;
}

}  // namespace lockstep::data::parquet
