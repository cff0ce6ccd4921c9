// Cases of the ops that work on rows: norms, heads, activations, log-probs, sampling, optimizer, element by element.
#include <cmath>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "kernels/op_case.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/rmsnorm.h"
#include "kernels/sample.h"
#include "kernels/swiglu.h"
#include "kernels/token_logprobs.h"
#include "kernels/value_head.h"

namespace lockstep::kernels::testing {
namespace {

constexpr double kActivationError = 0x1p-7, kSumError = 1e-5;
constexpr double kBytes = 2;  // of an activation on a GPU

// Rows of `width` elements, `gap` elements apart.
struct Rows {
  int64_t rows, width, gap = 0;

  double elements() const { return static_cast<double>(rows) * static_cast<double>(width); }
  std::string text() const {
    return " [" + std::to_string(rows) + ", " + std::to_string(width) + "]" +
           (gap ? " gap " + std::to_string(gap) : "");
  }
  Rows times(int64_t factor) const { return {rows, width * factor, gap}; }
};

// Like random_values; a long array repeats itself, because drawing a gigabyte on the host takes seconds.
std::vector<float> values(int64_t count, uint64_t seed, float scale = 1) {
  constexpr int64_t kPeriod = 1000003;
  std::vector<float> result = random_values(std::min(count, kPeriod), seed, scale);
  result.resize(static_cast<size_t>(count));
  for (size_t i = kPeriod; i < result.size(); ++i) result[i] = result[i - kPeriod];
  return result;
}
std::vector<float> positive_values(int64_t count, uint64_t seed) {
  std::vector<float> result = values(count, seed);
  for (float& value : result) value = std::abs(value) + 0.5f;
  return result;
}

Tensor activations(Workbench& bench, const Rows& size, uint64_t seed, float scale = 1) {
  const int64_t stride = size.width + size.gap;
  return bench.activations(values(size.rows * stride, seed, scale), {size.rows, stride}).cols(0, size.width);
}
Tensor f32_rows(Workbench& bench, const Rows& size, uint64_t seed, float scale = 1) {
  const int64_t stride = size.width + size.gap;
  return bench.f32(values(size.rows * stride, seed, scale), {size.rows, stride}).cols(0, size.width);
}
Tensor output(Workbench& bench, const Rows& size) {
  return bench.poisoned_activations({size.rows, size.width + size.gap}).cols(0, size.width);
}

OpCase norm_forward(Rows size) {
  return {.name = "rmsnorm_forward" + size.text(),
          .tolerance = kActivationError,
          .bytes = 2 * kBytes * size.elements(),
          .prepare = [size](Workbench& bench) -> Prepared {
            const Tensor x = activations(bench, size, 1, 3), y = output(bench, size);
            const Tensor weight = bench.f32(positive_values(size.width, 2), {size.width});
            return {[=, &bench] { rmsnorm_forward(y, Tensor(), x, weight, 1e-6f, bench.stream); }, {y}};
          }};
}

OpCase norm_rstd(Rows size) {
  return {.name = "rmsnorm_forward rstd" + size.text(),
          .tolerance = kSumError,
          .prepare = [size](Workbench& bench) -> Prepared {
            const Tensor x = activations(bench, size, 1, 3);
            const Tensor weight = bench.f32(positive_values(size.width, 2), {size.width});
            const Tensor rstd = bench.poisoned_f32({size.rows});
            return {[=, &bench] { rmsnorm_forward(x, rstd, x, weight, 1e-6f, bench.stream); }, {rstd}};
          }};
}

OpCase norm_backward(Rows size, bool accumulate) {
  return {.name = std::string("rmsnorm_backward") + (accumulate ? " accumulate" : "") + size.text(),
          .tolerance = kActivationError,
          .bytes = (accumulate ? 4 : 3) * kBytes * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor x = activations(bench, size, 1, 3), dy = activations(bench, size, 3);
            const Tensor weight = bench.f32(positive_values(size.width, 2), {size.width});
            const Tensor rstd = bench.f32(positive_values(size.rows, 4), {size.rows});
            // dx is dy itself, or continues what it holds.
            const Tensor dx = accumulate ? activations(bench, size, 5) : dy;
            return {[=, &bench] { rmsnorm_backward(dx, dy, x, weight, rstd, accumulate, bench.stream); }, {dx}};
          }};
}

OpCase swiglu_forward_case(Rows size) {
  return {.name = "swiglu_forward" + size.text(),
          .tolerance = kActivationError,
          .bytes = 3 * kBytes * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor gate_up = activations(bench, size.times(2), 1, 4), y = output(bench, size);
            return {[=, &bench] { swiglu_forward(y, gate_up, bench.stream); }, {y}};
          }};
}

