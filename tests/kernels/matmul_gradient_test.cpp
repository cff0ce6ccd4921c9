// The backward matmuls are the gradients of the forward ones: against central differences of the matmuls in double.
// Their bits are the business of linear_test.cpp and matmul_test.cpp.
#include "kernels/linear.h"
#include "kernels/matmul.h"
#include "kernels/matmul_testing.h"

namespace lockstep::kernels::testing {
namespace {

struct Size {
  int64_t m, n, k;
};
const Size kSizes[] = {{1, 5, 7}, {6, 33, 9}, {9, 4, 40}};

// a [m, k] times b [k, n], row by row.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, const Size& s) {
  std::vector<double> c(static_cast<size_t>(s.m * s.n));
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t k = 0; k < s.k; ++k)
      for (int64_t j = 0; j < s.n; ++j)
        c[static_cast<size_t>(i * s.n + j)] +=
            a[static_cast<size_t>(i * s.k + k)] * b[static_cast<size_t>(k * s.n + j)];
  return c;
}

TEST(MatmulGradients, LinearBackwardInputIsTheGradientOfLinearForward) {
  Stream stream({.threads = 1});
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Size& s : kSizes) {
      const StoredWeight stored(s.n, s.k, dtype, 3);
      const PackedWeight weight = pack(stored, stream);
      Matrix x = Matrix::random(s.m, s.k, 1), y(s.m, s.n), dy = Matrix::random(s.m, s.n, 2), dx(s.m, s.k);
      std::vector<double> transposed;  // [k, n]
      for (int64_t k = 0; k < s.k; ++k)
        for (int64_t n = 0; n < s.n; ++n) transposed.push_back(stored.at(n, k));
      const auto forward = [&](const std::vector<double>& at) { return product(at, transposed, s); };
      linear({.y = y.tensor(), .input = {.x = x.tensor()}, .weight = weight}, stream);
      EXPECT_LT(relative_error(y.doubles(), forward(x.doubles())), 1e-6);

      linear_backward({.dx = dx.tensor(), .dy = dy.tensor(), .weight = weight}, stream);
      const auto numeric =
          numeric_gradient(x.doubles(), [&](const auto& at) { return dot(forward(at), dy.doubles()); });
      EXPECT_LT(relative_error(dx.doubles(), numeric), 1e-6) << dtype_name(dtype) << " " << s.m << " x " << s.n;
    }
}

// c = scale a b:  da = scale dc b^T,  db = a^T (scale dc).
TEST(MatmulGradients, TransposedAndOuterAreTheGradientsOfMatmul) {
  Stream stream({.threads = 1});
  constexpr float kScale = 0.75f;
  for (const Size& s : kSizes) {
    Matrix a = Matrix::random(s.m, s.k, 4), b = Matrix::random(s.k, s.n, 5), c(s.m, s.n);
    Matrix dc = Matrix::random(s.m, s.n, 6), da(s.m, s.k), db = Matrix::random(s.k, s.n, 7);
    const auto loss = [&](const std::vector<double>& at_a, const std::vector<double>& at_b) {
      return kScale * dot(product(at_a, at_b, s), dc.doubles());
    };
    matmul(c.tensor(), a.tensor(), b.tensor(), kScale, false, stream);
    EXPECT_NEAR(dot(c.doubles(), dc.doubles()), loss(a.doubles(), b.doubles()), 1e-5);

    matmul_transposed(da.tensor(), dc.tensor(), b.tensor(), kScale, false, stream);
    const auto numeric_a = numeric_gradient(a.doubles(), [&](const auto& at) { return loss(at, b.doubles()); });
    EXPECT_LT(relative_error(da.doubles(), numeric_a), 1e-6) << s.m << " x " << s.n;

    std::vector<double> numeric_b =
        numeric_gradient(b.doubles(), [&](const auto& at) { return loss(a.doubles(), at); });
    const std::vector<double> start = db.doubles();
    for (size_t i = 0; i < start.size(); ++i) numeric_b[i] += start[i];
    outer_accumulate(db.tensor(), a.tensor(), dc.tensor(), kScale, stream);
    EXPECT_LT(relative_error(db.doubles(), numeric_b), 1e-6) << s.m << " x " << s.n;
  }
}

}  // namespace
}  // namespace lockstep::kernels::testing
