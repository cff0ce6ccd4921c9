// Speed of every op at the shapes that matter, each beside the limit measured in the same run: memory bandwidth, or the
// matrix products of the library. One description per op, shared with the tests (tests/kernels/op_case.h).
//   op_bench [part of a name]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/error.h"
#include "core/graph.h"
#include "kernels/limits.h"
#include "kernels/op_case.h"

namespace {

using namespace lockstep;
using kernels::testing::OpCase;

constexpr int kLaunches = 20, kRounds = 5;

// Milliseconds of one launch: the best of some rounds of launches recorded as one graph, so that the host's part is not
// measured.
double milliseconds(const kernels::testing::Prepared& prepared, Stream& stream) {
  prepared.launch();  // kernels choose their variants
  const Graph graph = Graph::record(stream, [&] {
    for (int i = 0; i < kLaunches; ++i) prepared.launch();
  });
  graph.launch(stream);
  stream.synchronize();
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    graph.launch(stream);
    stream.synchronize();
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count() / kLaunches);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string part = argc > 1 ? argv[1] : "";
    Stream stream({.device = parse_device("cuda")});
    const double tflops = kernels::measure_fma_gflops(0.3, stream) * 1e-3;
    const double gb_s = kernels::measure_read_gb_s(size_t{8} << 30, 0.3, stream);
    fmt::print("{}: {:.0f} TFLOP/s (bf16 product), {:.0f} GB/s (read)\n", cuda_info().name, tflops, gb_s);
    std::vector<OpCase> cases = kernels::testing::product_speed_cases();
    for (auto more : {kernels::testing::attention_speed_cases(), kernels::testing::row_speed_cases()})
      cases.insert(cases.end(), more.begin(), more.end());
    for (const OpCase& op_case : cases) {
      if (op_case.name.find(part) == std::string::npos) continue;
      kernels::testing::Workbench bench(stream);
      const double ms = milliseconds(op_case.prepare(bench), stream);
      const double by_memory = op_case.bytes / (gb_s * 1e6), by_products = op_case.flops / (tflops * 1e9);
      fmt::print("{:<58} {:>9.2f} us {:>5.0f} % of {}", op_case.name, ms * 1e3,
                 100 * std::max(by_memory, by_products) / ms, by_memory > by_products ? "bandwidth" : "products ");
      fmt::print("  {:>6.0f} GB/s {:>5.0f} TFLOP/s\n", op_case.bytes / ms * 1e-6, op_case.flops / ms * 1e-9);
      std::fflush(stdout);
    }
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
