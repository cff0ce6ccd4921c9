// The result of a linear call whose adapter part is still to be added. It exists so that on a GPU the op that reads the
// result adds that part on its way, which saves a pass over the result.
#pragma once

#include <utility>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/lora.h"

namespace lockstep::kernels {

// y still lacks delta(): whoever takes the object by value adds it (qk_norm_rope_forward, swiglu_forward,
// swiglu_backward, finish), with the same bits. On a CPU nothing is ever missing.
class [[nodiscard]] UnfinishedLinear {
 public:
  explicit UnfinishedLinear(Tensor y) : y_(y) {}  // nothing is missing
  UnfinishedLinear(Tensor y, const LoraDelta& delta)
      : y_(y), pairs_(delta.pairs.begin(), delta.pairs.end()), delta_(delta) {
    delta_.pairs = pairs_;
  }
  UnfinishedLinear(UnfinishedLinear&&) = default;
  UnfinishedLinear& operator=(UnfinishedLinear&&) = default;

  Tensor y() const { return y_; }
  const LoraDelta& delta() const { return delta_; }
  bool complete() const { return delta_.empty(); }

 private:
  Tensor y_;
  std::vector<LoraPair> pairs_;
  LoraDelta delta_;
};

// Adds what is missing.
inline void finish(UnfinishedLinear linear, Stream& stream) {
  add_delta(linear.y(), linear.delta(), stream);
}

}  // namespace lockstep::kernels
