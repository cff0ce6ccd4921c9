#include "lora/decompose.h"

#include <Eigen/Dense>
#include <algorithm>

#include "lora/counted_values.h"

namespace lockstep::lora {

namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Matrix = Eigen::MatrixXf;

Eigen::Map<const RowMajor> as_matrix(const ConstTensor& tensor) {
  return {static_cast<const float*>(tensor.data), tensor[0], tensor[1]};
}

std::vector<float> row_major(const Eigen::Ref<const Matrix>& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.size()));
  Eigen::Map<RowMajor>(values.data(), matrix.rows(), matrix.cols()) = matrix;
  return values;
}

// An orthonormal basis of the columns.
Matrix basis_of(const Matrix& columns) {
  return Eigen::HouseholderQR<Matrix>(columns).householderQ() * Matrix::Identity(columns.rows(), columns.cols());
}

MatrixFactors balanced(const Matrix& u, const Eigen::VectorXf& values, const Matrix& v, int64_t rank) {
  const Eigen::VectorXf roots = values.head(rank).cwiseMax(0.0f).cwiseSqrt();
  return {.left = row_major(u.leftCols(rank) * roots.asDiagonal()),
          .right = row_major(roots.asDiagonal() * v.leftCols(rank).transpose())};
}

}  // namespace

MatrixFactors largest_singular_part(ConstTensor weight, int64_t rank, std::optional<int64_t> iterations,
                                    uint64_t seed) {
  constexpr int64_t kMoreColumns = 10;
  constexpr uint32_t kBasis = 0;
  const auto w = as_matrix(weight);
  if (!iterations) {
    const Eigen::BDCSVD<Matrix> svd(w, Eigen::ComputeThinU | Eigen::ComputeThinV);
    return balanced(svd.matrixU(), svd.singularValues(), svd.matrixV(), rank);
  }
  const int64_t width = std::min({rank + kMoreColumns, weight[0], weight[1]});
  Matrix start(weight[1], width);
  normal_values(seed, kBasis, std::span(start.data(), static_cast<size_t>(start.size())), 1);
  Matrix basis = basis_of(w * start);
  for (int64_t i = 0; i < *iterations; ++i) basis = basis_of(w * basis_of(w.transpose() * basis));
  const Matrix small = basis.transpose() * w;
  const Eigen::BDCSVD<Matrix> svd(small, Eigen::ComputeThinU | Eigen::ComputeThinV);
  return balanced(basis * svd.matrixU(), svd.singularValues(), svd.matrixV(), rank);
}

// The first columns of Q are those of the decomposition of W's first columns.
MatrixFactors leading_qr(ConstTensor weight, int64_t rank) {
  const auto w = as_matrix(weight);
  const Matrix q = basis_of(w.leftCols(rank));
  return {.left = row_major(q), .right = row_major(q.transpose() * w)};
}

void orthogonalize(std::vector<float>& matrix, int64_t n) {
  Eigen::Map<RowMajor> values(matrix.data(), n, n);
  values = basis_of(values);
}

}  // namespace lockstep::lora
