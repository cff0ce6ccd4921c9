#include "kernels/linear.h"

#include "kernels/matmul_testing.h"

namespace lockstep::kernels::testing {
namespace {

constexpr DType kStorageTypes[] = {DType::f32, DType::bf16, DType::f16};

std::vector<int64_t> batch_sizes() {
  std::vector<int64_t> sizes;
  for (int64_t m = 1; m <= 33; ++m) sizes.push_back(m);
  sizes.push_back(100);
  return sizes;
}

Matrix all_forward_rows(const StoredWeight& w, Matrix& x, Matrix* bias) {
  Matrix y(x.rows(), w.rows);
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t n = 0; n < w.rows; ++n)
      y.at(t, n) = chain(
          bias ? bias->at(0, n) : 0.0f, w.depth, [&](int64_t k) { return x.at(t, k); },
          [&](int64_t k) { return w.at(n, k); });
  return y;
}

Matrix all_backward_rows(const StoredWeight& w, Matrix& dy, Matrix* start) {
  Matrix dx(dy.rows(), w.depth);
  for (int64_t t = 0; t < dy.rows(); ++t)
    for (int64_t k = 0; k < w.depth; ++k)
      dx.at(t, k) = chain(
          start ? start->at(t, k) : 0.0f, w.rows, [&](int64_t n) { return dy.at(t, n); },
          [&](int64_t n) { return w.at(n, k); });
  return dx;
}

ConstTensor vector_of(Matrix& m) {
  return ConstTensor(m.values().data(), DType::f32, {m.cols()});
}

// The first `rows` rows of `expected`.
void expect_rows(Matrix& got, Matrix& expected, int64_t rows, const std::string& what) {
  for (int64_t t = 0; t < rows; ++t)
    ASSERT_TRUE(same_bits({&got.at(t, 0), static_cast<size_t>(got.cols())},
                          {&expected.at(t, 0), static_cast<size_t>(got.cols())}))
        << what << ", row " << t << " of " << rows;
}

TEST(Linear, ForwardIsTheChainForEveryBatchSize) {
  Stream stream({.threads = 2});
  for (DType dtype : kStorageTypes)
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{75, 70}, {32, 1}, {1, 33}, {40, 256}}) {
      const StoredWeight w(n, k, dtype, 10);
      const PackedWeight packed = pack(w, stream);
      Matrix x = Matrix::random(100, k, 11, 1.0f, k + 3), bias = Matrix::random(1, n, 12);
      Matrix expected = all_forward_rows(w, x, &bias);
      for (int64_t m : batch_sizes()) {
        Matrix y(m, n, n + 5);
        linear({.y = y.tensor(), .input = {.x = x.tensor().rows(0, m)}, .weight = packed, .bias = vector_of(bias)},
               stream);
        expect_rows(y, expected, m, std::string(dtype_name(dtype)) + " N=" + std::to_string(n));
        ASSERT_EQ(y.values()[static_cast<size_t>(n)], -77.0f) << "a row's neighbour was written";
      }
    }
}

TEST(Linear, ForwardWithoutBiasStartsAtZero) {
  Stream stream({.threads = 1});
  const StoredWeight w(50, 20, DType::bf16, 13);
  Matrix x = Matrix::random(9, 20, 14), y(9, 50);
  Matrix expected = all_forward_rows(w, x, nullptr);
  linear({.y = y.tensor(), .input = {.x = x.tensor()}, .weight = pack(w, stream)}, stream);
  expect_rows(y, expected, 9, "no bias");
}

// Depths of several blocks; rows whole pages apart, which are packed, and others.
TEST(Linear, DeepChainsContinueAcrossBlocks) {
  Stream stream({.threads = 2});
  for (DType dtype : kStorageTypes) {
    for (int64_t depth : {2500, 4096}) {
      const StoredWeight w(40, depth, dtype, 15);
      const PackedWeight packed = pack(w, stream);
      Matrix x = Matrix::random(17, depth, 16);
      Matrix expected = all_forward_rows(w, x, nullptr);
      for (int64_t m : {1, 5, 17}) {
        Matrix y(m, 40);
        linear({.y = y.tensor(), .input = {.x = x.tensor().rows(0, m)}, .weight = packed}, stream);
        expect_rows(y, expected, m, dtype_name(dtype));
      }
    }
    const StoredWeight tall(1100, 40, dtype, 17);
    Matrix dy = Matrix::random(17, 1100, 18, 1.0f, 2048), dx(17, 40);
    Matrix expected_dx = all_backward_rows(tall, dy, nullptr);
    linear_backward({.dx = dx.tensor(), .dy = dy.tensor(), .weight = pack(tall, stream)}, stream);
    expect_rows(dx, expected_dx, 17, dtype_name(dtype));
  }
}

