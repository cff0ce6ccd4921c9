#include "checkpoint/safetensors.h"

#include <cstring>
#include <random>

#include "core/error.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

std::string file_bytes(std::string_view header, std::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 255);
  return bytes.append(header).append(data);
}

std::string small_file() {
  static const float values[6] = {1, 2, 3, 4, 5, 6};
  static const uint16_t halves[3] = {0x3f80, 0x4000, 0xbf80};
  static const uint8_t bytes[1] = {7};
  return safetensors_bytes({{"a.weight", ConstTensor(values, DType::f32, {2, 3})},
                            {"b", ConstTensor(halves, DType::bf16, {3})},
                            {"c", ConstTensor(bytes, DType::u8, {1, 1})}},
                           {{"format", "pt"}});
}

TEST(Safetensors, RoundTrip) {
  const TempDirectory dir;
  const SafetensorsFile file(dir.write("x.safetensors", small_file()));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  const ConstTensor* a = file.find("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(shape_text(*a), "f32 [2, 3]");
  EXPECT_EQ(a->row(1)[2], 6);
  EXPECT_EQ(static_cast<const uint16_t*>(file.find("b")->data)[2], 0xbf80);
  EXPECT_EQ(static_cast<const uint8_t*>(file.find("c")->data)[0], 7);
  EXPECT_EQ(file.find("absent"), nullptr);
}

// The goldens were written by the reference library.
TEST(Safetensors, WritesTheBytesOfTheReferenceWriter) {
  const fs::Path goldens = fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/golden";
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(goldens)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    if (file.metadata().size() > 1) continue;  // the reference writes several entries in no fixed order
    EXPECT_EQ(safetensors_bytes(file.tensors(), file.metadata()) == fs::read_file(entry.path()), true) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 5);
}

TEST(Safetensors, WriterOrdersByWidthThenNameAndPads) {
  static const uint8_t memory[64] = {};
  NamedTensors tensors;
  for (const char* prefix : {"b", "a"})
    for (DType dtype : {DType::u8, DType::f16, DType::bf16, DType::i32, DType::f32, DType::f64, DType::i64})
      tensors.push_back({std::string(prefix) + dtype_name(dtype), ConstTensor(memory, dtype, {1})});
  const TempDirectory dir;
  const std::string bytes = safetensors_bytes(tensors, {});
  const SafetensorsFile file(dir.write("x", bytes));
  std::string order;
  for (const NamedTensor& tensor : file.tensors()) order += tensor.name + " ";
  EXPECT_EQ(order, "ai64 bi64 af64 bf64 af32 bf32 ai32 bi32 abf16 bbf16 af16 bf16 au8 bu8 ");
  EXPECT_EQ(static_cast<uint8_t>(bytes[0]) % 8, 0);
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, WriterTakesRowsOfAWiderMatrix) {
  const float values[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const ConstTensor wide(values, DType::f32, {3, 4});
  const TempDirectory dir;
  const SafetensorsFile file(dir.write("x", safetensors_bytes({{"x", wide.cols(1, 3)}}, {})));
  const float wanted[6] = {1, 2, 5, 6, 9, 10};
  EXPECT_EQ(std::memcmp(file.find("x")->data, wanted, sizeof(wanted)), 0);
}

TEST(Safetensors, WriterRefusesWhatCannotBeRead) {
  const float value = 1;
  const ConstTensor one(&value, DType::f32, {1});
  EXPECT_THROW(safetensors_bytes({{"x", one}, {"x", one}}, {}), FormatError);
  EXPECT_THROW(safetensors_bytes({{"x", ConstTensor()}}, {}), FormatError);
  EXPECT_THROW(safetensors_bytes({{"__metadata__", one}}, {{"a", "b"}}), FormatError);
}

TEST(Safetensors, EmptyFilesScalarsAndZeroSizes) {
  const TempDirectory dir;
  EXPECT_TRUE(SafetensorsFile(dir.write("none", file_bytes("{}", ""))).tensors().empty());
  const SafetensorsFile file(dir.write(
      "x",
      file_bytes(
          R"({"z":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
          std::string(4, '\0'))));
  EXPECT_EQ(shape_text(*file.find("s")), "f32 [1]");
  EXPECT_EQ(file.find("z")->elements(), 0);
}

TEST(Safetensors, TensorsAtOddAddressesAreRealigned) {
  const TempDirectory dir;
  const float value = 2.5f;
  std::string data = "x";
  data.append(reinterpret_cast<const char*>(&value), 4);
  const SafetensorsFile file(dir.write(
      "x",
      file_bytes(
          R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
          data)));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.find("f")->data) % 4, 0u);
  EXPECT_EQ(file.find("f")->f32()[0], 2.5f);
}

