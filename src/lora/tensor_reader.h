// The tensors of an adapter under PEFT names, one at a time: for writing them without a copy of all.
#pragma once

#include <memory>
#include <vector>

#include "lora/adapter.h"
#include "lora/named_places.h"

namespace lockstep::lora {

class TensorReader {
 public:
  // Those of export_tensors, in the same order. `flat` (host memory, num_floats) outlives the reader.
  TensorReader(const AdapterLayout& layout, const float* flat);
  const NamedTensors& tensors() const { return tensors_; }  // names, types and shapes; they point nowhere
  // The tensor at this place of tensors(), which lasts until the next call. One thread at a time.
  ConstTensor read(size_t tensor);

 private:
  std::vector<NamedPlace> places_;
  NamedTensors tensors_;
  const float* flat_;
  std::vector<float> values_;  // of the tensor that was read last, if it does not lie in `flat` as it is named
};

}  // namespace lockstep::lora
