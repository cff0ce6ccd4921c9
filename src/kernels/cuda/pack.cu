#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/plain_weight.cuh"

namespace lockstep::kernels::cuda {

namespace {
constexpr size_t kPieceBytes = size_t{32} << 20;
constexpr int kPieces = 3;
}  // namespace

// Pinned host buffers: the host fills one while the others are being copied.
struct Staging {
  struct Piece {
    void* memory = nullptr;
    cudaEvent_t travelled = nullptr;
  };
  // Huge pages, touched by all workers and then registered with the driver: a fifth of the time of cudaHostAlloc.
  Buffer memory;
  Piece pieces[kPieces];
  int next = 0;

  explicit Staging(Stream& stream) : Staging() {
    constexpr size_t kPage = 4096, kTouched = size_t{2} << 20;
    auto* const bytes = static_cast<std::byte*>(memory.data());
    stream.parallel(memory.bytes() / kTouched, [&](int64_t task, int) {
      for (size_t at = 0; at < kTouched; at += kPage) bytes[static_cast<size_t>(task) * kTouched + at] = std::byte{0};
    });
    check(cudaHostRegister(bytes, memory.bytes(), cudaHostRegisterDefault), "pinned memory for weights");
    for (Piece& piece : pieces) {
      piece.memory = bytes + static_cast<size_t>(&piece - pieces) * kPieceBytes;
      check(cudaEventCreateWithFlags(&piece.travelled, cudaEventDisableTiming), "pinned memory for weights");
    }
  }
  ~Staging() {
    // A destructor cannot throw; if the GPU is lost, every later call reports it.
    for (Piece& piece : pieces)
      if (piece.travelled) cudaEventSynchronize(piece.travelled), cudaEventDestroy(piece.travelled);
    cudaHostUnregister(memory.data());
    cudaGetLastError();
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // A buffer whose previous copy has completed.
  Piece& take() {
    Piece& piece = pieces[next];
    next = (next + 1) % kPieces;
    check(cudaEventSynchronize(piece.travelled), "copying weights");
    return piece;
  }

 private:
  // If the delegating constructor throws, this one has completed, and so the destructor runs.
  Staging() : memory(kPieces * kPieceBytes, Buffer::Fill::none) {}
};

namespace {

Staging& staging_of(Stream& stream) {
  Library& library = library_of(stream);
  if (!library.staging) library.staging = std::make_shared<Staging>(stream);
  return *library.staging;
}

// Rounds to nearest even; a NaN stays a NaN. Written so that the compiler vectorizes it.
inline uint16_t bf16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

void to_bf16_row(uint16_t* to, const void* from, DType dtype, int64_t count) {
  if (dtype == DType::bf16) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(uint16_t));
  } else if (dtype == DType::f32) {
    for (int64_t i = 0; i < count; ++i) to[i] = bf16_bits(static_cast<const float*>(from)[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = bf16_bits(to_f32(static_cast<const Float16*>(from)[i]));
  }
}

void from_bf16_row(void* to, const uint16_t* from, DType dtype, int64_t count) {
  if (dtype == DType::bf16) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(uint16_t));
  } else if (dtype == DType::f32) {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(to)[i] = to_f32(BFloat16{from[i]});
  } else {
    for (int64_t i = 0; i < count; ++i) static_cast<__half*>(to)[i] = __float2half_rn(to_f32(BFloat16{from[i]}));
  }
}

int64_t rows_per_piece(int64_t depth) {
  const int64_t rows = static_cast<int64_t>(kPieceBytes) / (depth * 2);
  if (rows == 0)
    throw ShapeError({.what = "a weight's rows are too long for a GPU",
                      .got = std::to_string(depth) + " inputs",
                      .wanted = "at most " + std::to_string(kPieceBytes / 2)});
  return rows;
}

// A worker's share of a buffer: about 1 MiB.
int64_t rows_per_task(int64_t depth) {
  return std::max<int64_t>(1, (512 << 10) / depth);
}

// Converts rows [begin, end) of the stacked parts to bf16. Parts in files that are not bf16 are read into the worker's
// scratch memory first.
void stack_rows(uint16_t* to, std::span<const NamedTensor* const> parts, int64_t begin, int64_t end, Stream& stream,
                int worker) {
  for (const NamedTensor* part : parts) {
    const ConstTensor& w = part->tensor;
    const int64_t depth = w[1], row_bytes = w.row_stride * dtype_bytes(w.dtype);
    const int64_t first = std::max<int64_t>(0, begin), last = std::min(w[0], end), rows = last - first;
    if (rows > 0) {
      const auto place = static_cast<size_t>(first * row_bytes), bytes = static_cast<size_t>(rows * row_bytes);
      if (part->file && w.dtype == DType::bf16) {
        part->read(to, place, bytes);
      } else {
        const std::byte* from = nullptr;
        if (part->file) {
          void* const room = stream.scratch(worker, bytes);
          part->read(room, place, bytes);
          from = static_cast<const std::byte*>(room);
        } else {
          from = static_cast<const std::byte*>(w.data) + place;
        }
        for (int64_t r = 0; r < rows; ++r) to_bf16_row(to + r * depth, from + r * row_bytes, w.dtype, depth);
      }
      to += rows * depth;
    }
    begin -= w[0], end -= w[0];
  }
}

// One block per row. The first kernel of a step, and launched normally: it begins when the step before it has ended, so
// the kernels behind it may read the positions and sequences which that step wrote before they wait for those ahead.
__global__ void gather_kernel(bf16* y, int64_t y_stride, const bf16* w, int64_t depth, const int32_t* ids,
                              bool vector) {
  let_next_begin();
  bf16* const to = y + int64_t{blockIdx.x} * y_stride;
  const bf16* const from = w + int64_t{ids[blockIdx.x]} * depth;
  if (vector) {
    for (int64_t k = threadIdx.x; k < depth / 8; k += blockDim.x)
      reinterpret_cast<uint4*>(to)[k] = reinterpret_cast<const uint4*>(from)[k];
  } else {
    for (int64_t k = threadIdx.x; k < depth; k += blockDim.x) to[k] = from[k];
  }
}

}  // namespace

