#include "checkpoint/base_fingerprint.h"

#include <chrono>
#include <numeric>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/hash.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

const float kValues[8] = {1, 2, 3, 4, 5, 6, 7, 8};
const ConstTensor kTwo(kValues, DType::f32, {2});
const ConstTensor kMatrix(kValues, DType::f32, {2, 4});

std::string fingerprint_of(const NamedTensors& tensors) {
  Stream stream({.threads = 2});
  return weights_fingerprint(tensors, stream);
}

std::string cached_fingerprint(const fs::Path& model, const fs::Path& cache) {
  HfDirectory directory(model);
  directory.open_weights();
  Stream stream({.threads = 2});
  return cached_weights_fingerprint(directory, cache, stream);
}

std::string digest(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}
std::string digest(const void* memory, size_t bytes) {
  return digest({static_cast<const char*>(memory), bytes});
}

// config.json and two shards: a, c in the first, b in the second.
void write_sharded(const TempDirectory& dir) {
  dir.write("config.json", R"({"model_type":"llama"})");
  dir.write("one.safetensors", safetensors_bytes({{"a", kTwo}, {"c", kMatrix}}, {}));
  dir.write("two.safetensors", safetensors_bytes({{"b", kTwo}}, {}));
  const Json places = {{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}};
  dir.write("model.safetensors.index.json", Json({{"weight_map", places}}).dump());
}

TEST(BaseFingerprint, IsOfTheWeightsAndTheConfig) {
  const std::string weights(64, 'a');
  EXPECT_EQ(base_fingerprint(weights, "width 8\n"), digest("base\n" + weights + "\nwidth 8\n"));
  EXPECT_NE(base_fingerprint(weights, "width 8\n"), base_fingerprint(weights, "width 9\n"));
  EXPECT_NE(base_fingerprint(weights, ""), base_fingerprint(std::string(64, 'b'), ""));
  EXPECT_NE(base_fingerprint(weights, ""), weights) << "an older build's fingerprint is told apart";
}

TEST(WeightsFingerprint, IsTheHashOfTheDescribedBytes) {
  std::string bytes(
      "a\0f32\0"
      "2\0",
      8);
  bytes += digest(kValues, 8);
  bytes.append(
      "c\0f32\0"
      "2,4\0",
      10);
  bytes += digest(kValues, 32);
  EXPECT_EQ(fingerprint_of({{"a", kTwo}, {"c", kMatrix}}), digest(bytes));
  const ConstTensor none(kValues, DType::f32, {0, 4});
  EXPECT_EQ(fingerprint_of({{"e", none}}), digest({"e\0f32\0"
                                                   "0,4\0",
                                                   10}))
      << "no bytes, no piece";
}

TEST(WeightsFingerprint, LargeTensorsAreHashedInPiecesByAnyNumberOfThreads) {
  constexpr int64_t kPiece = int64_t{64} << 20;
  std::vector<int32_t> values((kPiece + kPiece / 2) / 4);
  std::iota(values.begin(), values.end(), 7);
  const auto first = static_cast<int64_t>(values.size());
  const ConstTensor large(values.data(), DType::i32, {first}), whole(values.data(), DType::i32, {kPiece / 4});
  const std::string bytes = std::string("l\0i32\0", 6) + std::to_string(first) + '\0' + digest(values.data(), kPiece) +
                            digest(values.data() + kPiece / 4, kPiece / 2) + std::string("w\0i32\0", 6) +
                            std::to_string(kPiece / 4) + '\0' + digest(values.data(), kPiece);
  for (const int threads : {1, 2, 3}) {
    Stream stream({.threads = threads});
    EXPECT_EQ(weights_fingerprint({{"l", large}, {"w", whole}}, stream), digest(bytes)) << threads << " threads";
  }
}

TEST(WeightsFingerprint, RowsThatLieApartAreRefused) {
  Tensor matrix(const_cast<float*>(kValues), DType::f32, {2, 4});
  expect_error<ShapeError>([&] { fingerprint_of({{"half", matrix.cols(0, 2)}}); }, {"half", "4 apart"});
}

