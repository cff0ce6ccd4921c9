// One description per op: what it is given, what it writes, how closely devices agree, and what it costs. Drives the
// agreement tests (tests/kernels/backend_test.cpp: CPU is the reference, a GPU must agree) and the speed table of
// bench/op_bench.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/transfer.h"
#include "kernels/packed_weight.h"

namespace lockstep::kernels::testing {

// Memory of one case on one device. Everything lives until the workbench goes.
class Workbench {
 public:
  explicit Workbench(Stream& s) : stream(s), arena(s.device()) {}

  // Tensors holding these values: as activations (f32 on the CPU, bf16 on a GPU; the values must be bf16 numbers, as
  // random_values makes them, so that both devices are given the same), or as f32.
  Tensor activations(const std::vector<float>& values, std::initializer_list<int64_t> dims);
  Tensor f32(const std::vector<float>& values, std::initializer_list<int64_t> dims);
  std::span<const int32_t> ints(const std::vector<int32_t>& values);
  // A of a LoraPair from [in, rank], as this device keeps it.
  Tensor factor_a(const std::vector<float>& values, int64_t in, int64_t rank);
  // For outputs: every element NaN, so that one that is not written shows.
  Tensor poisoned_activations(std::initializer_list<int64_t> dims);
  Tensor poisoned_f32(std::initializer_list<int64_t> dims);
  PackedWeight weight(const std::vector<float>& values, int64_t rows, int64_t depth);  // bf16
  std::vector<float> read(const ConstTensor& tensor);  // any f32 or bf16 view, rank 1 to 4
  // Keeps something alive as long as the workbench.
  template <class T>
  T& keep(T value) {
    auto owner = std::make_shared<T>(std::move(value));
    kept_.push_back(owner);
    return *owner;
  }

  Stream& stream;
  Arena arena;

 private:
  std::vector<std::shared_ptr<void>> kept_;
};

// bf16 numbers, uniform in +-scale, a function of (seed, index) alone.
std::vector<float> random_values(int64_t count, uint64_t seed, float scale = 1);
std::vector<int32_t> random_ints(int64_t count, int32_t below, uint64_t seed);

struct Prepared {
  std::function<void()> launch;      // may be called many times; reads and writes the same memory
  std::vector<ConstTensor> outputs;  // what the agreement is about
};

struct OpCase {
  std::string name;      // "rmsnorm_forward [37, 1024]"
  double tolerance = 0;  // max |gpu - cpu| / max |cpu| per output
  double bytes = 0;      // least device memory traffic of one launch; 0: no speed row
  double flops = 0;      // of matmuls; 0: bound by memory
  std::function<Prepared(Workbench&)> prepare;
};

std::vector<OpCase> row_cases();     // norms, activations, log-probs, optimizer, element by element
std::vector<OpCase> matmul_cases();  // linear, embedding
std::vector<OpCase> lora_cases();
std::vector<OpCase> attention_cases();  // heads, attention
std::vector<OpCase> output_cases();     // what adapters do to outputs, weights and the embedding
// Too large for the CPU to check in a fast suite: for the speed table only, agreement at the smaller shapes.
std::vector<OpCase> row_speed_cases();
std::vector<OpCase> matmul_speed_cases();
std::vector<OpCase> lora_speed_cases();
std::vector<OpCase> attention_speed_cases();
std::vector<OpCase> cpu_speed_cases();  // a whole model's matmuls; the others would take a CPU hours

}  // namespace lockstep::kernels::testing