TEST(Linear, BackwardIsTheChainOverOutputsForEveryBatchSize) {
  Stream stream({.threads = 2});
  for (DType dtype : kStorageTypes)
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{75, 70}, {32, 1}, {1, 33}, {40, 256}}) {
      const StoredWeight w(n, k, dtype, 20);
      const PackedWeight packed = pack(w, stream);
      Matrix dy = Matrix::random(100, n, 21, 1.0f, n + 3), start = Matrix::random(100, k, 22);
      Matrix fresh = all_backward_rows(w, dy, nullptr), continued = all_backward_rows(w, dy, &start);
      for (int64_t m : batch_sizes()) {
        Matrix dx(m, k, k + 5);
        linear_backward({.dx = dx.tensor(), .dy = dy.tensor().rows(0, m), .weight = packed}, stream);
        expect_rows(dx, fresh, m, std::string(dtype_name(dtype)) + " K=" + std::to_string(k));
        for (int64_t t = 0; t < m; ++t) std::copy_n(&start.at(t, 0), k, &dx.at(t, 0));
        linear_backward({.dx = dx.tensor(), .dy = dy.tensor().rows(0, m), .weight = packed, .accumulate = true},
                        stream);
        expect_rows(dx, continued, m, std::string(dtype_name(dtype)) + " continued, K=" + std::to_string(k));
        ASSERT_EQ(dx.values()[static_cast<size_t>(k)], -77.0f) << "a row's neighbour was written";
      }
    }
}

// Large enough that every cut into tasks, row parts and strip groups happens.
TEST(Linear, SameBitsOnEveryThreadCountAndInstructionSet) {
  for (DType dtype : {DType::bf16, DType::f32}) {
    const StoredWeight w(1000, 300, dtype, 30);
    expect_same_bits_everywhere([&](Stream& stream) {
      const PackedWeight packed = pack(w, stream);
      Matrix x = Matrix::random(70, 300, 31), y(70, 1000), bias = Matrix::random(1, 1000, 32), dx(70, 300),
             one(1, 1000);
      linear({.y = y.tensor(), .input = {.x = x.tensor()}, .weight = packed, .bias = vector_of(bias)}, stream);
      linear({.y = one.tensor(), .input = {.x = x.tensor().rows(69, 70)}, .weight = packed, .bias = vector_of(bias)},
             stream);
      EXPECT_TRUE(same_bits(one.values(), {&y.at(69, 0), 1000})) << "a row of the batch differs from the row alone";
      linear_backward({.dx = dx.tensor(), .dy = y.tensor(), .weight = packed}, stream);
      std::vector<float> all = y.values();
      all.insert(all.end(), dx.values().begin(), dx.values().end());
      return all;
    });
  }
}

TEST(Linear, NoRowsIsNoWork) {
  Stream stream({.threads = 2});
  const PackedWeight packed = pack(StoredWeight(40, 8, DType::bf16, 40), stream);
  Matrix x(1, 8), y(1, 40);
  linear({.y = y.tensor().rows(0, 0), .input = {.x = x.tensor().rows(0, 0)}, .weight = packed}, stream);
  linear_backward({.dx = x.tensor().rows(0, 0), .dy = y.tensor().rows(0, 0), .weight = packed}, stream);
  EXPECT_EQ(y.at(0, 0), -77.0f);
  EXPECT_EQ(x.at(0, 0), -77.0f);
}

TEST(Linear, WrongShapesAreErrors) {
  Stream stream({.threads = 1});
  const PackedWeight packed = pack(StoredWeight(40, 8, DType::bf16, 41), stream);
  Matrix x(3, 8), y(3, 40), narrow(3, 7), short_y(2, 40), bias(1, 39);
  EXPECT_THROW(linear({.y = y.tensor(), .input = {.x = narrow.tensor()}, .weight = packed}, stream), ShapeError);
  EXPECT_THROW(linear({.y = short_y.tensor(), .input = {.x = x.tensor()}, .weight = packed}, stream), ShapeError);
  EXPECT_THROW(linear({.y = y.tensor(), .input = {.x = x.flat()}, .weight = packed}, stream), ShapeError);
  EXPECT_THROW(linear({.y = y.tensor(), .input = {.x = x.tensor()}, .weight = packed, .bias = vector_of(bias)}, stream),
               ShapeError);
  EXPECT_THROW(
      linear({.y = y.tensor(), .input = {.x = ConstTensor(x.values().data(), DType::bf16, {3, 8})}, .weight = packed},
             stream),
      DTypeError);
  EXPECT_THROW(linear_backward({.dx = narrow.tensor(), .dy = y.tensor(), .weight = packed}, stream), ShapeError);
  EXPECT_THROW(linear_backward({.dx = x.tensor(), .dy = short_y.tensor(), .weight = packed}, stream), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
