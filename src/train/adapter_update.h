// The optimizer's step over an adapter's flat arrays.
#pragma once

#include "core/memory.h"
#include "core/stream.h"
#include "kernels/adamw.h"
#include "lora/adapter.h"

namespace lockstep::train {

struct AdapterUpdate {
  const lora::AdapterLayout& layout;
  const Buffer& weights;  // of this moment
  const Buffer &first_moment, &second_moment;
  ConstTensor gradient;     // [num_trained] f32
  kernels::AdamWStep step;  // lr: of everything but B; weight_decay: of everything but biases
  double lr_ratio = 1;      // B learns with lr * lr_ratio
};
// next = weights after an AdamW step, its working copy included; what is not trained is copied. Moments are updated in
// place. All of the stream's device.
void update_adapter(const Buffer& next, const AdapterUpdate& update, Stream& stream);

}  // namespace lockstep::train