TEST(WeightsFingerprint, EveryPartCountsShardingDoesNot) {
  const std::string base = fingerprint_of({{"a", kTwo}, {"b", kTwo}, {"c", kMatrix}});
  EXPECT_NE(base, fingerprint_of({{"a", kTwo}, {"b", kTwo}, {"d", kMatrix}}));
  EXPECT_NE(base, fingerprint_of({{"a", kTwo}, {"b", kTwo}, {"c", ConstTensor(kValues, DType::f32, {4, 2})}}));
  EXPECT_NE(base, fingerprint_of({{"a", kTwo}, {"b", kTwo}, {"c", ConstTensor(kValues, DType::i32, {2, 4})}}));
  EXPECT_NE(base, fingerprint_of({{"a", kTwo}, {"b", ConstTensor(kValues + 1, DType::f32, {2})}, {"c", kMatrix}}));
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory sharded(dir.path());
  sharded.open_weights();
  EXPECT_EQ(fingerprint_of(sharded.tensors()), base);
}

TEST(WeightsFingerprint, AFileThatIsCutWhileItIsHashedIsAnError) {
  const TempDirectory dir;
  write_sharded(dir);
  HfDirectory directory(dir.path());
  directory.open_weights();
  std::filesystem::resize_file(dir / "one.safetensors", 100);
  expect_error<DataError>([&] { fingerprint_of(directory.tensors()); }, {"one.safetensors", "changed", "100 bytes"});
}

TEST(CachedWeightsFingerprint, RecomputesWhenStaleOrDamaged) {
  const TempDirectory dir, home;
  write_sharded(dir);
  const fs::Path cache = home / "sub/fingerprints.json";
  const auto fingerprint = [&] { return cached_fingerprint(dir.path(), cache); };
  const std::string first = fingerprint();
  EXPECT_EQ(first, fingerprint_of({{"a", kTwo}, {"b", kTwo}, {"c", kMatrix}}));

  // A planted entry shows that the cache is used; a changed file that it is not believed for ever.
  Json planted = read_json(cache.string());
  planted.begin().value()["fingerprint"] = std::string(64, '0');
  fs::write_file_atomic(cache, planted.dump());
  EXPECT_EQ(fingerprint(), std::string(64, '0'));
  std::filesystem::last_write_time(dir / "two.safetensors",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(fingerprint(), first);
  dir.write("two.safetensors", safetensors_bytes({{"b", ConstTensor(kValues, DType::f32, {1, 2})}}, {}));
  EXPECT_NE(fingerprint(), first);
  write_sharded(dir);

  const std::string good = fs::read_file(cache);
  for (const std::string& damaged : {std::string("{"), std::string(), std::string("[1]"),
                                     good.substr(0, good.size() / 2), Json({{planted.begin().key(), 7}}).dump()}) {
    fs::write_file_atomic(cache, damaged);
    EXPECT_EQ(fingerprint(), first) << damaged;
  }
}

// Builds of another time keep values of their own definition there, under the path alone.
TEST(CachedWeightsFingerprint, ValuesOfAnotherDefinitionAreNotTaken) {
  const TempDirectory dir, home;
  write_sharded(dir);
  const fs::Path cache = home / "fingerprints.json";
  const std::string first = cached_fingerprint(dir.path(), cache);
  Json entries = read_json(cache.string());
  Json other = entries.begin().value();
  other["fingerprint"] = std::string(64, '0');
  entries = {{std::filesystem::canonical(dir.path()).string(), other}};
  fs::write_file_atomic(cache, entries.dump());
  EXPECT_EQ(cached_fingerprint(dir.path(), cache), first);
  entries = read_json(cache.string());
  EXPECT_EQ(entries.size(), 2u) << "and both stay";
}

TEST(CachedWeightsFingerprint, AnUnwritableCacheIsNoError) {
  const TempDirectory dir;
  write_sharded(dir);
  EXPECT_EQ(cached_fingerprint(dir.path(), "/dev/null/cache.json"),
            fingerprint_of({{"a", kTwo}, {"b", kTwo}, {"c", kMatrix}}));
}

TEST(CachedWeightsFingerprint, ManyModelsShareOneFile) {
  const TempDirectory a, b, home;
  write_sharded(a);
  b.write("config.json", "{}");
  b.write("model.safetensors", safetensors_bytes({{"x", kTwo}}, {}));
  for (const TempDirectory* dir : {&a, &b, &a}) {
    HfDirectory directory(dir->path());
    directory.open_weights();
    EXPECT_EQ(cached_fingerprint(dir->path(), home / "f.json"), fingerprint_of(directory.tensors()));
  }
  EXPECT_EQ(read_json((home / "f.json").string()).size(), 2u);
}

}  // namespace
}  // namespace lockstep::checkpoint
