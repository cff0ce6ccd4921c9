#include "kernels/pack.h"

#include "core/fs.h"
#include "kernels/matmul_testing.h"
#include "support/temp_directory.h"

namespace lockstep::kernels::testing {
namespace {

constexpr DType kStorageTypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(Pack, PanelsHoldThirtyTwoRowsSideBySideAndZerosPastTheLast) {
  Stream stream({.threads = 2});
  const StoredWeight w(70, 45, DType::f32, 1);
  const PackedWeight packed = pack(w, stream);
  ASSERT_EQ(packed.panels.bytes(), 96u * 45 * 4);
  for (int64_t n = 0; n < 96; ++n)
    for (int64_t k = 0; k < 45; ++k)
      ASSERT_EQ(packed.panels.f32()[(n / 32 * 45 + k) * 32 + n % 32], n < 70 ? w.at(n, k) : 0.0f) << n << " " << k;
}

TEST(Pack, UnpackedRowsAreThePackedBytes) {
  Stream stream({.threads = 2});
  for (DType dtype : kStorageTypes) {
    StoredWeight w(75, 67, dtype, 2);
    // A signalling NaN and a negative zero travel untouched.
    if (dtype == DType::f32)
      w.words[5] = 0x7f800001u, w.words[6] = 0x80000000u;
    else
      w.halves[5] = 0x7c01u, w.halves[6] = 0x8000u;
    const PackedWeight packed = pack(w, stream);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 75}, {31, 66}, {40, 41}, {64, 75}, {3, 3}}) {
      const int64_t bytes = (end - begin) * 67 * dtype_bytes(dtype);
      std::vector<char> out(static_cast<size_t>(bytes) + 1, 'x');
      unpack_rows(Tensor(out.data(), dtype, {end - begin, 67}), packed, begin, end, stream);
      EXPECT_EQ(std::memcmp(out.data(), static_cast<const char*>(w.data()) + begin * 67 * dtype_bytes(dtype),
                            static_cast<size_t>(bytes)),
                0)
          << dtype_name(dtype) << " rows " << begin << " to " << end;
      EXPECT_EQ(out.back(), 'x');
    }
  }
}

TEST(Pack, StackedPartsAreOneWeight) {
  Stream stream({.threads = 2});
  for (DType dtype : kStorageTypes) {
    const StoredWeight w(90, 33, dtype, 3);
    const auto part = [&](int64_t begin, int64_t end) { return w.tensor().rows(begin, end); };
    const ConstTensor parts[] = {part(0, 41), part(41, 42), part(42, 90)};
    const PackedWeight whole = pack(w, stream), stacked = pack_weight(parts, stream);
    ASSERT_EQ(stacked.rows, 90);
    ASSERT_EQ(stacked.panels.bytes(), whole.panels.bytes());
    EXPECT_EQ(std::memcmp(stacked.panels.data(), whole.panels.data(), whole.panels.bytes()), 0);
  }
}

// Parts that begin anywhere in a file, beside one in memory.
TEST(Pack, PartsInFilesAreTheSameWeight) {
  const lockstep::testing::TempDirectory dir;
  for (DType dtype : kStorageTypes)
    for (int threads : {1, 3}) {
      Stream stream({.threads = threads});
      const StoredWeight w(170, 33, dtype, 3);
      const auto row_bytes = static_cast<size_t>(33 * dtype_bytes(dtype));
      const fs::Path path =
          dir.write("weights", "odd" + std::string(static_cast<const char*>(w.data()), 170 * row_bytes));
      const fs::File file(path);
      std::vector<NamedTensor> parts;
      std::vector<const NamedTensor*> pointers;
      int64_t begin = 0;
      for (const int64_t end : {41, 42, 130, 170}) {
        NamedTensor part{"part", w.tensor().rows(begin, end)};
        if (end != 130)
          part.tensor.data = nullptr, part.file = &file, part.place = 3 + static_cast<size_t>(begin) * row_bytes;
        parts.push_back(part);
        begin = end;
      }
      for (const NamedTensor& part : parts) pointers.push_back(&part);
      const WeightFormat format = plain_format(dtype, Device::cpu);
      const PackedWeight whole = pack(w, stream), stacked = pack_weight(pointers, format, stream);
      ASSERT_EQ(stacked.panels.bytes(), whole.panels.bytes());
      EXPECT_EQ(std::memcmp(stacked.panels.data(), whole.panels.data(), whole.panels.bytes()), 0) << dtype_name(dtype);

      std::filesystem::resize_file(path, 3 + 169 * row_bytes);
      lockstep::testing::expect_error<DataError>([&] { pack_weight(pointers, format, stream); },
                                                 {"weights", "changed"});
    }
}

