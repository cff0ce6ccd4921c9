// What attention is given, for the agreement tests and the speed table (kernels/op_case.h).
#include <algorithm>

#include "kernels/attention_case.h"

namespace lockstep::kernels::testing {
namespace {

constexpr double kTolerance = 0x1p-6;  // bf16 probabilities and results

// The last `rows` positions of a sequence of `length`.
struct Part {
  int64_t length = 0, rows = 0;
};

std::vector<int64_t> lengths_of(const std::vector<Part>& parts) {
  std::vector<int64_t> lengths;
  for (const Part& part : parts) lengths.push_back(part.length);
  return lengths;
}
int64_t rows_of(const std::vector<Part>& parts) {
  int64_t rows = 0;
  for (const Part& part : parts) rows += part.rows;
  return rows;
}
std::vector<Part> whole_parts(const std::vector<int64_t>& lengths) {
  std::vector<Part> parts;
  for (const int64_t length : lengths) parts.push_back({length, length});
  return parts;
}

// What backward has memory for.
enum class Keeps { nothing, score_gradients };

std::string text_of(const AttentionShape& shape) {
  return std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + "x" + std::to_string(shape.head_dim) +
         (shape.window ? " window " + std::to_string(shape.window) : "");
}

std::string backward_name(const AttentionShape& shape, Keeps keeps) {
  return "attention_backward " + text_of(shape) + (keeps == Keeps::nothing ? " " : " keeping dS ");
}

int64_t qkv_width(const AttentionShape& shape) {
  return (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
}

// `apart` elements lie between two rows of q and of o.
Prepared prepare_forward(Workbench& bench, const AttentionShape& shape, const std::vector<Part>& parts, int64_t apart) {
  const std::vector<int64_t> lengths = lengths_of(parts);
  const int64_t positions = sum_of(lengths), width = shape.heads * shape.head_dim;
  const Tensor qkv =
      bench.activations(random_values(positions * qkv_width(shape), 1, 2.0f), {positions, qkv_width(shape)});
  const auto& cache = bench.keep(KvCache(bench, shape, rows_of_each(qkv, lengths)));

  auto& sequences = bench.keep(std::vector<AttentionSequence>{});
  int64_t rows = 0;
  for (size_t s = 0; s < parts.size(); ++s) {
    sequences.push_back(cache.sequence(s, rows, parts[s].rows, parts[s].length - parts[s].rows));
    rows += parts[s].rows;
  }
  const Tensor q =
      bench.activations(random_values(rows * (width + apart), 2, 2.0f), {rows, width + apart}).cols(0, width);
  const Tensor o = bench.poisoned_activations({rows, width + apart}).cols(0, width);
  const Tensor stats = bench.poisoned_f32({rows, shape.heads, 2});
  const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, bench.stream);
  return {.launch = [=, &bench, with = cache.shape()] { attention_forward(o, stats, q, with, placed, bench.stream); },
          .outputs = {o, stats}};
}

OpCase forward_case(const AttentionShape& shape, std::vector<Part> parts, int64_t apart, const std::string& what) {
  return {.name = "attention_forward " + text_of(shape) + " " + what,
          .tolerance = kTolerance,
          .prepare = [=](Workbench& bench) { return prepare_forward(bench, shape, parts, apart); }};
}

// The gradient of q, k and v as column ranges of one matrix, with q itself the first columns of qkv.
// A part that is not whole follows the last whole one before it, in its first positions.
Prepared prepare_backward(Workbench& bench, const AttentionShape& shape, const std::vector<Part>& parts,
                          const Tensor& qkv, const Tensor& d_o, const std::vector<Tensor>& keys, Keeps keeps) {
  const int64_t rows = rows_of(parts), width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  const auto& cache = bench.keep(KvCache(bench, shape, keys));
  auto& sequences = bench.keep(std::vector<AttentionSequence>{});
  int64_t row = 0;
  for (size_t s = 0, leader = 0; s < parts.size(); ++s) {
    const auto [length, own] = parts[s];
    if (own == length) leader = s;
    sequences.push_back(own == length ? cache.sequence(s, row, own, 0)
                                      : cache.follower(bench, s, leader, row, own, length - own));
    row += own;
  }
  const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, bench.stream);
  const Tensor q = qkv.cols(0, width), o = bench.poisoned_activations({rows, width});
  const Tensor stats = bench.poisoned_f32({rows, shape.heads, 2});
  AttentionScratch scratch(bench.poisoned_f32({rows, shape.heads}));
  if (const int64_t kept = score_gradient_elements(shape, placed); keeps == Keeps::score_gradients && kept > 0)
    scratch.score_gradients = bench.poisoned_activations({kept});
  attention_forward(o, stats, q, cache.shape(), placed, bench.stream);
  const Tensor gradient = bench.poisoned_activations({rows, width + 2 * kv_width});
  const Tensor dq = gradient.cols(0, width), dk = gradient.cols(width, width + kv_width);
  const Tensor dv = gradient.cols(width + kv_width, width + 2 * kv_width);
  return {.launch =
              [=, &bench, with = cache.shape()] {
                attention_backward(dq, dk, dv, d_o, q, o, stats, scratch, with, placed, bench.stream);
              },
          .outputs = {dq, dk, dv}};
}

OpCase backward_case(const AttentionShape& shape, const std::vector<Part>& parts, int64_t apart,
                     const std::string& what, Keeps keeps) {
  return {
      .name = backward_name(shape, keeps) + what, .tolerance = kTolerance, .prepare = [=](Workbench& bench) {
        const std::vector<int64_t> lengths = lengths_of(parts);
        const int64_t rows = rows_of(parts), positions = sum_of(lengths);
        const int64_t width = shape.heads * shape.head_dim, all = qkv_width(shape);
        const Tensor qkv =
            bench.activations(random_values(positions * (all + apart), 3, 2.0f), {positions, all + apart}).cols(0, all);
        const Tensor d_o =
            bench.activations(random_values(rows * (width + apart), 4), {rows, width + apart}).cols(0, width);
        return prepare_backward(bench, shape, parts, qkv.rows(0, rows), d_o, rows_of_each(qkv, lengths), keeps);
      }};
}

// In all ways that a device has.
void add_backward_cases(std::vector<OpCase>& cases, const AttentionShape& shape, const std::vector<Part>& parts,
                        int64_t apart, const std::string& what) {
  cases.push_back(backward_case(shape, parts, apart, what, Keeps::nothing));
  if (shape.head_dim == 64 || shape.head_dim == 128)
    cases.push_back(backward_case(shape, parts, apart, what, Keeps::score_gradients));
}

// Every sequence has the same values in its own memory.
Tensor repeated(Workbench& bench, int64_t copies, int64_t rows, int64_t width, uint64_t seed) {
  const Tensor all = bench.arena.alloc({copies * rows, width}, DType::bf16);
  const Tensor first = bench.activations(random_values(rows * width, seed), {rows, width});
  const auto bytes = static_cast<size_t>(rows * width * dtype_bytes(DType::bf16));
  for (int64_t i = 0; i < copies; ++i)
    copy(static_cast<std::byte*>(all.data) + static_cast<size_t>(i) * bytes, first.data, bytes, bench.stream);
  return all;
}

Prepared prepare_speed_forward(Workbench& bench, const AttentionShape& shape, int64_t copies, const Part& part) {
  const Tensor qkv =
      bench.activations(random_values(part.length * qkv_width(shape), 5), {part.length, qkv_width(shape)});
  const auto& cache = bench.keep(KvCache(bench, shape, std::vector<Tensor>(static_cast<size_t>(copies), qkv)));
  auto& sequences = bench.keep(std::vector<AttentionSequence>{});
  for (int64_t s = 0; s < copies; ++s)
    sequences.push_back(cache.sequence(static_cast<size_t>(s), s * part.rows, part.rows, part.length - part.rows));
  const int64_t width = shape.heads * shape.head_dim;
  const Tensor q = repeated(bench, copies, part.rows, width, 6);
  const Tensor o = bench.arena.alloc({copies * part.rows, width}, DType::bf16);
  const Tensor stats = bench.arena.alloc({copies * part.rows, shape.heads, 2});
  const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, bench.stream);
  return {.launch = [=, &bench, with = cache.shape()] { attention_forward(o, stats, q, with, placed, bench.stream); },
          .outputs = {o}};
}

