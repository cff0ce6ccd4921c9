#include "checkpoint/gguf/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "checkpoint/gguf/encode.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/new_file.h"

namespace lockstep::checkpoint {

namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;  // of rows made at a time

uint64_t aligned(uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

uint64_t bytes_of(const GgufTensor& tensor) {
  return static_cast<uint64_t>(tensor.rows) * gguf_row_bytes(tensor.type, tensor.cols);
}

void check(const std::vector<GgufTensor>& tensors) {
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw FormatError({.what = "a GGUF file would have two tensors of one name", .where = tensor.name});
    if (!gguf_row_fits(tensor.type, tensor.cols))
      throw FormatError({.what = "rows of a tensor cannot have this type",
                         .where = tensor.name,
                         .got = fmt::format("{} values as {}", tensor.cols, gguf_type_name(tensor.type)),
                         .wanted = fmt::format("a multiple of {}", kQ8BlockValues)});
  }
}

// Everything that is written before the tensors' bytes.
std::string beginning(const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors) {
  GgufBytes out;
  out.raw("GGUF");
  out.u32(kGgufVersion);
  out.u64(tensors.size());
  out.u64(metadata.size());
  out.raw(metadata.bytes());
  uint64_t place = 0;
  for (const GgufTensor& tensor : tensors) {
    out.string(tensor.name);
    out.u32(tensor.vector ? 1 : 2);
    out.u64(static_cast<uint64_t>(tensor.cols));  // the contiguous dimension is the first
    if (!tensor.vector) out.u64(static_cast<uint64_t>(tensor.rows));
    out.u32(static_cast<uint32_t>(tensor.type));
    out.u64(place);
    place += aligned(bytes_of(tensor));
  }
  out.align();
  return out.bytes();
}

// Encodes the rows from `first` on, one after the other.
void encode_rows(std::byte* out, const GgufTensor& tensor, int64_t first, int64_t count, Stream& stream) {
  const size_t row_bytes = gguf_row_bytes(tensor.type, tensor.cols);
  const auto cols = static_cast<size_t>(tensor.cols);
  std::atomic<int64_t> misfit = -1;
  stream.parallel(count, [&](int64_t i, int worker) {
    const std::span values(static_cast<float*>(stream.scratch(worker, cols * sizeof(float))), cols);
    tensor.read(first + i, values);
    if (!gguf_encode_row(out + static_cast<size_t>(i) * row_bytes, tensor.type, values)) misfit = first + i;
  });
  if (misfit < 0) return;
  throw FormatError({.what = fmt::format("a value does not fit {}", gguf_type_name(tensor.type)),
                     .where = fmt::format("{}, row {}", tensor.name, misfit.load()),
                     .wanted = "finite values within the type's range",
                     .attempt = "bf16 or f32"});
}

}  // namespace

void write_gguf(const fs::Path& file, const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors,
                Stream& stream, const std::function<void(double)>& progress) {
  check(tensors);
  uint64_t total = 0, done = 0;
  for (const GgufTensor& tensor : tensors) total += bytes_of(tensor);
  fs::write_file_atomic(file, [&](fs::NewFile& output) {
    output.append(beginning(metadata, tensors));
    Buffer block(kBlockBytes, Buffer::Fill::none);
    for (const GgufTensor& tensor : tensors) {
      const size_t row_bytes = gguf_row_bytes(tensor.type, tensor.cols);
      const auto together = static_cast<int64_t>(std::max<size_t>(1, kBlockBytes / std::max<size_t>(1, row_bytes)));
      if (row_bytes > block.bytes()) block = Buffer(row_bytes, Buffer::Fill::none);
      for (int64_t row = 0; row < tensor.rows; row += together) {
        const int64_t count = std::min(together, tensor.rows - row);
        encode_rows(static_cast<std::byte*>(block.data()), tensor, row, count, stream);
        output.append({static_cast<const char*>(block.data()), static_cast<size_t>(count) * row_bytes});
        done += static_cast<uint64_t>(count) * row_bytes;
        progress(static_cast<double>(done) / static_cast<double>(std::max<uint64_t>(1, total)));
      }
      output.append(std::string(aligned(bytes_of(tensor)) - bytes_of(tensor), '\0'));
    }
  });
}

}  // namespace lockstep::checkpoint
