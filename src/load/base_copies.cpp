#include "load/base_copies.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/half.h"
#include "kernels/pack.h"

namespace lockstep::load {

namespace {

float value_at(const ConstTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::f32) return static_cast<const float*>(tensor.data)[i];
  if (tensor.dtype == DType::bf16) return to_f32(static_cast<const BFloat16*>(tensor.data)[i]);
  return to_f32(static_cast<const Float16*>(tensor.data)[i]);
}

float rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? to_f32(to_bf16(value)) : dtype == DType::f16 ? to_f32(to_f16(value)) : value;
}

// Whether one is the other, rounded to its type.
bool agree(const ConstTensor& a, const ConstTensor& b) {
  if (a.dtype == b.dtype)
    return std::memcmp(a.data, b.data, static_cast<size_t>(a.elements() * dtype_bytes(a.dtype))) == 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const float x = value_at(a, i), y = value_at(b, i);
    if (rounded(x, b.dtype) != y && rounded(y, a.dtype) != x) return false;
  }
  return true;
}

[[noreturn]] void refuse(const lora::BaseCopy& copy, const std::string& where, std::string got, std::string wanted) {
  throw FormatError({.what = "the adapter's file holds another weight of the base than the base given",
                     .where = where + ": " + copy.tensor.name,
                     .got = std::move(got),
                     .wanted = std::move(wanted),
                     .attempt = "the base that the adapter was made on; a trained copy of it belongs in "
                                "modules_to_save"});
}

void check_copy(const lora::BaseCopy& copy, const BaseRows& base, const std::string& where) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const ConstTensor& tensor = copy.tensor.tensor;
  const ConstTensor shape = base.shape(copy.module);
  if (shape.rank == 0) refuse(copy, where, shape_text(tensor), "no weight of " + copy.module);
  if (tensor.rank != 2 || tensor[0] != shape[0] || tensor[1] != shape[1])
    refuse(copy, where, shape_text(tensor), shape_text(shape));
  const int64_t step = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, shape[1]));
  for (int64_t row = 0; row < shape[0]; row += step) {
    const int64_t end = std::min(shape[0], row + step);
    const ConstTensor wanted = base.read(copy.module, row, end);
    if (agree(tensor.rows(row, end), wanted)) continue;
    int64_t first = row;
    while (agree(tensor.rows(first, first + 1), wanted.rows(first - row, first - row + 1))) ++first;
    refuse(copy, where, "other values in row " + std::to_string(first), "the values of the base's " + copy.module);
  }
}

}  // namespace

BaseRows rows_of(const Base& base) {
  const auto packed = [&base](const std::string& module) -> const kernels::PackedWeight& {
    const model::Weights& weights = base.model->weights();
    return module == "lm_head" ? weights.head_weight() : weights.embedding.weight;
  };
  const auto memory = std::make_shared<Buffer>();
  return {.shape =
              [=](const std::string& module) {
                const kernels::PackedWeight& weight = packed(module);
                return ConstTensor(nullptr, weight.dtype, {weight.rows, weight.depth});
              },
          .read =
              [=, stream = base.stream](const std::string& module, int64_t begin, int64_t end) {
                const kernels::PackedWeight& weight = packed(module);
                *memory = Buffer(static_cast<size_t>((end - begin) * weight.depth * dtype_bytes(weight.dtype)),
                                 Buffer::Fill::none);
                const Tensor rows(memory->data(), weight.dtype, {end - begin, weight.depth});
                kernels::unpack_rows(rows, weight, begin, end, *stream);
                return ConstTensor(rows);
              }};
}

void check_base_copies(const std::vector<lora::BaseCopy>& copies, const BaseRows& base, const std::string& where) {
  for (const lora::BaseCopy& copy : copies) check_copy(copy, base, where);
}

}  // namespace lockstep::load