OpCase swiglu_backward_case(Rows size) {
  return {.name = "swiglu_backward" + size.text(),
          .tolerance = kActivationError,
          .bytes = 5 * kBytes * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor gate_up = activations(bench, size.times(2), 1, 4), dy = activations(bench, size, 2);
            return {[=, &bench] { swiglu_backward(gate_up, dy, gate_up, bench.stream); }, {gate_up}};
          }};
}

OpCase add_case(Rows size, bool f32) {
  return {.name = std::string("add") + (f32 ? " f32" : "") + size.text(),
          .tolerance = f32 ? 0 : kActivationError,
          .prepare = [=](Workbench& bench) -> Prepared {
            const auto make = f32 ? f32_rows : activations;
            const Tensor y = make(bench, size, 1, 1), x = make(bench, size, 2, 1);
            return {[=, &bench] { add(y, x, bench.stream); }, {y}};
          }};
}

OpCase value_forward_case(Rows size) {
  return {.name = "value_head_forward" + size.text(),
          .tolerance = kSumError,
          .bytes = kBytes * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor x = activations(bench, size, 1), weight = bench.f32(values(size.width, 2), {size.width});
            const Tensor bias = bench.f32({0.25f}, {1}), v = bench.poisoned_f32({size.rows});
            return {[=, &bench] { value_head_forward(v, x, weight, bias, bench.stream); }, {v}};
          }};
}

OpCase value_backward_case(Rows size) {
  return {.name = "value_head_backward" + size.text(),
          .tolerance = kActivationError,
          .bytes = kBytes * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor weight = bench.f32(values(size.width, 2), {size.width}), dx = output(bench, size);
            const Tensor dv = bench.f32(values(size.rows, 3), {size.rows});
            return {[=, &bench] { value_head_backward(dx, dv, weight, bench.stream); }, {dx}};
          }};
}

// Chains of the same operations in the same order, so the CPU's bits.
OpCase value_gradient_case(Rows size) {
  return {.name = "value_head_gradient" + size.text(),
          .tolerance = 0,
          .bytes = kBytes * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor x = activations(bench, size, 1), dv = bench.f32(values(size.rows, 3), {size.rows});
            const Tensor d_weight = bench.f32(values(size.width, 4), {size.width}), d_bias = bench.f32({0.5f}, {1});
            return {[=, &bench] { value_head_gradient(d_weight, d_bias, dv, x, bench.stream); }, {d_weight, d_bias}};
          }};
}

// Every third row, backwards; rank 1 when the width is 0.
OpCase move_rows(Rows size, bool gather) {
  return {.name = (gather ? "gather_rows" : "scatter_rows") + size.text(),
          .tolerance = 0,
          .prepare = [=](Workbench& bench) -> Prepared {
            std::vector<int32_t> index;
            for (auto i = static_cast<int32_t>(size.rows) - 1; i >= 0; i -= 3) index.push_back(i);
            const auto few = static_cast<int64_t>(index.size());
            const auto rows = bench.ints(index);
            const auto make = [&](int64_t count, uint64_t seed) {
              if (size.width == 0) return bench.f32(values(count, seed), {count});
              return activations(bench, {count, size.width, size.gap}, seed);
            };
            const Tensor many = make(size.rows, 1), some = make(few, 2);
            if (gather) return {[=, &bench] { gather_rows(some, many, rows, bench.stream); }, {some}};
            return {[=, &bench] { scatter_rows(many, some, rows, bench.stream); }, {many}};
          }};
}

