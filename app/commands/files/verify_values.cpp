#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "commands/files/tensor_reader.h"
#include "commands/files/verification.h"

namespace lockstep::commands {

void verify_values(const NamedTensors& tensors, const std::string& where, Verification& report, Stream& stream) {
  std::vector<std::string> problems(tensors.size());
  std::vector<TensorReader> readers(static_cast<size_t>(stream.threads()));
  stream.parallel(static_cast<int64_t>(tensors.size()), [&](int64_t index, int worker) {
    const NamedTensor& named = tensors[static_cast<size_t>(index)];
    if (!TensorReader::reads(named.tensor.dtype)) return;
    const int64_t count = named.tensor.elements();
    int64_t bad = 0;
    for (int64_t begin = 0; begin < count; begin += TensorReader::kMax) {
      const int64_t size = std::min(TensorReader::kMax, count - begin);
      const float* const values = readers[static_cast<size_t>(worker)].read(named, begin, size);
      bad += std::count_if(values, values + size, [](float value) { return !std::isfinite(value); });
    }
    if (bad > 0)
      problems[static_cast<size_t>(index)] =
          fmt::format("{}: {} of {} values of {} are not finite", where, bad, count, named.name);
  });
  int64_t elements = 0;
  for (const NamedTensor& named : tensors) elements += named.tensor.elements();
  for (std::string& text : problems)
    if (!text.empty()) report.problem(std::move(text));
  report.checked(
      fmt::format("{}: {} tensors, {} values, for values that are not finite", where, tensors.size(), elements));
}

}  // namespace lockstep::commands
