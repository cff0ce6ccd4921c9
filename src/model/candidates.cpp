#include "model/candidates.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/transfer.h"

namespace lockstep::model {

namespace {

template <class T>
void place(std::span<T> to_TK, const T* from, size_t count, std::span<const int32_t> rows, Stream& stream) {
  if (rows.empty() || count == 0) return;
  std::vector<T> host(count);
  download(host.data(), from, count * sizeof(T), stream);
  const size_t per_row = count / rows.size();
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(host.data() + i * per_row, per_row, to_TK.data() + static_cast<size_t>(rows[i]) * per_row);
}

}  // namespace

std::span<const int32_t> upload_candidates(std::span<const int32_t> candidates_TK, int64_t rows,
                                           const TargetRows& wanted, int64_t vocab_size, Arena& arena, Stream& stream) {
  const auto count = static_cast<int64_t>(candidates_TK.size());
  if (rows == 0 ? count != 0 : count % rows != 0)
    throw ShapeError({.what = "candidate tokens are as many in every row",
                      .where = "candidates",
                      .got = std::to_string(count) + " for " + std::to_string(rows) + " rows",
                      .wanted = "a multiple of the rows"});
  const auto per_row = static_cast<size_t>(rows == 0 ? 0 : count / rows);
  std::vector<int32_t> of_wanted;
  of_wanted.reserve(wanted.rows.size() * per_row);
  for (const int32_t row : wanted.rows)
    for (const int32_t token : candidates_TK.subspan(static_cast<size_t>(row) * per_row, per_row)) {
      if (token < -1 || token >= vocab_size)
        throw DataError({.what = "a candidate token lies outside the vocabulary",
                         .where = "row " + std::to_string(row) + " of the batch",
                         .got = std::to_string(token),
                         .wanted = "0 to " + std::to_string(vocab_size - 1) + ", or -1 for none"});
      of_wanted.push_back(token);
    }
  return upload(std::span<const int32_t>(of_wanted), arena, stream);
}

void download_rows(std::span<float> to_TK, const Tensor& from, std::span<const int32_t> rows, Stream& stream) {
  place(to_TK, static_cast<const float*>(from.f32()), static_cast<size_t>(from.elements()), rows, stream);
}

void download_rows(std::span<int32_t> to_TK, std::span<const int32_t> from, std::span<const int32_t> rows,
                   Stream& stream) {
  place(to_TK, from.data(), from.size(), rows, stream);
}

Tensor upload_rows(ConstTensor from_TK, std::span<const int32_t> rows, Arena& arena, Stream& stream) {
  const int64_t per_row = from_TK[1];
  std::vector<float> host;
  host.reserve(rows.size() * static_cast<size_t>(per_row));
  for (const int32_t row : rows) host.insert(host.end(), from_TK.row(row), from_TK.row(row) + per_row);
  const Tensor to = arena.alloc({static_cast<int64_t>(rows.size()), per_row});
  upload(to.data, host.data(), host.size() * sizeof(float), stream);
  return to;
}

}  // namespace lockstep::model