OpCase dropout_case(Rows size, bool accumulate) {
  return {.name = std::string("dropout") + (accumulate ? " accumulate" : "") + size.text(),
          .tolerance = kActivationError,
          .prepare = [=](Workbench& bench) -> Prepared {
            const DropoutCounter counter{.key = 0x123456789abcdef0,
                                         .step = 3,
                                         .module = 21,
                                         .sample = bench.ints(random_ints(size.rows, 100, 1)),
                                         .position = bench.ints(random_ints(size.rows, 4096, 2))};
            const Tensor x = activations(bench, size, 1), y = accumulate ? activations(bench, size, 2) : x;
            return {[=, &bench] { dropout(y, x, 0.3f, counter, accumulate, bench.stream); }, {y}};
          }};
}

std::vector<int32_t> targets_of(const Rows& size) {
  std::vector<int32_t> targets = random_ints(size.rows, static_cast<int32_t>(size.width), 9);
  for (size_t t = 2; t < targets.size(); t += 7) targets[t] = -1;
  return targets;
}

OpCase logprob_forward_case(Rows size) {
  return {.name = "logprob_forward" + size.text(),
          .tolerance = kSumError,
          .bytes = 4 * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor logits = f32_rows(bench, size, 1, 12);
            const auto targets = bench.ints(targets_of(size));
            const auto result = [&] { return bench.poisoned_f32({size.rows}); };
            const Tensor logprob = result(), entropy = result(), lse = result();
            return {[=, &bench] { logprob_forward(logprob, entropy, lse, logits, targets, 0.8f, bench.stream); },
                    {logprob, entropy, lse}};
          }};
}

OpCase logprob_backward_case(Rows size, bool with_entropy) {
  return {.name = std::string("logprob_backward") + (with_entropy ? " entropy" : "") + size.text(),
          .tolerance = kActivationError,
          .bytes = (4 + kBytes) * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor logits = f32_rows(bench, size, 1, 12), dlogits = output(bench, size);
            const auto targets = bench.ints(targets_of(size));
            const auto some = [&](uint64_t seed) { return bench.f32(values(size.rows, seed), {size.rows}); };
            const Tensor logprob = some(2), entropy = some(3), lse = some(4), d_logprob = some(5), d_entropy = some(6);
            logprob_forward(logprob, entropy, lse, logits, targets, 0.8f, bench.stream);
            const Tensor wanted = with_entropy ? d_entropy : Tensor();
            return {[=, &bench] {
                      logprob_backward(dlogits, logits, targets, 0.8f, lse, entropy, d_logprob, wanted, bench.stream);
                    },
                    {dlogits}};
          }};
}

// Candidates of a row: its target first, one twice, some missing.
std::vector<int32_t> candidates_of(const Rows& size, int64_t count) {
  const std::vector<int32_t> targets = targets_of(size);
  std::vector<int32_t> tokens = random_ints(size.rows * count, static_cast<int32_t>(size.width), 11);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t of_row = i % static_cast<size_t>(count);
    if (of_row == 0) tokens[i] = targets[i / static_cast<size_t>(count)];
    if (of_row == 2) tokens[i] = tokens[i - 1];
    if (i % 5 == 4) tokens[i] = -1;
  }
  return tokens;
}

OpCase token_logprobs_forward_case(Rows size, int64_t count) {
  return {.name = "token_logprobs_forward " + std::to_string(count) + size.text(),
          .tolerance = kSumError,
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor logits = f32_rows(bench, size, 1, 12), out = bench.poisoned_f32({size.rows, count});
            const auto targets = bench.ints(std::vector<int32_t>(static_cast<size_t>(size.rows), 0));
            const auto tokens = bench.ints(candidates_of(size, count));
            const Tensor logprob = bench.f32(values(size.rows, 2), {size.rows});
            const Tensor lse = bench.f32(values(size.rows, 3), {size.rows});
            logprob_forward(logprob, {}, lse, logits, targets, 0.8f, bench.stream);
            return {[=, &bench] { token_logprobs_forward(out, logits, lse, tokens, 0.8f, bench.stream); }, {out}};
          }};
}

