#include "train/dealt_logprobs.h"

#include "train/dealt_rows.h"

namespace lockstep::train {

std::vector<std::vector<float>> dealt_logprobs(Trainer& trainer, parallel::Group& group, std::span<const Datum> datums,
                                               const lora::AdapterVersion* adapter, const Progress& between) {
  return dealt_rows(&group, datums,
                    [&](std::span<const Datum> share) { return trainer.logprobs(share, adapter, between); });
}

}  // namespace lockstep::train
