// Views of typed memory. A Tensor never owns; see Buffer and Arena in core/memory.h.
//
// Up to four dimensions, row-major; every dimension but the first is contiguous, and the distance between two
// entries of the first is `row_stride` elements (so a range of rows or of columns of a matrix is a view too).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace lockstep {

enum class DType : uint8_t { f32, bf16, f16, f64, i64, i32, u8 };
int64_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // "f32", ...

// Storage of the 16-bit floats; arithmetic is always f32.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
inline float to_f32(BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
float to_f32(Float16 x);
BFloat16 to_bf16(float x);  // round to nearest even

namespace detail {
template <class Void>
struct View {
  Void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  int64_t row_stride = 0;  // elements

  int64_t operator[](int dim) const { return shape[dim]; }
  bool empty() const { return data == nullptr; }
  int64_t row_elements() const {
    int64_t n = 1;
    for (int i = 1; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t elements() const { return rank == 0 ? 0 : shape[0] * row_elements(); }
  bool contiguous() const { return rank == 0 || shape[0] <= 1 || row_stride == row_elements(); }
};
void check_f32(DType dtype);
}  // namespace detail

struct Tensor : detail::View<void> {
  Tensor() = default;
  Tensor(void* memory, DType type, std::initializer_list<int64_t> dims);
  float* f32() const { return detail::check_f32(dtype), static_cast<float*>(data); }
  float* row(int64_t i) const { return f32() + i * row_stride; }
  Tensor rows(int64_t begin, int64_t end) const;  // [begin, end) of dimension 0
  Tensor cols(int64_t begin, int64_t end) const;  // [begin, end) of dimension 1; rank 2 only
};

struct ConstTensor : detail::View<const void> {
  ConstTensor() = default;
  ConstTensor(const void* memory, DType type, std::initializer_list<int64_t> dims);
  ConstTensor(const Tensor& other);  // NOLINT: a view is a const view
  const float* f32() const { return detail::check_f32(dtype), static_cast<const float*>(data); }
  const float* row(int64_t i) const { return f32() + i * row_stride; }
  ConstTensor rows(int64_t begin, int64_t end) const;
  ConstTensor cols(int64_t begin, int64_t end) const;
};

std::string shape_text(const ConstTensor& tensor);  // "f32 [3, 64]"

// Throws ShapeError / DTypeError naming `op` and `argument` unless `tensor` has this type and exactly these dimensions.
void require_tensor(const ConstTensor& tensor, DType dtype, std::initializer_list<int64_t> dims, const char* op,
                    const char* argument);
void require_f32(const ConstTensor& tensor, std::initializer_list<int64_t> dims, const char* op, const char* argument);

}  // namespace lockstep
