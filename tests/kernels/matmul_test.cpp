#include "kernels/matmul.h"

#include "kernels/matmul_testing.h"

namespace lockstep::kernels::testing {
namespace {

struct Size {
  int64_t m, n, k;
};
// Ranks on either side, ragged edges, depth 1, several depth blocks, rows a power of two apart.
const Size kSizes[] = {{1, 16, 576},  {1, 8, 1100}, {3, 70, 1},     {16, 16, 16}, {29, 8, 75},  {33, 100, 16},
                       {100, 16, 70}, {5, 1, 1},    {17, 33, 2048}, {40, 256, 9}, {7, 300, 31}, {31, 47, 600}};

enum class Form { plain, transposed, outer };

// Operands of one matmul c [m, n], depth k, as the form stores them; `extra` floats between rows.
struct Operands {
  Matrix a, b, c;
  Operands(Form form, const Size& s, int64_t extra = 0)
      : a(form == Form::outer ? random(s.k, s.m, 1, extra) : random(s.m, s.k, 1, extra)),
        b(form == Form::transposed ? random(s.n, s.k, 2, extra) : random(s.k, s.n, 2, extra)),
        c(random(s.m, s.n, 3, extra)) {}
  static Matrix random(int64_t rows, int64_t cols, uint64_t seed, int64_t extra) {
    return Matrix::random(rows, cols, seed, 1.0f, cols + extra);
  }
};

void run(Form form, Operands& o, float scale, bool accumulate, Stream& stream) {
  if (form == Form::plain) matmul(o.c.tensor(), o.a.tensor(), o.b.tensor(), scale, accumulate, stream);
  if (form == Form::transposed) matmul_transposed(o.c.tensor(), o.a.tensor(), o.b.tensor(), scale, accumulate, stream);
  if (form == Form::outer) outer_accumulate(o.c.tensor(), o.a.tensor(), o.b.tensor(), scale, stream);
}

std::vector<float> expected(Form form, Operands& o, const Size& s, float scale, bool accumulate) {
  std::vector<float> out;
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j)
      out.push_back(chain(
          accumulate ? o.c.at(i, j) : 0.0f, s.k,
          [&](int64_t k) { return scale * (form == Form::outer ? o.a.at(k, i) : o.a.at(i, k)); },
          [&](int64_t k) { return form == Form::transposed ? o.b.at(j, k) : o.b.at(k, j); }));
  return out;
}

class Matmul : public ::testing::TestWithParam<Form> {};

TEST_P(Matmul, IsTheChain) {
  Stream stream({.threads = 2});
  for (const Size& s : kSizes)
    for (float scale : {1.0f, 0.7f})
      for (bool accumulate : {true, false}) {
        if (GetParam() == Form::outer && !accumulate) continue;
        Operands o(GetParam(), s, scale == 1 ? 0 : 5);
        const std::vector<float> wanted = expected(GetParam(), o, s, scale, accumulate);
        const std::vector<float> before = o.c.values();
        run(GetParam(), o, scale, accumulate, stream);
        ASSERT_TRUE(same_bits(contents(o.c), wanted))
            << s.m << " x " << s.n << " x " << s.k << " scale " << scale << " accumulate " << accumulate;
        if (scale != 1) {
          const auto gap = static_cast<size_t>(s.n);
          ASSERT_TRUE(same_bits({o.c.values().data() + gap, 5}, {before.data() + gap, 5}))
              << "a row's neighbour was written";
        }
      }
}

TEST_P(Matmul, EveryNumberOfRows) {
  Stream stream({.threads = 2});
  for (int64_t m = 1; m <= 33; ++m) {
    const Size s{m, 24, 40};
    Operands o(GetParam(), s);
    const std::vector<float> wanted = expected(GetParam(), o, s, 1, true);
    run(GetParam(), o, 1, true, stream);
    ASSERT_TRUE(same_bits(contents(o.c), wanted)) << m << " rows";
  }
}

TEST_P(Matmul, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([&](Stream& stream) {
    std::vector<float> all;
    for (const Size& s : {Size{300, 16, 576}, Size{300, 576, 16}, Size{16, 600, 300}, Size{600, 16, 300}}) {
      Operands o(GetParam(), s);
      run(GetParam(), o, 0.5f, true, stream);
      const std::vector<float> c = contents(o.c);
      all.insert(all.end(), c.begin(), c.end());
    }
    return all;
  });
}

std::string form_name(const ::testing::TestParamInfo<Form>& info) {
  const char* const names[] = {"plain", "transposed", "outer"};
  return names[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Forms, Matmul, ::testing::Values(Form::plain, Form::transposed, Form::outer), form_name);

// Gradients of two halves of a batch, one after the other, are the gradient of the batch.
TEST(OuterAccumulate, CallsContinueOneChain) {
  Stream stream({.threads = 2});
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{16, 100}, {100, 16}, {100, 8}}) {
    const Size s{rows, cols, 90};
    Operands whole(Form::outer, s), halves(Form::outer, s);
    run(Form::outer, whole, 2.5f, true, stream);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 37}, {37, 37}, {37, 90}})
      outer_accumulate(halves.c.tensor(), halves.a.tensor().rows(begin, end), halves.b.tensor().rows(begin, end), 2.5f,
                       stream);
    EXPECT_TRUE(same_bits(contents(halves.c), contents(whole.c))) << rows << " x " << cols;
  }
}

TEST(MatmulErrors, WrongShapes) {
  Stream stream({.threads = 1});
  Matrix a(3, 8), b(8, 5), bt(5, 8), c(3, 5), g(8, 5), b3(3, 5);
  EXPECT_THROW(matmul(c.tensor(), a.tensor(), bt.tensor(), 1, false, stream), ShapeError);
  EXPECT_THROW(matmul(g.tensor(), a.tensor(), b.tensor(), 1, false, stream), ShapeError);
  EXPECT_THROW(matmul(c.tensor(), a.flat(), b.tensor(), 1, false, stream), ShapeError);
  EXPECT_THROW(matmul_transposed(c.tensor(), a.tensor(), b.tensor(), 1, false, stream), ShapeError);
  EXPECT_THROW(outer_accumulate(c.tensor(), a.tensor(), b3.tensor(), 1, stream), ShapeError);
  EXPECT_THROW(outer_accumulate(g.tensor(), a.tensor(), b.tensor(), 1, stream), ShapeError);
  EXPECT_NO_THROW(outer_accumulate(g.tensor(), a.tensor(), b3.tensor(), 1, stream));
  EXPECT_THROW(matmul(c.tensor(), ConstTensor(a.values().data(), DType::f16, {3, 8}), b.tensor(), 1, false, stream),
               DTypeError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
