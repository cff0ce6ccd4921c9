#include "commands/files/update_norms.h"

#include <cmath>
#include <limits>

#include "core/error.h"

namespace lockstep::commands {

namespace {

// B A of any rank, in double: rows of `b` are those of B^T, so that all sums run along rows.
struct LowRank {
  int64_t rank = 0, in = 0, out = 0;
  std::vector<double> a, bt;  // [rank, in], [rank, out]
};

// scale_b * B and scale_a * A behind what is there.
void append(LowRank& product, const load::ModuleFactors& factors, double scale_b, double scale_a) {
  product.in = factors.in(), product.out = factors.out();
  for (int64_t k = 0; k < factors.rank; ++k) {
    for (int64_t j = 0; j < product.in; ++j) product.a.push_back(scale_a * factors.a.row(k)[j]);
    for (int64_t i = 0; i < product.out; ++i) product.bt.push_back(scale_b * factors.b.row(i)[k]);
  }
  product.rank += factors.rank;
}

double dot(const double* x, const double* y, int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * y[i + l];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

double inner_product(const LowRank& x, const LowRank& y) {
  double sum = 0;
  for (int64_t k = 0; k < x.rank; ++k)
    for (int64_t l = 0; l < y.rank; ++l)
      sum += dot(&x.bt[static_cast<size_t>(k * x.out)], &y.bt[static_cast<size_t>(l * y.out)], x.out) *
             dot(&x.a[static_cast<size_t>(k * x.in)], &y.a[static_cast<size_t>(l * y.in)], x.in);
  return sum;
}

// Rounding may leave a sum of squares a little below zero; a NaN stays one.
double norm(const LowRank& product) {
  const double squares = inner_product(product, product);
  return squares < 0 ? 0 : std::sqrt(squares);
}

LowRank difference_of(const load::ModuleFactors& a, const load::ModuleFactors& b) {
  LowRank difference;
  append(difference, a, a.scale, 1);
  append(difference, b, b.scale, a.rank == b.rank ? 1 : -1);
  if (a.rank != b.rank) return difference;
  const auto half_a = static_cast<size_t>(a.rank * a.in()), half_b = static_cast<size_t>(a.rank * a.out());
  for (size_t j = 0; j < half_a; ++j) difference.a[half_a + j] = difference.a[j] - difference.a[half_a + j];
  for (size_t i = 0; i < half_b; ++i) difference.bt[i] -= difference.bt[half_b + i];
  return difference;
}

}  // namespace

double UpdateNorms::cosine() const {
  return a > 0 && b > 0 ? inner / (a * b) : std::numeric_limits<double>::quiet_NaN();
}

UpdateNorms update_norms(const load::ModuleFactors* a, const load::ModuleFactors* b) {
  UpdateNorms norms;
  LowRank first, second;
  if (a != nullptr) append(first, *a, a->scale, 1), norms.a = norm(first);
  if (b != nullptr) append(second, *b, b->scale, 1), norms.b = norm(second);
  if (a == nullptr || b == nullptr) {
    norms.difference = a == nullptr ? norms.b : norms.a;
    return norms;
  }
  if (a->in() != b->in() || a->out() != b->out())
    throw ShapeError({.what = "two adapters are of models of other shapes",
                      .where = a->name,
                      .got = std::to_string(b->out()) + " x " + std::to_string(b->in()),
                      .wanted = std::to_string(a->out()) + " x " + std::to_string(a->in())});
  norms.inner = inner_product(first, second);
  norms.difference = norm(difference_of(*a, *b));
  return norms;
}

}  // namespace lockstep::commands