OpCase token_logprobs_backward_case(Rows size, int64_t count, bool with_entropy) {
  return {.name = std::string("token_logprobs_backward ") + (with_entropy ? "entropy " : "") + std::to_string(count) +
                  size.text(),
          .tolerance = kActivationError,
          .bytes = (4 + kBytes) * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor logits = f32_rows(bench, size, 1, 12);
            const auto targets = bench.ints(targets_of(size));
            const auto some = [&](uint64_t seed) { return bench.f32(values(size.rows, seed), {size.rows}); };
            const Tensor logprob = some(2), entropy = some(3), lse = some(4);
            logprob_forward(logprob, entropy, lse, logits, targets, 0.8f, bench.stream);
            const TokenLogprobsBackward call{
                .dlogits = output(bench, size),
                .logits = logits,
                .targets = targets,
                .inv_temperature = 0.8f,
                .lse = lse,
                .entropy = entropy,
                .d_logprob = some(5),
                .d_entropy = with_entropy ? some(6) : Tensor(),
                .tokens = bench.ints(candidates_of(size, count)),
                .d_token_logprobs = bench.f32(values(size.rows * count, 7), {size.rows, count}),
                .scratch = bench.poisoned_f32({count + 2, size.rows})};
            return {[=, &bench] { token_logprobs_backward(call, bench.stream); }, {call.dlogits}};
          }};
}

// For the speed table: tokens of two devices may differ where a sum is rounded differently.
OpCase sample_case(Rows size, SampleRow how, const std::string& name) {
  return {.name = "sample_tokens " + name + size.text(),
          .bytes = 4 * size.elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor logits = f32_rows(bench, size, 1, 8);
            const Tensor scratch = bench.stream.device() == Device::cpu ? f32_rows(bench, size, 2) : Tensor();
            std::vector<SampleRow> rows(static_cast<size_t>(size.rows), how);
            for (uint32_t i = 0; i < rows.size(); ++i) rows[i].counter = {i, 1, 2, 3};
            const auto wanted = upload(std::span<const SampleRow>(rows), bench.arena, bench.stream);
            auto* tokens = static_cast<int32_t*>(bench.arena.alloc_bytes(rows.size() * sizeof(int32_t)));
            return {[=, &bench] { sample_tokens({tokens, wanted.size()}, scratch, logits, wanted, bench.stream); }, {}};
          }};
}

// The CPU's operations one by one, so its bits.
OpCase adamw_case(int64_t count) {
  return {.name = "adamw [" + std::to_string(count) + "]",
          .tolerance = 0,
          .bytes = (4 * 4 + 3 * 4 + kBytes) * static_cast<double>(count),
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor w = bench.f32(values(count, 1), {count}), m = bench.f32(values(count, 2, 0.1f), {count});
            const Tensor v = bench.f32(positive_values(count, 3), {count});
            const Tensor grad = bench.f32(values(count, 4), {count}), w_new = bench.poisoned_f32({count});
            const Tensor working = bench.arena.alloc({count}, DType::bf16);
            const AdamWStep step{.lr = 1e-3, .step = 7, .grad_scale = 0.7f};
            return {[=, &bench] { adamw(w_new, working, w, m, v, grad, step, bench.stream); }, {w_new, working, m, v}};
          }};
}

OpCase round_case(int64_t count) {
  return {.name = "round_to_working [" + std::to_string(count) + "]",
          .tolerance = 0,
          .prepare = [=](Workbench& bench) -> Prepared {
            std::vector<float> exact(static_cast<size_t>(count));
            for (size_t i = 0; i < exact.size(); ++i) exact[i] = std::sin(static_cast<float>(i + 1)) * 3;
            const Tensor w = bench.f32(exact, {count}), working = bench.arena.alloc({count}, DType::bf16);
            return {[=, &bench] { round_to_working(working, w, bench.stream); }, {working}};
          }};
}

OpCase round_transposed_case(int64_t rows, int64_t cols) {
  return {.name = "round_transposed [" + std::to_string(rows) + ", " + std::to_string(cols) + "]",
          .tolerance = 0,
          .prepare = [=](Workbench& bench) -> Prepared {
            // Two matrices and what lies around them, which stays.
            const std::vector<FlatMatrix>& matrices = bench.keep(std::vector<FlatMatrix>{
                {.offset = 3, .rows = rows, .cols = cols}, {.offset = 8 + rows * cols, .rows = cols, .cols = rows}});
            const int64_t count = 16 + 2 * rows * cols;
            std::vector<float> exact(static_cast<size_t>(count));
            for (size_t i = 0; i < exact.size(); ++i) exact[i] = std::sin(static_cast<float>(i + 1)) * 3;
            const Tensor w = bench.f32(exact, {count}), working = bench.arena.alloc({count}, DType::bf16);
            return {[=, &bench] {
                      round_to_working(working, w, bench.stream);
                      round_transposed(working, w, matrices, bench.stream);
                    },
                    {working}};
          }};
}

