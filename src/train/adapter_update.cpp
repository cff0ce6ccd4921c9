#include "train/adapter_update.h"

#include "train/rates.h"

namespace lockstep::train {

void update_adapter(const Buffer& next, const AdapterUpdate& update, Stream& stream) {
  const lora::AdapterLayout& layout = update.layout;
  const Tensor working = lora::working_weights(next, layout);
  for_each_rate(layout, update.lr_ratio, [&](int64_t first, int64_t count, const Rate& rate) {
    const auto part = [&](const Buffer& all) { return Tensor(all.f32() + first, DType::f32, {count}); };
    const Tensor rounded =
        working.empty() ? Tensor() : Tensor(static_cast<BFloat16*>(working.data) + first, DType::bf16, {count});
    kernels::AdamWStep step = update.step;
    step.lr *= rate.ratio;
    if (!rate.decays) step.weight_decay = 0;
    kernels::adamw(part(next), rounded, part(update.weights), part(update.first_moment), part(update.second_moment),
                   ConstTensor(update.gradient.f32() + first, DType::f32, {count}), step, stream);
  });
  lora::copy_untrained(next, update.weights, layout, stream);
  if (!working.empty()) lora::transpose_working(next, layout, stream);
}

}  // namespace lockstep::train
