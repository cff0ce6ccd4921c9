#include "core/tensor.h"

#include "core/error.h"

namespace lockstep {

int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "?";
}

float to_f32(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u;
  const uint32_t mantissa = x.bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

BFloat16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

namespace {
template <class View>
void set_shape(View& view, std::initializer_list<int64_t> dims) {
  view.rank = static_cast<int>(dims.size());
  int i = 0;
  for (int64_t dim : dims) view.shape[i++] = dim;
  view.row_stride = view.row_elements();
}

template <class View>
View row_range(View view, int64_t begin, int64_t end) {
  auto* bytes = static_cast<std::conditional_t<std::is_same_v<View, Tensor>, char, const char>*>(view.data);
  view.data = bytes + begin * view.row_stride * dtype_bytes(view.dtype);
  view.shape[0] = end - begin;
  return view;
}

template <class View>
View col_range(View view, int64_t begin, int64_t end) {
  if (view.rank != 2) throw ShapeError({.what = "a range of columns needs a matrix", .got = shape_text(view)});
  auto* bytes = static_cast<std::conditional_t<std::is_same_v<View, Tensor>, char, const char>*>(view.data);
  view.data = bytes + begin * dtype_bytes(view.dtype);
  view.shape[1] = end - begin;
  return view;
}
}  // namespace

namespace detail {
void check_f32(DType dtype) {
  if (dtype != DType::f32) throw DTypeError({.what = "f32 access to another type", .got = dtype_name(dtype)});
}
}  // namespace detail

Tensor::Tensor(void* memory, DType type, std::initializer_list<int64_t> dims) {
  data = memory;
  dtype = type;
  set_shape(*this, dims);
}
Tensor Tensor::rows(int64_t begin, int64_t end) const {
  return row_range(*this, begin, end);
}
Tensor Tensor::cols(int64_t begin, int64_t end) const {
  return col_range(*this, begin, end);
}

ConstTensor::ConstTensor(const void* memory, DType type, std::initializer_list<int64_t> dims) {
  data = memory;
  dtype = type;
  set_shape(*this, dims);
}
ConstTensor::ConstTensor(const Tensor& other) {
  data = other.data;
  dtype = other.dtype;
  rank = other.rank;
  shape = other.shape;
  row_stride = other.row_stride;
}
ConstTensor ConstTensor::rows(int64_t begin, int64_t end) const {
  return row_range(*this, begin, end);
}
ConstTensor ConstTensor::cols(int64_t begin, int64_t end) const {
  return col_range(*this, begin, end);
}

std::string shape_text(const ConstTensor& tensor) {
  std::string text = std::string(dtype_name(tensor.dtype)) + " [";
  for (int i = 0; i < tensor.rank; ++i) text += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  return text + "]";
}

void require_tensor(const ConstTensor& tensor, DType dtype, std::initializer_list<int64_t> dims, const char* op,
                    const char* argument) {
  const auto where = [&] { return std::string(op) + ": " + argument; };
  if (tensor.dtype != dtype)
    throw DTypeError({.what = "op argument has the wrong type",
                      .where = where(),
                      .got = shape_text(tensor),
                      .wanted = dtype_name(dtype)});
  bool same = tensor.rank == static_cast<int>(dims.size());
  int i = 0;
  std::string wanted = std::string(dtype_name(dtype)) + " [";
  for (int64_t dim : dims) {
    same = same && tensor.shape[i] == dim;
    wanted += (i++ ? ", " : "") + std::to_string(dim);
  }
  if (!same)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = where(),
                      .got = shape_text(tensor),
                      .wanted = wanted + "]"});
}

void require_f32(const ConstTensor& tensor, std::initializer_list<int64_t> dims, const char* op, const char* argument) {
  require_tensor(tensor, DType::f32, dims, op, argument);
}

}  // namespace lockstep