double kv_bytes(const AttentionShape& shape, int64_t positions) {
  return 4.0 * static_cast<double>(positions * shape.kv_heads * shape.head_dim);
}
double row_bytes(const AttentionShape& shape, int64_t rows) {
  return 2.0 * static_cast<double>(rows * shape.heads * shape.head_dim);
}
// Of one matmul of queries and keys, the visible half of it.
double causal_flops(const AttentionShape& shape, int64_t copies, int64_t length) {
  return static_cast<double>(copies * shape.heads * shape.head_dim) * static_cast<double>(length * (length + 1));
}

OpCase speed_forward(const AttentionShape& shape, int64_t copies, int64_t length) {
  return {.name = "attention_forward " + text_of(shape) + " " + std::to_string(copies) + "x" + std::to_string(length),
          .bytes = kv_bytes(shape, copies * length) + 2 * row_bytes(shape, copies * length),
          .flops = 2 * causal_flops(shape, copies, length),
          .prepare = [=](Workbench& bench) {
            return prepare_speed_forward(bench, shape, copies, {.length = length, .rows = length});
          }};
}

OpCase speed_decode(const AttentionShape& shape, int64_t batch, int64_t length) {
  return {
      .name = "attention_decode " + text_of(shape) + " B=" + std::to_string(batch) + " at " + std::to_string(length),
      .bytes = kv_bytes(shape, batch * length) + 2 * row_bytes(shape, batch),
      .prepare = [=](Workbench& bench) {
        return prepare_speed_forward(bench, shape, batch, {.length = length, .rows = 1});
      }};
}

