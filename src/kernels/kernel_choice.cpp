#include "kernels/kernel_choice.h"

#include "kernels/cuda/kernel_choice.h"

namespace lockstep::kernels {

void choose_kernels(KernelChoice choice, Stream& stream) {
  if (stream.device() == Device::cpu) return;
  // The second queue of Stream::beside has kernel state of its own.
  const auto choose = [&] { cuda::choose_kernels(choice, stream); };
  stream.beside(choose, choose);
}

bool chooses_by_time(const Stream& stream) {
  return stream.device() != Device::cpu;
}

void imitate_least_gpu(bool on) {
  cuda::imitate_least_gpu(on);
}

}  // namespace lockstep::kernels
