#include "kernels/cuda/common.cuh"
#include "kernels/cuda/token_logprobs.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// One block per row.
__global__ void __launch_bounds__(kThreads)
    forward_kernel(float* logprobs, int64_t out_stride, const float* logits, int64_t stride, const float* lse,
                   const int32_t* tokens, int count, float inv_temperature) {
  const int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int32_t token = tokens[row * count + i];
    logprobs[row * out_stride + i] =
        token < 0 ? 0.0f : __fsub_rn(__fmul_rn(logits[row * stride + token], inv_temperature), lse[row]);
  }
}

struct Backward {
  const float* logits;
  int64_t stride;
  const int32_t *targets, *tokens;
  int count;
  float inv_temperature;
  const float *lse, *entropy, *d_logprob, *d_entropy, *d_tokens;
  int64_t d_stride;
  float* scratch;
  int64_t scratch_stride;

  explicit Backward(const TokenLogprobsBackward& call)
      : logits(data_of<float>(call.logits)),
        stride(call.logits.row_stride),
        targets(call.targets.data()),
        tokens(call.tokens.data()),
        count(static_cast<int>(call.d_token_logprobs.shape[1])),
        inv_temperature(call.inv_temperature),
        lse(data_of<float>(call.lse)),
        entropy(call.d_entropy.empty() ? nullptr : data_of<float>(call.entropy)),
        d_logprob(data_of<float>(call.d_logprob)),
        d_entropy(call.d_entropy.empty() ? nullptr : data_of<float>(call.d_entropy)),
        d_tokens(data_of<float>(call.d_token_logprobs)),
        d_stride(call.d_token_logprobs.row_stride),
        scratch(data_of<float>(call.scratch)),
        scratch_stride(call.scratch.row_stride) {}

  // Entry 0 is the target, entry 1 + i candidate i; -1: none.
  __device__ int32_t token(int64_t row, int entry) const {
    return entry == 0 ? targets[row] : tokens[row * count + entry - 1];
  }
};

__global__ void __launch_bounds__(kThreads) prepare_kernel(Backward call) {
  const int64_t row = blockIdx.x;
  const int32_t target = call.targets[row];
  if (target < 0) return;
  const int32_t* tokens = call.tokens + row * call.count;
  const float* d_tokens = call.d_tokens + row * call.d_stride;
  double total = call.d_logprob[row];
  for (int i = 0; i < call.count; ++i)
    if (tokens[i] >= 0) total += d_tokens[i];
  if (threadIdx.x == 0) call.scratch[row] = static_cast<float>(total);
  for (int entry = static_cast<int>(threadIdx.x); entry <= call.count; entry += kThreads) {
    const int32_t token = call.token(row, entry);
    if (token < 0) continue;
    double own = token == target ? call.d_logprob[row] : 0.0f;
    for (int i = 0; i < call.count; ++i)
      if (tokens[i] == token) own += d_tokens[i];
    const float above =
        __fsub_rn(__fmul_rn(call.logits[row * call.stride + token], call.inv_temperature), call.lse[row]);
    const double p = expf(above);
    double gradient = own - total * p;
    if (call.d_entropy && p > 0) gradient -= call.d_entropy[row] * p * (static_cast<double>(above) + call.entropy[row]);
    call.scratch[(1 + entry) * call.scratch_stride + row] = static_cast<float>(call.inv_temperature * gradient);
  }
}

__global__ void __launch_bounds__(kThreads) place_kernel(bf16* dlogits, int64_t d_stride, Backward call) {
  const int64_t row = blockIdx.x;
  if (call.targets[row] < 0) return;
  for (int entry = static_cast<int>(threadIdx.x); entry <= call.count; entry += kThreads) {
    const int32_t token = call.token(row, entry);
    if (token >= 0)
      dlogits[row * d_stride + token] = __float2bfloat16_rn(call.scratch[(1 + entry) * call.scratch_stride + row]);
  }
}

}  // namespace

void token_logprobs_forward(Tensor logprobs, ConstTensor logits, ConstTensor lse, std::span<const int32_t> tokens,
                            float inv_temperature, Stream& stream) {
  if (logits.shape[0] == 0) return;
  forward_kernel<<<static_cast<unsigned>(logits.shape[0]), kThreads, 0, stream_of(stream)>>>(
      data_of<float>(logprobs), logprobs.row_stride, data_of<float>(logits), logits.row_stride, data_of<float>(lse),
      tokens.data(), static_cast<int>(logprobs.shape[1]), inv_temperature);
  check_launch("token_logprobs_forward", {logits});
}

void prepare_token_gradients(const TokenLogprobsBackward& call, Stream& stream) {
  if (call.logits.shape[0] == 0) return;
  prepare_kernel<<<static_cast<unsigned>(call.logits.shape[0]), kThreads, 0, stream_of(stream)>>>(Backward(call));
  check_launch("token_logprobs_backward", {call.logits});
}

void place_token_gradients(const TokenLogprobsBackward& call, Stream& stream) {
  if (call.logits.shape[0] == 0) return;
  place_kernel<<<static_cast<unsigned>(call.logits.shape[0]), kThreads, 0, stream_of(stream)>>>(
      data_of<bf16>(call.dlogits), call.dlogits.row_stride, Backward(call));
  check_launch("token_logprobs_backward", {call.dlogits, call.logits});
}

}  // namespace lockstep::kernels::cuda