// Of backward: S and dP are made for dq as well unless dS is kept.
double matmuls(Keeps keeps) {
  return keeps == Keeps::nothing ? 7 : 5;
}

OpCase speed_backward(const AttentionShape& shape, int64_t copies, int64_t length, Keeps keeps) {
  return {.name = backward_name(shape, keeps) + std::to_string(copies) + "x" + std::to_string(length),
          .bytes = 2 * kv_bytes(shape, copies * length) + 4 * row_bytes(shape, copies * length),
          .flops = matmuls(keeps) * causal_flops(shape, copies, length),
          .prepare = [=](Workbench& bench) {
            const Tensor qkv = repeated(bench, copies, length, qkv_width(shape), 7);
            const Tensor d_o = repeated(bench, copies, length, shape.heads * shape.head_dim, 8);
            const std::vector<int64_t> lengths(static_cast<size_t>(copies), length);
            return prepare_backward(bench, shape, whole_parts(lengths), qkv, d_o, rows_of_each(qkv, lengths), keeps);
          }};
}

// Of each prompt `samples` sequences of `length`, the first `prompt` positions of which they share.
OpCase speed_shared_backward(const AttentionShape& shape, int64_t prompts, int64_t samples, int64_t prompt,
                             int64_t length, Keeps keeps) {
  std::vector<Part> parts;
  for (int64_t i = 0; i < prompts; ++i)
    for (int64_t j = 0; j < samples; ++j) parts.push_back({length, j == 0 ? length : length - prompt});
  const int64_t rows = rows_of(parts);
  const double flops =
      static_cast<double>(prompts) * (static_cast<double>(samples) * causal_flops(shape, 1, length) -
                                      static_cast<double>(samples - 1) * causal_flops(shape, 1, prompt));
  return {.name = backward_name(shape, keeps) + std::to_string(prompts) + "x" + std::to_string(samples) + "x" +
                  std::to_string(length) + " sharing " + std::to_string(prompt),
          .bytes = 2 * kv_bytes(shape, rows) + 4 * row_bytes(shape, rows),
          .flops = matmuls(keeps) * flops,
          .prepare = [=](Workbench& bench) {
            const std::vector<int64_t> lengths = lengths_of(parts);
            const Tensor qkv = repeated(bench, static_cast<int64_t>(parts.size()), length, qkv_width(shape), 7);
            const Tensor d_o =
                repeated(bench, static_cast<int64_t>(parts.size()), length, shape.heads * shape.head_dim, 8);
            return prepare_backward(bench, shape, parts, qkv.rows(0, rows), d_o.rows(0, rows),
                                    rows_of_each(qkv, lengths), keeps);
          }};
}

}  // namespace

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> cases;
  for (const AttentionShape& shape :
       {attention_shape(2, 1, 16), attention_shape(4, 2, 32), attention_shape(9, 3, 64), attention_shape(16, 8, 128),
        attention_shape(32, 8, 128), attention_shape(2, 1, 16, 7), attention_shape(4, 2, 48, 100),
        attention_shape(9, 3, 64, 7), attention_shape(16, 8, 128, 100), attention_shape(6, 2, 112),
        attention_shape(4, 2, 160), attention_shape(6, 2, 192, 100), attention_shape(8, 4, 256)}) {
    cases.push_back(forward_case(shape, {{1, 1}, {300, 300}, {64, 64}, {65, 65}, {17, 17}}, 0, "whole"));
    cases.push_back(forward_case(shape, {{700, 130}, {1, 1}, {260, 3}, {513, 1}, {80, 64}}, 0, "chunks"));
    cases.push_back(
        forward_case(shape, {{1, 1}, {2, 1}, {64, 1}, {65, 1}, {255, 1}, {256, 1}, {257, 1}, {700, 1}}, 0, "decode"));
    add_backward_cases(cases, shape, whole_parts({1, 300, 64, 65, 17}), 0, "packed");
    add_backward_cases(
        cases, shape,
        {{150, 150}, {300, 188}, {113, 1}, {240, 128}, {70, 70}, {64, 64}, {130, 66}, {300, 300}, {500, 484}}, 0,
        "shared");
  }
  cases.push_back(forward_case(attention_shape(16, 8, 128), {{700, 700}}, 8, "700"));
  add_backward_cases(cases, attention_shape(16, 8, 128), whole_parts({700}), 8, "700");
  // Rows at odd addresses.
  cases.push_back(forward_case(attention_shape(3, 1, 16), {{90, 90}, {5, 2}}, 1, "unaligned"));
  cases.push_back(forward_case(attention_shape(3, 1, 16), {{90, 1}, {5, 1}}, 1, "unaligned decode"));
  add_backward_cases(cases, attention_shape(3, 1, 16), whole_parts({90, 5}), 1, "unaligned");
  add_backward_cases(cases, attention_shape(4, 2, 64), {{90, 90}, {200, 152}}, 1, "unaligned shared");
  cases.push_back(forward_case(attention_shape(4, 2, 64), {{330, 330}, {70, 2}}, 1, "unaligned"));
  add_backward_cases(cases, attention_shape(4, 2, 64), whole_parts({330, 5}), 1, "unaligned");
  cases.push_back(forward_case(attention_shape(3, 1, 256), {{330, 330}, {70, 2}}, 1, "unaligned"));
  cases.push_back(forward_case(attention_shape(3, 1, 176), {{330, 1}, {5, 1}}, 1, "unaligned decode"));
  add_backward_cases(cases, attention_shape(3, 1, 256), whole_parts({330, 5}), 1, "unaligned");
  // Several tiles of 64 rows, the last of them not full, and heads that are no multiple of what a CTA takes.
  for (const AttentionShape& shape :
       {attention_shape(10, 2, 128), attention_shape(4, 4, 64, 300), attention_shape(3, 3, 240, 300)}) {
    cases.push_back(forward_case(shape, {{450, 450}, {30, 30}, {600, 200}}, 0, "tiles"));
    add_backward_cases(cases, shape, whole_parts({450, 30, 200}), 0, "tiles");
  }
  // More query heads to a key head than one tile of the tensor cores has rows.
  cases.push_back(forward_case(attention_shape(20, 1, 64), {{300, 1}, {7, 1}}, 0, "decode"));
  cases.push_back(forward_case(attention_shape(20, 1, 64), {{300, 300}}, 0, "whole"));
  cases.push_back(forward_case(attention_shape(20, 1, 256), {{300, 1}, {7, 1}}, 0, "decode"));
  return cases;
}

std::vector<OpCase> attention_speed_cases() {
  std::vector<OpCase> cases;
  for (const AttentionShape& shape : {attention_shape(16, 8, 128), attention_shape(32, 8, 128)}) {
    cases.push_back(speed_forward(shape, 4, 2048));
    cases.push_back(speed_forward(shape, 64, 1024));
    cases.push_back(speed_forward(shape, 32, 256));
    for (const Keeps keeps : {Keeps::nothing, Keeps::score_gradients}) {
      for (const auto& [sequences, tokens] : {std::pair{4, 2048}, {32, 256}})
        cases.push_back(speed_backward(shape, sequences, tokens, keeps));
      cases.push_back(speed_shared_backward(shape, 7, 8, 128, 256, keeps));
    }
    for (const int64_t batch : {1, 64, 256}) cases.push_back(speed_decode(shape, batch, 384));
  }
  return cases;
}

}  // namespace lockstep::kernels::testing
