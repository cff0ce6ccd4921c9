#include "core/cuda/check.h"
#include "parallel/add_pieces.h"

namespace lockstep::parallel::cuda {

namespace {

constexpr int kThreads = 256;

struct Shape {
  const float *all, *own;
  int64_t stride, count;
  int rank, ranks;
  uint64_t present;
};

struct Node {
  float sum = 0;
  bool there = false;
};

__device__ Node joined(const Node& left, const Node& right) {
  if (!left.there) return right;
  if (right.there) return {left.sum + right.sum, true};
  return left;
}

// A binary counter over the ranks: `waiting` holds a left subtree of each height until its right one is complete.
__global__ void add_kernel(float* out, Shape shape) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= shape.count) return;
  Node waiting[7];
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Node node;
    node.there = (shape.present >> rank & 1) != 0;
    if (node.there) node.sum = rank == shape.rank ? shape.own[i] : shape.all[rank * shape.stride + i];
    int height = 0;
    for (; (rank >> height & 1) != 0; ++height) node = joined(waiting[height], node);
    waiting[height] = node;
  }
  Node total;  // of ranks that are no power of two: subtrees are left over, the smallest stands last
  for (int height = 0; height < 7; ++height)
    if ((shape.ranks >> height & 1) != 0) total = joined(waiting[height], total);
  out[i] = total.sum;
}

}  // namespace

void add_pieces(float* out, int64_t count, const Pieces& pieces, void* stream) {
  if (count == 0) return;
  Shape shape{.all = pieces.all,
              .own = pieces.own,
              .stride = pieces.stride,
              .count = count,
              .rank = pieces.rank,
              .ranks = static_cast<int>(pieces.present.size()),
              .present = 0};
  for (size_t rank = 0; rank < pieces.present.size(); ++rank)
    shape.present |= static_cast<uint64_t>(pieces.present[rank] ? 1 : 0) << rank;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  add_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(out, shape);
  lockstep::cuda::check(cudaGetLastError(), "adding the pieces of a sum over ranks");
}

}  // namespace lockstep::parallel::cuda
