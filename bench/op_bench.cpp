// Speed of every op at the shapes that matter, each beside the limit measured in the same run: memory bandwidth, or the
// matmuls of the library. One description per op, shared with the tests (tests/kernels/op_case.h).
//   op_bench [part of a name] [--device auto|cpu|cuda] [--threads N] [--cpu-isa ISA]
// On a CPU the cases are the matmuls of a whole model, base and with adapters of rank 16.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
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

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Milliseconds of one launch: the best of some rounds. On a GPU of launches recorded as one graph, so that the host's
// part is not measured.
double milliseconds(const kernels::testing::Prepared& prepared, Stream& stream) {
  prepared.launch();  // kernels choose their variants
  const bool recorded = stream.device() == Device::cuda;
  const auto launch_all = [&] {
    for (int i = 0; i < (recorded ? kLaunches : 1); ++i) prepared.launch();
  };
  const Graph graph = recorded ? Graph::record(stream, launch_all) : Graph();
  if (recorded) graph.launch(stream);
  stream.synchronize();
  double best = 1e30;
  for (int round = 0; round < (recorded ? kRounds : kLaunches); ++round) {
    const auto start = Clock::now();
    recorded ? graph.launch(stream) : launch_all();
    stream.synchronize();
    best = std::min(best, milliseconds_since(start) / (recorded ? kLaunches : 1));
  }
  return best;
}

std::vector<OpCase> speed_cases(Device device) {
  if (device == Device::cpu) return kernels::testing::cpu_speed_cases();
  std::vector<OpCase> cases = kernels::testing::matmul_speed_cases();
  for (auto more : {kernels::testing::lora_speed_cases(), kernels::testing::attention_speed_cases(),
                    kernels::testing::row_speed_cases()})
    cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

void measure(const std::string& part, const StreamOptions& options) {
  Stream stream(options);
  const bool gpu = stream.device() == Device::cuda;
  const double gflops = kernels::measure_fma_gflops(0.3, stream);
  const double gb_s = kernels::measure_read_gb_s(gpu ? size_t{8} << 30 : size_t{512} << 20, 0.3, stream);
  fmt::print("{}: {:.0f} GFLOP/s ({}), {:.0f} GB/s (read)\n",
             gpu ? cuda_info().name : fmt::format("{}, {} threads", cpu_isa_name(stream.isa()), stream.threads()),
             gflops, gpu ? "bf16 product" : "f32 multiply-adds", gb_s);
  for (const OpCase& op_case : speed_cases(stream.device())) {
    if (op_case.name.find(part) == std::string::npos) continue;
    kernels::testing::Workbench bench(stream);
    const double ms = milliseconds(op_case.prepare(bench), stream);
    const double by_memory = op_case.bytes / (gb_s * 1e6), by_products = op_case.flops / (gflops * 1e6);
    fmt::print("{:<58} {:>9.2f} us {:>5.0f} % of {}", op_case.name, ms * 1e3,
               100 * std::max(by_memory, by_products) / ms, by_memory > by_products ? "bandwidth" : "products ");
    fmt::print("  {:>6.0f} GB/s {:>8.0f} GFLOP/s\n", op_case.bytes / ms * 1e-6, op_case.flops / ms * 1e-6);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string part, device = "auto", isa = "auto";
  int threads = 0;
  CLI::App app("Speed of every op beside the limit measured in the same run.");
  app.add_option("part", part, "only cases with this in their name");
  app.add_option("--device", device, "auto (a GPU if there is one), cpu or cuda");
  app.add_option("--threads", threads, "0: all cores");
  app.add_option("--cpu-isa", isa, "auto, avx2 or avx512");
  CLI11_PARSE(app, argc, argv);
  try {
    measure(part, {.threads = threads, .isa = parse_cpu_isa(isa), .device = parse_device(device)});
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
