// Comparing the bits of results on a GPU, and the pairs of an adapter that such tests use.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/lora.h"
#include "kernels/op_case.h"
#include "support/gpu_stream.h"

namespace lockstep::kernels::testing {

#define SKIP_WITHOUT_GPU() \
  if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why

inline std::vector<std::byte> bytes_of(const ConstTensor& tensor, Stream& stream) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.elements() * dtype_bytes(tensor.dtype)));
  download(bytes.data(), tensor.data, bytes.size(), stream);  // contiguous
  return bytes;
}

// The first rows of `all` against `part`.
inline void expect_same_rows(const std::vector<std::byte>& part, const std::vector<std::byte>& all,
                             const std::string& what) {
  ASSERT_LE(part.size(), all.size());
  if (std::memcmp(part.data(), all.data(), part.size()) == 0) return;
  size_t different = 0;
  for (size_t i = 0; i + 1 < part.size(); i += 2) different += std::memcmp(&part[i], &all[i], 2) != 0;
  ADD_FAILURE() << what << ": " << different << " of " << part.size() / 2 << " half-words differ";
}

struct Pairs {
  std::vector<LoraPair> all;
  int64_t in = 0, out = 0, rank = 0;
};

inline Pairs make_pairs(Workbench& bench, int64_t in, int64_t rank, const std::vector<int64_t>& outs) {
  Pairs pairs;
  pairs.in = in;
  for (const int64_t out : outs) {
    LoraPair pair;
    const auto seed = static_cast<uint64_t>(pairs.all.size());
    pair.a = bench.factor_a(random_values(in * rank, 10 + seed, 0.05f), in, rank);
    pair.b = bench.activations(random_values(rank * out, 20 + seed, 0.05f), {rank, out});
    pair.out_begin = pairs.out;
    pair.scale = 1.3f;
    pairs.out += out, pairs.rank += rank;
    pairs.all.push_back(pair);
  }
  return pairs;
}

}  // namespace lockstep::kernels::testing