struct QkNormRopeSize {
  int64_t rows, heads, kv_heads, head_dim;
  bool norms = true;
  int64_t gap = 0;

  Rows qkv() const { return {rows, (heads + 2 * kv_heads) * head_dim, gap}; }
  Rows qk() const { return {rows, (heads + kv_heads) * head_dim, gap}; }
  AttentionShape shape() const { return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}; }
  std::string text() const {
    return " [" + std::to_string(rows) + ", " + std::to_string(heads) + "+" + std::to_string(kv_heads) + ", " +
           std::to_string(head_dim) + "]" + (norms ? "" : " no norm") + (gap ? " gap " + std::to_string(gap) : "");
  }
};

struct HeadsInput {
  Tensor qkv, rstd;
  QkNorms norms;
  std::shared_ptr<RopeTable> table;
  std::span<const int32_t> positions;
};

HeadsInput heads_input(Workbench& bench, const QkNormRopeSize& size) {
  constexpr int64_t kPositions = 512;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < size.head_dim / 2; ++i)
    frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(size.head_dim)));
  HeadsInput input{.qkv = activations(bench, size.qkv(), 1, 2),
                   .table = std::make_shared<RopeTable>(make_rope_table(frequencies, kPositions, 1, bench.stream)),
                   .positions = bench.ints(random_ints(size.rows, kPositions, 3))};
  if (size.norms) {
    const auto weight = [&](uint64_t seed) { return bench.f32(positive_values(size.head_dim, seed), {size.head_dim}); };
    input.norms = {.q_norm = weight(4), .k_norm = weight(5), .eps = 1e-6f};
    const int64_t count = size.rows * (size.heads + size.kv_heads);
    input.rstd = bench.f32(positive_values(count, 6), {count});
  }
  return input;
}

OpCase qk_norm_rope_forward_case(QkNormRopeSize size) {
  const double read_and_written = size.qk().elements() * 2;
  return {
      .name = "qk_norm_rope_forward" + size.text(),
      .tolerance = kActivationError,
      .bytes = kBytes * read_and_written,
      .prepare = [=](Workbench& bench) -> Prepared {
        const HeadsInput in = heads_input(bench, size);
        const Tensor qk = output(bench, size.qk());
        std::vector<ConstTensor> outputs = {qk};
        if (size.norms) outputs.push_back(in.rstd);
        return {
            [=, &bench] {
              qk_norm_rope_forward(
                  {.spec = {.norms = in.norms, .table = *in.table, .positions = in.positions, .shape = size.shape()},
                   .qk = qk,
                   .rstd = in.rstd,
                   .store = false},
                  in.qkv, bench.stream);
            },
            outputs};
      }};
}

OpCase qk_norm_rope_backward_case(QkNormRopeSize size) {
  return {.name = "qk_norm_rope_backward" + size.text(),
          .tolerance = kActivationError,
          .bytes = (size.norms ? 3 : 2) * kBytes * size.qk().elements(),
          .prepare = [=](Workbench& bench) -> Prepared {
            const HeadsInput in = heads_input(bench, size);
            const Tensor d_qkv = activations(bench, size.qkv(), 7);
            return {[=, &bench] {
                      qk_norm_rope_backward(
                          d_qkv, in.qkv, in.rstd,
                          {.norms = in.norms, .table = *in.table, .positions = in.positions, .shape = size.shape()},
                          bench.stream);
                    },
                    {d_qkv}};
          }};
}

}  // namespace

