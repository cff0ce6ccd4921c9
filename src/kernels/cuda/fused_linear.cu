#include "kernels/cuda/fused_linear_kernel.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr size_t kHalfShared = (228 << 10) / 2 - 1024;  // two: the next kernel's first weights arrive meanwhile
constexpr int kFewStages = 4;
constexpr int64_t kMostNormDepth = 8192;
constexpr int kMostTiles = 20;  // of 8 weight rows, of a block

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) return EncodeTiled{};
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return encode;
}

template <class S, bool kNorm>
cudaLaunchConfig_t configure(unsigned blocks, int threads, size_t bytes, cudaLaunchAttribute (&attributes)[2]) {
  allow_shared<stream_kernel<S, kNorm>>(kMostShared);
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

// As many stages as leave room for a second block, or if those are few, as there is room for; 0: they do not fit.
template <class S>
int stages_of(StreamArgs args) {
  args.stages = 0;
  const StreamLayout at = StreamLayout::of<S>(args);
  const size_t fixed = at.total + 1024;
  const int steps = (args.depth + S::kDepth - 1) / S::kDepth, wanted = std::min(steps, kMostStages);
  const auto fitting = [&](size_t limit) {
    return limit < fixed ? 0 : static_cast<int>(std::min<size_t>(wanted, (limit - fixed) / at.stage));
  };
  const int few = fitting(kHalfShared);
  if (few >= std::min(wanted, kFewStages)) return few;
  const int all = fitting(kMostShared);
  return all >= std::min(wanted, 2) ? all : 0;
}

template <class S, bool kNorm>
void launch(StreamArgs& args, const Product& product, cudaStream_t stream) {
  const size_t bytes = StreamLayout::of<S>(args).total + 1024;
  const int warps = 1 + S::kWarpsM * (args.warps_n + (args.num_pairs ? 1 : 0));
  const unsigned blocks = static_cast<unsigned>((args.outputs + args.block_columns - 1) / args.block_columns);
  args.x_map = box_map(product.x, 64, S::kPieceRows);
  args.w_map = box_map(product.w, 64, args.block_columns);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config =
      configure<S, kNorm>((blocks + kCluster - 1) / kCluster * kCluster, 32 * warps, bytes, attributes);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, stream_kernel<S, kNorm>, args), "linear");
}

using Launch = void (*)(StreamArgs&, const Product&, cudaStream_t);

// Spreads a block's tiles of y over warps; false if the shape does not suit.
template <class S>
bool plan_shape(Launch& to, StreamArgs& args) {
  const int tiles = args.block_columns / 8;
  const int most = args.swiglu ? (S::kNTiles % 2 ? 0 : S::kNTiles / 2) : S::kNTiles;  // tiles of y of a warp
  if (args.rows > S::kTokens || tiles > most * S::kWarpsN) return false;
  args.tiles_per_warp = (tiles + S::kWarpsN - 1) / S::kWarpsN;
  args.warps_n = (tiles + args.tiles_per_warp - 1) / args.tiles_per_warp;
  args.stages = stages_of<S>(args);
  to = args.norm_weight ? launch<S, true> : launch<S, false>;
  return args.stages > 0;
}

using Narrow16 = StreamShape<1, 1, 1, 4, 4>;

// From few weight rows per block to many. More tokens: fewer warps with more tiles each, because what they read from
// shared memory is then the limit.
bool plan_stream(Launch& to, StreamArgs& args) {
  if (args.rows <= 16)
    return plan_shape<Narrow16>(to, args) || plan_shape<StreamShape<1, 1, 2, 4, 2>>(to, args) ||
           plan_shape<StreamShape<1, 1, 4, 5, 1>>(to, args);
  if (args.rows <= 32)
    return plan_shape<StreamShape<2, 1, 2, 4, 2>>(to, args) || plan_shape<StreamShape<2, 1, 4, 5, 1>>(to, args);
  return plan_shape<StreamShape<2, 2, 3, 1, 1>>(to, args) || plan_shape<StreamShape<2, 2, 4, 2, 1>>(to, args) ||
         plan_shape<StreamShape<2, 2, 4, 5, 1>>(to, args);
}

struct Gpu {
  bool streams = false;
  int clusters = 0;  // that run at once, one block per multiprocessor

  Gpu() {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    // The kernel is compiled for 9.0 alone; what comes later compiles the code of 8.0.
    streams = properties.major == 9 && encode_tiled() != nullptr;
    if (!streams) return;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = configure<Narrow16, false>(kCluster, Narrow16::kThreads, kMostShared, attributes);
    config.numAttrs = 1;  // the cluster's size alone
    check(cudaOccupancyMaxActiveClusters(&clusters, stream_kernel<Narrow16, false>, &config), "clusters of blocks");
    streams = clusters > 0;
  }
};
const Gpu& gpu() {
  static const Gpu gpu;
  return gpu;
}

// All blocks at once if they can have that many rows of weights, else in even waves.
int columns_per_block(int outputs, bool swiglu) {
  const int tiles = (outputs + 7) / 8, blocks = gpu().clusters * kCluster, most = swiglu ? kMostTiles / 2 : kMostTiles;
  const int waves = (tiles + blocks * most - 1) / (blocks * most);
  return 8 * ((tiles + blocks * waves - 1) / (blocks * waves));
}

