#include "model/linear.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace lockstep::model {

namespace {

std::span<const int32_t> gather(std::span<const int32_t> from, std::span<const int32_t> rows, Arena& arena,
                                Stream& stream) {
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor to = arena.alloc({count}, DType::i32);
  const ConstTensor all(from.data(), DType::i32, {static_cast<int64_t>(from.size())});
  kernels::gather_rows(to, all, rows, stream);
  return {static_cast<const int32_t*>(to.data), rows.size()};
}

}  // namespace

std::vector<lora::AdapterRows> adapters_of_rows(std::span<const lora::AdapterRows> all, std::span<const int32_t> rows) {
  std::vector<lora::AdapterRows> chosen;
  auto run = all.begin();
  for (size_t i = 0; i < rows.size(); ++i) {
    while (run != all.end() && rows[i] >= run->row_begin + run->rows) ++run;
    if (run == all.end()) break;
    if (rows[i] < run->row_begin) continue;
    const auto row = static_cast<int64_t>(i);
    if (chosen.empty() || chosen.back().adapter != run->adapter || chosen.back().row_begin + chosen.back().rows != row)
      chosen.push_back({.row_begin = row, .adapter = run->adapter});
    ++chosen.back().rows;
  }
  return chosen;
}

RowAdapters gather_adapters(const RowAdapters& all, std::span<const int32_t> host_rows, std::span<const int32_t> rows,
                            Arena& arena, Stream& stream) {
  RowAdapters chosen{.rows = adapters_of_rows(all.rows, host_rows), .tiles = {}, .dropout = all.dropout};
  if (all.dropout.p == 0) return chosen;
  chosen.dropout.sample = gather(all.dropout.sample, rows, arena, stream);
  chosen.dropout.position = gather(all.dropout.position, rows, arena, stream);
  return chosen;
}

RowAdapters RowAdapters::part(int64_t begin, int64_t end) const {
  RowAdapters some{.rows = {}, .tiles = {}, .dropout = dropout};
  for (const lora::AdapterRows& run : rows) {
    const int64_t first = std::max(begin, run.row_begin), last = std::min(end, run.row_begin + run.rows);
    if (first < last) some.rows.push_back({.row_begin = first - begin, .rows = last - first, .adapter = run.adapter});
  }
  if (dropout.p == 0) return some;
  const auto count = static_cast<size_t>(end - begin);
  some.dropout.sample = dropout.sample.subspan(static_cast<size_t>(begin), count);
  some.dropout.position = dropout.position.subspan(static_cast<size_t>(begin), count);
  return some;
}

}  // namespace lockstep::model