std::vector<OpCase> row_cases() {
  std::vector<OpCase> cases;
  const auto add_cases = [&](std::initializer_list<OpCase> more) { cases.insert(cases.end(), more); };
  for (const Rows& size : {Rows{1, 64}, Rows{5, 96, 3}, Rows{300, 1024}, Rows{5, 2560, 8}, Rows{3, 1025},
                           Rows{2, 12288}, Rows{300, 88, 5}})
    add_cases({norm_forward(size), norm_rstd(size), norm_backward(size, false), norm_backward(size, true)});
  for (const Rows& size : {Rows{1, 88}, Rows{5, 384, 8}, Rows{300, 107, 3}, Rows{5, 3072}})
    add_cases({swiglu_forward_case(size), swiglu_backward_case(size), add_case(size, false), add_case(size, true),
               move_rows(size, true), move_rows(size, false), dropout_case(size, false), dropout_case(size, true)});
  add_cases({move_rows({300, 0}, true), move_rows({300, 0}, false)});
  for (const Rows& size :
       {Rows{1, 192}, Rows{5, 304, 1}, Rows{300, 271}, Rows{5, 4096}, Rows{5, 9001, 3}, Rows{2, 40000}})
    add_cases({logprob_forward_case(size), logprob_backward_case(size, false), logprob_backward_case(size, true)});
  for (const Rows& size : {Rows{1, 192}, Rows{5, 304, 1}, Rows{300, 271}, Rows{5, 9001, 3}})
    for (const int64_t count : {1, 16, 150})
      add_cases({token_logprobs_forward_case(size, count), token_logprobs_backward_case(size, count, false),
                 token_logprobs_backward_case(size, count, true)});
  for (const Rows& size : {Rows{1, 64}, Rows{300, 1024}, Rows{5, 2560, 8}, Rows{37, 107, 3}})
    add_cases({value_forward_case(size), value_backward_case(size), value_gradient_case(size)});
  for (const int64_t count : {1, 17, 5000}) add_cases({adamw_case(count), round_case(count)});
  add_cases({round_transposed_case(40, 16), round_transposed_case(1030, 7)});
  for (const QkNormRopeSize& size :
       {QkNormRopeSize{1, 2, 1, 16}, QkNormRopeSize{5, 4, 2, 32}, QkNormRopeSize{300, 4, 2, 64, false},
        QkNormRopeSize{5, 6, 2, 48}, QkNormRopeSize{300, 16, 8, 128}, QkNormRopeSize{5, 3, 1, 128, true, 5},
        QkNormRopeSize{5, 9, 3, 64, false, 8}, QkNormRopeSize{300, 3, 1, 160}, QkNormRopeSize{5, 4, 2, 192, false, 3},
        QkNormRopeSize{300, 8, 4, 256}})
    add_cases({qk_norm_rope_forward_case(size), qk_norm_rope_backward_case(size)});
  for (OpCase& op_case : cases) op_case.bytes = 0;
  return cases;
}

std::vector<OpCase> row_speed_cases() {
  std::vector<OpCase> cases;
  const auto add_cases = [&](std::initializer_list<OpCase> more) { cases.insert(cases.end(), more); };
  for (const int64_t rows : {int64_t{1}, int64_t{64}, int64_t{8192}}) {
    for (const int64_t width : {int64_t{1024}, int64_t{2560}})
      add_cases({norm_forward({rows, width}), norm_backward({rows, width}, false)});
    for (const int64_t width : {int64_t{3072}, int64_t{9728}})
      add_cases({swiglu_forward_case({rows, width}), swiglu_backward_case({rows, width})});
    for (const QkNormRopeSize& size : {QkNormRopeSize{rows, 16, 8, 128}, QkNormRopeSize{rows, 32, 8, 128}})
      add_cases({qk_norm_rope_forward_case(size), qk_norm_rope_backward_case(size)});
  }
  constexpr int64_t kVocab = 151936;
  for (const int64_t rows : {int64_t{1}, int64_t{64}, int64_t{2048}})
    add_cases({logprob_forward_case({rows, kVocab}), logprob_backward_case({rows, kVocab}, true),
               token_logprobs_backward_case({rows, kVocab}, 64, true)});
  for (const int64_t rows : {int64_t{1}, int64_t{64}, int64_t{256}})
    add_cases({sample_case({rows, kVocab}, {.temperature = 0}, "greedy"),
               sample_case({rows, kVocab}, {.temperature = 0.9f}, "all"),
               sample_case({rows, kVocab}, {.top_k = 50}, "top_k"),
               sample_case({rows, kVocab}, {.top_p = 0.95f}, "top_p"),
               sample_case({rows, kVocab}, {.top_p = 0.9f, .min_p = 0.01f, .top_k = 1000}, "all filters")});
  add_cases({adamw_case(10'000'000)});
  return cases;
}

}  // namespace lockstep::kernels::testing