void pack_rows(PackedWeight& weight, std::span<const NamedTensor* const> parts, Stream& stream) {
  Staging& staging = staging_of(stream);
  auto* const to = static_cast<bf16*>(weight.panels.data());
  const int64_t depth = weight.depth, per_piece = rows_per_piece(depth), per_task = rows_per_task(depth);
  for (int64_t begin = 0; begin < weight.rows; begin += per_piece) {
    const int64_t rows = std::min(per_piece, weight.rows - begin);
    Staging::Piece& piece = staging.take();
    stream.parallel((rows + per_task - 1) / per_task, [&](int64_t task, int worker) {
      stack_rows(static_cast<uint16_t*>(piece.memory) + task * per_task * depth, parts, begin + task * per_task,
                 begin + std::min(rows, (task + 1) * per_task), stream, worker);
    });
    check(cudaMemcpyAsync(to + begin * depth, piece.memory, static_cast<size_t>(rows * depth) * sizeof(bf16),
                          cudaMemcpyHostToDevice, stream_of(stream)),
          "pack_weight", {parts.front()->tensor});
    check(cudaEventRecord(piece.travelled, stream_of(stream)), "pack_weight", {parts.front()->tensor});
  }
}

const bf16* plain_values(const PackedWeight& weight, const char* op, Stream&) {
  require_format(weight, WeightFormat::bf16, op);
  return static_cast<const bf16*>(weight.panels.data());
}

void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream) {
  const bf16* const values = plain_values(weight, "unpack_rows", stream);
  Staging& staging = staging_of(stream);
  const int64_t depth = weight.depth, per_piece = rows_per_piece(depth), per_task = rows_per_task(depth);
  const int64_t out_row_bytes = out.row_stride * dtype_bytes(out.dtype);
  for (int64_t from = begin; from < end; from += per_piece) {
    const int64_t rows = std::min(per_piece, end - from);
    Staging::Piece& piece = staging.take();
    check(cudaMemcpyAsync(piece.memory, values + from * depth, static_cast<size_t>(rows * depth) * sizeof(bf16),
                          cudaMemcpyDeviceToHost, stream_of(stream)),
          "unpack_rows", {out});
    check(cudaStreamSynchronize(stream_of(stream)), "unpack_rows", {out});
    stream.parallel((rows + per_task - 1) / per_task, [&](int64_t task, int) {
      for (int64_t r = task * per_task; r < std::min(rows, (task + 1) * per_task); ++r)
        from_bf16_row(static_cast<std::byte*>(out.data) + (from - begin + r) * out_row_bytes,
                      static_cast<const uint16_t*>(piece.memory) + r * depth, out.dtype, depth);
    });
  }
}

void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream) {
  if (ids.empty()) return;
  const bf16* const values = plain_values(weight, "embedding_gather", stream);
  const bool vector = reinterpret_cast<uintptr_t>(y.data) % 16 == 0 && y.row_stride % 8 == 0 && weight.depth % 8 == 0;
  gather_kernel<<<static_cast<unsigned>(ids.size()), 128, 0, stream_of(stream)>>>(
      data_of<bf16>(y), y.row_stride, values, weight.depth, ids.data(), vector);
  check_launch("embedding_gather", {y});
}

double measure_host_copy_gb_s(double seconds, Stream& stream) {
  constexpr int kCopies = 32;
  Staging& staging = staging_of(stream);
  const Buffer to(kPieceBytes, Buffer::Fill::none, Device::cuda);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds_since = [&](auto begin) { return std::chrono::duration<double>(now() - begin).count(); };
  double best = 0;
  const auto start = now();
  do {
    stream.synchronize();
    const auto begin = now();
    for (int i = 0; i < kCopies; ++i)
      check(cudaMemcpyAsync(to.data(), staging.pieces[i % kPieces].memory, kPieceBytes, cudaMemcpyHostToDevice,
                            stream_of(stream)),
            "measure_host_copy_gb_s");
    stream.synchronize();
    best = std::max(best, static_cast<double>(kCopies * kPieceBytes) / seconds_since(begin) * 1e-9);
  } while (seconds_since(start) < seconds);
  return best;
}

}  // namespace lockstep::kernels::cuda