StreamArgs arguments(const StreamProduct& p) {
  StreamArgs args;
  args.end = p.product.end;
  args.x = p.product.x.data;
  args.x_stride = p.product.x.stride;
  args.norm_weight = p.norm_weight;
  args.norm_eps = p.norm_eps;
  args.rows = static_cast<int>(p.product.x.rows);
  args.depth = static_cast<int>(p.product.x.cols);
  args.outputs = static_cast<int>(p.swiglu ? p.product.outputs / 2 : p.product.outputs);
  args.swiglu = p.swiglu;
  args.block_columns = columns_per_block(args.outputs, p.swiglu);
  args.num_pairs = p.num_pairs;
  for (int i = 0; i < p.num_pairs; ++i) {
    args.pair[i] = p.pair[i];
    args.pair[i].slots = (p.pair[i].rank + 15) / 16 * 16;
    args.pair[i].first_slot = args.slots;
    args.slots += args.pair[i].slots;
    args.most_slots = std::max(args.most_slots, args.pair[i].slots);
  }
  return args;
}

bool aligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

bool suits(const Product& p) {
  const size_t pair_bytes = p.end.y_f32 ? 8 : 4;
  return !p.transposed && p.x.rows >= 1 && p.x.rows <= kStreamTokens && p.x.aligned && p.w.aligned && p.x.cols > 0 &&
         p.x.cols < (1 << 24) && p.outputs > 0 && p.outputs < (1 << 24) && p.outputs % 8 == 0 &&
         aligned(p.end.y, pair_bytes) && p.end.y_stride % 2 == 0 &&
         (!p.end.residual || (aligned(p.end.residual, pair_bytes) && p.end.residual_stride % 2 == 0));
}

bool suits(const StreamProduct& p, const StreamPair& pair) {
  return pair.rank % 8 == 0 && pair.begin % 8 == 0 && pair.columns % 8 == 0 && aligned(pair.a, 16) &&
         aligned(pair.b, 16) && pair.begin + pair.columns <= p.product.outputs;
}

bool suits(const StreamProduct& p) {
  if (!gpu().streams || !suits(p.product)) return false;
  const bool extras = p.norm_weight || p.swiglu || p.num_pairs;
  if (extras && p.product.end.y_f32) return false;
  if (p.norm_weight && p.product.x.cols > kMostNormDepth) return false;
  if (p.swiglu && (p.product.end.residual || p.product.outputs % 16 != 0)) return false;
  int slots = 0;
  for (int i = 0; i < p.num_pairs; ++i) {
    if (!suits(p, p.pair[i])) return false;
    for (int j = 0; j < i; ++j)
      if (p.pair[i].begin < p.pair[j].begin + p.pair[j].columns &&
          p.pair[j].begin < p.pair[i].begin + p.pair[i].columns)
        return false;
    slots += (p.pair[i].rank + 15) / 16 * 16;
  }
  return slots <= kStreamSlots;
}

}  // namespace

bool has_copy_engine() {
  return gpu().streams;
}

CUtensorMap box_map(const Operand& matrix, int box_cols, int box_rows) {
  CUtensorMap map{};
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(matrix.cols), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(std::max(matrix.stride, matrix.cols)) * sizeof(bf16)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult status = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(matrix.data),
                                         dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                         box_cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError({.what = "the copy engine takes no map of a matrix",
                       .got = std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) + ", error " +
                              std::to_string(static_cast<int>(status))});
  return map;
}

bool streams(const StreamProduct& p) {
  if (!suits(p)) return false;
  Launch to = nullptr;
  StreamArgs args = arguments(p);
  return plan_stream(to, args);
}

bool stream_product(const StreamProduct& p, cudaStream_t stream) {
  if (!suits(p)) return false;
  Launch to = nullptr;
  StreamArgs args = arguments(p);
  if (!plan_stream(to, args)) return false;
  to(args, p.product, stream);
  return true;
}

bool fused_linear_forward(const FusedLinear& call, Stream& stream) {
  if (call.x[0] > kStreamTokens || call.pairs.size() > size_t{kStreamPairs}) return false;
  StreamProduct p;
  p.product = {.x = operand(call.x),
               .w = operand(static_cast<const bf16*>(call.weight->panels.data()), call.weight->depth, call.weight->rows,
                            call.weight->depth),
               .outputs = call.weight->rows,
               .end = {.y = call.y.data,
                       .y_stride = call.y.row_stride,
                       .y_f32 = call.y.dtype == DType::f32,
                       .bias = data_of<float>(call.bias),
                       .residual = call.residual.data,
                       .residual_stride = call.residual.row_stride}};
  p.norm_weight = data_of<float>(call.norm_weight);
  p.norm_eps = call.norm_eps;
  p.swiglu = call.swiglu;
  for (const LoraPair& pair : call.pairs)
    p.pair[p.num_pairs++] = {.a = data_of<bf16>(pair.a),
                             .b = data_of<bf16>(pair.b),
                             .rank = static_cast<int>(pair.rank()),
                             .begin = static_cast<int>(pair.out_begin),
                             .columns = static_cast<int>(pair.b[1]),
                             .scale = pair.scale};
  if (!stream_product(p, stream_of(stream))) return false;
  check_launch("fused_linear_forward", {call.y, call.x});
  return true;
}

}  // namespace lockstep::kernels::cuda