TEST(Safetensors, BadHeaders) {
  const TempDirectory dir;
  const auto tensor = [](const char* fields) { return "{\"name.w\":" + std::string(fields) + "}"; };
  const auto expect_bad = [&](const std::string& bytes, std::initializer_list<const char*> parts) {
    const fs::Path path = dir.write("bad.safetensors", bytes);
    expect_error<FormatError>([&] { SafetensorsFile file(path); }, {"bad.safetensors"});
    expect_error<FormatError>([&] { SafetensorsFile file(path); }, parts);
  };
  expect_bad("", {"0 bytes"});
  expect_bad("1234567", {"7 bytes"});
  expect_bad(file_bytes("{}", "x"), {"do not fill"});
  expect_bad(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), {"header length"});
  expect_bad(std::string("\x03\0\0\0\0\0\0\0{}", 10), {"header length"});
  expect_bad(file_bytes(" {}", ""), {"no { at its start"});
  expect_bad(file_bytes("[]", ""), {"no { at its start"});
  expect_bad(file_bytes("{\"\xff\":1}", ""), {"invalid JSON"});
  expect_bad(file_bytes(tensor("3"), ""), {"name.w", "an object"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1]})"), "1234"), {"name.w", "data_offsets"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), "1234"),
             {"name.w", "shape", "-1"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), "1234"), {"name.w", "1.0"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})"), "1234"), {"name.w", "a list"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), "1234"),
             {"name.w", "data_offsets"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), "1234"),
             {"name.w", "data_offsets"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,5]})"), "12345"),
             {"name.w", "5 bytes", "4 bytes"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})"), "12345"), {"name.w", "hole"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "12345"), {"do not fill"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "123"), {"do not fill"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4]})"), "1234"),
             {"name.w", "at most 4"});
  expect_bad(file_bytes(tensor(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]})"), ""),
             {"name.w", "impossibly large"});
  expect_bad(file_bytes(tensor(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]})"), ""),
             {"name.w"});
  expect_bad(file_bytes(R"({"__metadata__":{"a":1}})", ""), {"__metadata__", "a string"});
  expect_bad(file_bytes(R"({"__metadata__":[]})", ""), {"__metadata__", "an object"});
  const std::string one = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_bad(file_bytes("{" + one + "," + one + "}", "x"), {"twice", "\"t\""});
  expect_bad(
      file_bytes(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          "xyz"),
      {"overlaps", "b"});
}

TEST(Safetensors, OtherDtypesAreNamed) {
  const TempDirectory dir;
  for (const char* dtype : {"BOOL", "I8", "F8_E4M3", "U16", "I16", "U32", "U64", "C64", "f32", ""}) {
    const std::string header =
        std::string(R"({"name.w":{"dtype":")") + dtype + R"(","shape":[1],"data_offsets":[0,8]}})";
    expect_error<FormatError>([&] { SafetensorsFile file(dir.write("x", file_bytes(header, "12345678"))); },
                              {"name.w", dtype, "F32, BF16"});
  }
}

// Anything goes but a crash: a typed error, or tensors whose every byte can be read.
void open_and_touch(const fs::Path& path, int64_t* parsed) {
  try {
    const SafetensorsFile file(path);
    ++*parsed;
    uint64_t sum = 0;
    for (const NamedTensor& named : file.tensors())
      for (int64_t i = 0; i < named.tensor.elements() * dtype_bytes(named.tensor.dtype); ++i)
        sum += static_cast<const uint8_t*>(named.tensor.data)[i];
    EXPECT_LT(sum, uint64_t{1} << 40);
  } catch (const FormatError&) {
  }
}

TEST(Safetensors, EveryTruncationIsAFormatError) {
  const TempDirectory dir;
  const std::string whole = small_file();
  int64_t parsed = 0;
  for (size_t size = 0; size < whole.size(); ++size) open_and_touch(dir.write("x", whole.substr(0, size)), &parsed);
  EXPECT_EQ(parsed, 0);
  open_and_touch(dir.write("x", whole), &parsed);
  EXPECT_EQ(parsed, 1);
}

TEST(Safetensors, EveryBitFlipIsAFormatErrorOrAValidFile) {
  const TempDirectory dir;
  const std::string whole = small_file();
  const size_t data_bytes = 6 * 4 + 3 * 2 + 1;
  int64_t parsed = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    open_and_touch(dir.write("x", flipped), &parsed);
  }
  EXPECT_GE(parsed, static_cast<int64_t>(data_bytes * 8)) << "a flip in the data itself cannot be seen here";
  EXPECT_LT(parsed, static_cast<int64_t>(whole.size() * 8));
}

TEST(Safetensors, RandomDamage) {
  const TempDirectory dir;
  const std::string whole = small_file();
  std::mt19937 random(7);
  int64_t parsed = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole;
    for (uint32_t change = 0; change <= random() % 4; ++change) {
      const size_t place = random() % damaged.size();
      switch (random() % 3) {
        case 0: damaged[place] = static_cast<char>(random()); break;
        case 1: damaged.erase(place, 1 + random() % 9); break;
        default: damaged.insert(place, damaged.substr(random() % damaged.size(), random() % 9)); break;
      }
    }
    open_and_touch(dir.write("x", damaged), &parsed);
  }
  EXPECT_LT(parsed, 3000);
}

}  // namespace
}  // namespace lockstep::checkpoint
