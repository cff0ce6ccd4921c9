// Matmuls with packed weights beside oneDNN's matmul primitive with weights in the layout it prefers: same threads,
// same shapes, taking turns. The best time of each side counts, so that other work on the machine disturbs neither.
//
//   gemm_bench [--threads 2] [--isa auto|avx2|avx512] [--rows 64,128,256,512] [--seconds 0.15] [--json FILE]
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "core/random.h"
#include "kernels/linear.h"
#include "kernels/pack.h"

namespace lockstep {
namespace {

struct Layer {
  int64_t n, k;
};
// Layers of a 135M and of a 0.6B model, and one wide square-ish matmul.
constexpr Layer kLayers[] = {{576, 576},   {1536, 576},  {576, 1536}, {192, 576},
                             {1024, 3072}, {3072, 1024}, {4096, 1024}};

struct Options {
  int threads = 0;
  std::string isa = "auto", json;
  std::vector<int64_t> rows = {64, 128, 256, 512};
  double seconds = 0.15;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<float> random_floats(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = uniform01(philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 0.5f;
  return values;
}

// oneDNN's f32 matmul x [M, K] * W [N, K]^T, weights reordered once.
class Peer {
 public:
  Peer(int64_t m, const Layer& layer, float* x, float* w, float* y)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    constexpr auto kF32 = memory::data_type::f32;
    const memory::desc source({m, layer.k}, kF32, memory::format_tag::ab);
    const memory::desc result({m, layer.n}, kF32, memory::format_tag::ab);
    const memory::desc any({layer.k, layer.n}, kF32, memory::format_tag::any);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(source, any, result), engine_);
    matmul_ = dnnl::matmul(plan);
    memory stored({{layer.k, layer.n}, kF32, memory::format_tag::ba}, engine_, w);
    memory packed(plan.weights_desc(), engine_);
    dnnl::reorder(stored, packed).execute(stream_, stored, packed);
    stream_.wait();
    arguments_ = {{DNNL_ARG_SRC, memory(source, engine_, x)},
                  {DNNL_ARG_WEIGHTS, packed},
                  {DNNL_ARG_DST, memory(result, engine_, y)}};
  }
  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// The best time of each function, taking turns in short runs.
std::vector<double> best_seconds(const std::vector<std::function<void()>>& sides, double seconds) {
  constexpr int kTurns = 5;
  std::vector<double> best(sides.size(), std::numeric_limits<double>::infinity());
  for (int turn = 0; turn < kTurns; ++turn)
    for (size_t side = 0; side < sides.size(); ++side) {
      const double end = seconds_now() + seconds / kTurns;
      for (double now = seconds_now(); now < end;) {
        sides[side]();
        const double after = seconds_now();
        best[side] = std::min(best[side], after - now);
        now = after;
      }
    }
  return best;
}

// Throws if the two sides did not compute the same matmul.
void require_close(const std::vector<float>& ours, const std::vector<float>& theirs) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(ours[i]) - theirs[i]));
    largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
  }
  if (!(worst <= 1e-4 * largest)) throw std::runtime_error("the products differ by " + std::to_string(worst / largest));
}

struct Result {
  double f32 = 0, bf16 = 0, peer = 0;  // GFLOP/s
};

Result measure(int64_t m, const Layer& layer, double seconds, Stream& stream) {
  std::vector<float> x = random_floats(m * layer.k, 1), w = random_floats(layer.n * layer.k, 2);
  std::vector<float> y(static_cast<size_t>(m * layer.n)), y_peer(y.size());
  std::vector<BFloat16> half(w.size());
  for (size_t i = 0; i < w.size(); ++i) half[i] = to_bf16(w[i]), w[i] = to_f32(half[i]);
  const ConstTensor wide(w.data(), DType::f32, {layer.n, layer.k}),
      narrow(half.data(), DType::bf16, {layer.n, layer.k});
  const kernels::PackedWeight f32 = kernels::pack_weight({&wide, 1}, stream);
  const kernels::PackedWeight bf16 = kernels::pack_weight({&narrow, 1}, stream);
  Peer peer(m, layer, x.data(), w.data(), y_peer.data());
  const ConstTensor x_MK(x.data(), DType::f32, {m, layer.k});
  const Tensor y_MN(y.data(), DType::f32, {m, layer.n});
  const std::vector<double> best = best_seconds(
      {[&] { kernels::linear({.y = y_MN, .input = {.x = x_MK}, .weight = f32}, stream); },
       [&] { kernels::linear({.y = y_MN, .input = {.x = x_MK}, .weight = bf16}, stream); }, [&] { peer.run(); }},
      seconds);
  require_close(y, y_peer);
  const double gflop = 2e-9 * static_cast<double>(m * layer.n * layer.k);
  return {gflop / best[0], gflop / best[1], gflop / best[2]};
}

void run(const Options& options) {
  Stream stream({.threads = options.threads, .isa = parse_cpu_isa(options.isa)});
  omp_set_num_threads(stream.threads());
  std::printf("%d threads, %s; GFLOP/s\n     N     K     M      f32     bf16   oneDNN   f32/oneDNN  bf16/oneDNN\n",
              stream.threads(), cpu_isa_name(stream.isa()));
  double log_f32 = 0, log_bf16 = 0;
  int count = 0;
  nlohmann::json rows = nlohmann::json::array();
  for (const Layer& layer : kLayers)
    for (int64_t m : options.rows) {
      const Result r = measure(m, layer, options.seconds, stream);
      std::printf("%6ld%6ld%6ld %8.1f %8.1f %8.1f %12.3f %12.3f\n", layer.n, layer.k, m, r.f32, r.bf16, r.peer,
                  r.f32 / r.peer, r.bf16 / r.peer);
      std::fflush(stdout);
      rows.push_back({{"n", layer.n},
                      {"k", layer.k},
                      {"m", m},
                      {"f32_gflops", r.f32},
                      {"bf16_gflops", r.bf16},
                      {"onednn_gflops", r.peer}});
      log_f32 += std::log(r.f32 / r.peer);
      log_bf16 += std::log(r.bf16 / r.peer);
      ++count;
    }
  const double f32 = std::exp(log_f32 / count), bf16 = std::exp(log_bf16 / count);
  std::printf("geometric mean %46.3f %12.3f\n", f32, bf16);
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << nlohmann::json{{"peer", "oneDNN " + std::to_string(dnnl_version()->major) + "." +
                                      std::to_string(dnnl_version()->minor)},
                         {"threads", stream.threads()},
                         {"isa", cpu_isa_name(stream.isa())},
                         {"geometric_mean", f32},
                         {"geometric_mean_bf16_weights", bf16},
                         {"shapes", rows}}
              .dump(2)
       << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write " + options.json);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  CLI::App app("Packed products beside oneDNN");
  app.add_option("--threads", options.threads, "0: all cores");
  app.add_option("--isa", options.isa, "auto, avx2 or avx512; ours only");
  app.add_option("--rows", options.rows, "values of M")->delimiter(',');
  app.add_option("--seconds", options.seconds, "per side and shape");
  app.add_option("--json", options.json, "write the numbers here");
  CLI11_PARSE(app, argc, argv);
  try {
    lockstep::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
