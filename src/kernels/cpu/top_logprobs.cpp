#include <algorithm>
#include <vector>

#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels::cpu {
namespace {

// The `count` largest entries, largest first, in tokens[0 .. count).
void find_largest(const float* logits, int64_t vocab, int32_t* tokens, int64_t count) {
  const auto before = [logits](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  int64_t held = 0;  // a heap whose front is the entry that leaves first
  for (int32_t v = 0; v < vocab; ++v) {
    if (held < count) {
      tokens[held++] = v;
      std::push_heap(tokens, tokens + held, before);
    } else if (logits[v] > logits[tokens[0]]) {
      std::pop_heap(tokens, tokens + held, before);
      tokens[held - 1] = v;
      std::push_heap(tokens, tokens + held, before);
    }
  }
  std::sort_heap(tokens, tokens + held, before);
}

}  // namespace

void top_logprobs(const TopLogprobs& top, ConstTensor logits, ConstTensor lse, std::span<const int32_t> targets,
                  float inv_temperature, Stream& stream) {
  const int64_t vocab = logits.shape[1], count = top.logprobs.shape[1];
  stream.parallel(logits.shape[0], [&](int64_t row, int) {
    const float* z = logits.row(row);
    int32_t* tokens = top.tokens.data() + row * count;
    find_largest(z, vocab, tokens, count);
    for (int64_t i = 0; i < count; ++i) top.logprobs.row(row)[i] = z[tokens[i]] * inv_temperature - lse.f32()[row];
    if (targets.empty()) return;
    const float target = z[targets[static_cast<size_t>(row)]];
    top.ranks[static_cast<size_t>(row)] =
        1 + static_cast<int32_t>(std::count_if(z, z + vocab, [target](float other) { return other > target; }));
  });
}

}  // namespace lockstep::kernels::cpu