TEST(Pack, GatherWidensTheRowsAskedFor) {
  for (DType dtype : kStorageTypes)
    for (int threads : {1, 3}) {
      Stream stream({.threads = threads});
      const StoredWeight w(70, 45, dtype, 4);
      const PackedWeight packed = pack(w, stream);
      std::vector<int32_t> ids;
      for (int32_t t = 0; t < 29; ++t) ids.push_back(t * 37 % 70);
      Matrix y(29, 45, 50);
      embedding_gather(y.tensor(), packed, ids, stream);
      for (int64_t t = 0; t < 29; ++t)
        for (int64_t k = 0; k < 45; ++k)
          ASSERT_EQ(y.at(t, k), w.at(ids[static_cast<size_t>(t)], k)) << dtype_name(dtype) << " " << t << " " << k;
      EXPECT_EQ(y.values()[45], -77.0f) << "a row's neighbour was written";
    }
}

TEST(Pack, AnIdOutsideTheVocabularyIsNamed) {
  Stream stream({.threads = 1});
  const PackedWeight packed = pack(StoredWeight(40, 8, DType::bf16, 5), stream);
  Matrix y(3, 8);
  for (int32_t bad : {40, -1}) {
    const std::vector<int32_t> ids = {39, bad, 99};
    try {
      embedding_gather(y.tensor(), packed, ids, stream);
      FAIL() << bad;
    } catch (const DataError& error) {
      EXPECT_EQ(error.fault().got, std::to_string(bad));
      EXPECT_EQ(error.fault().where, "position 1");
      EXPECT_EQ(error.fault().wanted, "0 to 39");
    }
  }
}

TEST(Pack, WrongShapesAndTypesAreErrors) {
  Stream stream({.threads = 1});
  const StoredWeight a(8, 4, DType::bf16, 6), b(8, 5, DType::bf16, 6), c(8, 4, DType::f16, 6);
  const auto stack = [&](std::vector<ConstTensor> parts) { return pack_weight(parts, stream); };
  EXPECT_THROW(stack({}), ShapeError);
  EXPECT_THROW(stack({a.tensor(), b.tensor()}), ShapeError);
  EXPECT_THROW(stack({ConstTensor(a.data(), DType::bf16, {32})}), ShapeError);
  EXPECT_THROW(stack({a.tensor(), c.tensor()}), DTypeError);
  EXPECT_THROW(stack({ConstTensor(a.data(), DType::i32, {2, 4})}), DTypeError);

  const NamedTensor named{"a", a.tensor()};
  const NamedTensor* const part = &named;
  lockstep::testing::expect_error<DTypeError>(
      [&] {
        pack_weight({&part, 1}, WeightFormat::f32, stream);
      },
      {"bf16 in f32"});

  const PackedWeight packed = pack(a, stream);
  std::vector<uint16_t> out(64);
  const auto unpack = [&](DType dtype, int64_t rows, int64_t depth, int64_t begin, int64_t end) {
    unpack_rows(Tensor(out.data(), dtype, {rows, depth}), packed, begin, end, stream);
  };
  EXPECT_NO_THROW(unpack(DType::bf16, 2, 4, 6, 8));
  EXPECT_THROW(unpack(DType::bf16, 2, 4, 7, 9), ShapeError);
  EXPECT_THROW(unpack(DType::bf16, 2, 4, -1, 1), ShapeError);
  EXPECT_THROW(unpack(DType::bf16, 3, 4, 6, 8), ShapeError);
  EXPECT_THROW(unpack(DType::bf16, 2, 5, 6, 8), ShapeError);
  EXPECT_THROW(unpack(DType::f16, 2, 4, 6, 8), DTypeError);

  Matrix y(2, 5);
  const std::vector<int32_t> ids = {0, 1};
  EXPECT_THROW(embedding_gather(y.tensor(), packed, ids, stream), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
