// Matmuls of small f32 matrices that change every step: the LoRA factors and their gradients. All operands row-major
// (row_stride free), chains as in kernels/kernels.h.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// c[i,j] = (accumulate ? c[i,j] : 0) + sum_k (scale * a[i,k]) b[k,j]      a [M,K], b [K,N], c [M,N]
// scale multiplies a before the chain (one rounding), so that scale = 1 changes nothing.
void matmul(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream);

// c[i,j] = (accumulate ? c[i,j] : 0) + sum_k (scale * a[i,k]) b[j,k]      a [M,K], b [N,K], c [M,N]
void matmul_transposed(Tensor c, ConstTensor a, ConstTensor b, float scale, bool accumulate, Stream& stream);

// g[i,j] = g[i,j] + sum_t (scale * a[t,i]) b[t,j]  for t in order         a [T,I], b [T,J], g [I,J]
// Always continues the chain in g: gradients of consecutive micro-batches are one chain.
// Fast for a short J (a LoRA rank) as well as a short I.
void outer_accumulate(Tensor g, ConstTensor a, ConstTensor b, float scale, Stream& stream);

}  // namespace lockstep::kernels
