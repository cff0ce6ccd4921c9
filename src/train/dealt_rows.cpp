#include "train/dealt_rows.h"

#include <algorithm>

#include "parallel/agree.h"
#include "parallel/bytes.h"
#include "parallel/gather.h"

namespace lockstep::train {

namespace {

template <class T>
void write_list(parallel::ByteWriter& writer, const std::vector<T>& values) {
  writer.add<uint64_t>(values.size());
  for (const T value : values) writer.add(value);
}

template <class T>
void read_list(parallel::ByteReader& reader, std::vector<T>& values) {
  values.resize(reader.take<uint64_t>());
  std::ranges::generate(values, [&] { return reader.take<T>(); });
}

}  // namespace

std::vector<RowOutputs> dealt_outputs(parallel::Group* group, size_t num_datums, const OutputsOf& outputs_of) {
  if (group == nullptr || group->size() == 1) return outputs_of(0, num_datums);
  const auto first_of = [&](int rank) {
    return num_datums * static_cast<size_t>(rank) / static_cast<size_t>(group->size());
  };
  const size_t first = first_of(group->rank()), end = first_of(group->rank() + 1);
  parallel::ByteWriter mine;
  parallel::agree_after(*group, [&] {
    if (first == end) return;
    for (const RowOutputs& rows : outputs_of(first, end - first)) {
      write_list(mine, rows.logprob);
      write_list(mine, rows.entropy);
      write_list(mine, rows.top);
      write_list(mine, rows.top_logprob);
      write_list(mine, rows.candidate_logprob);
    }
  });
  std::vector<RowOutputs> all;
  for (const std::vector<std::byte>& bytes : parallel::gather_varied(*group, mine.take())) {
    parallel::ByteReader reader(bytes);
    while (!reader.empty()) {
      RowOutputs& rows = all.emplace_back();
      read_list(reader, rows.logprob);
      read_list(reader, rows.entropy);
      read_list(reader, rows.top);
      read_list(reader, rows.top_logprob);
      read_list(reader, rows.candidate_logprob);
    }
  }
  return all;
}

std::vector<std::vector<float>> dealt_rows(parallel::Group* group, std::span<const Datum> datums,
                                           const RowsOf& rows_of) {
  std::vector<std::vector<float>> all;
  for (RowOutputs& rows : dealt_outputs(group, datums.size(), [&](size_t first, size_t count) {
         std::vector<RowOutputs> outputs;
         for (std::vector<float>& values : rows_of(datums.subspan(first, count)))
           outputs.push_back({.logprob = std::move(values), .entropy = {}});
         return outputs;
       }))
    all.push_back(std::move(rows.logprob));
  return all;
}

}  // namespace lockstep::train
