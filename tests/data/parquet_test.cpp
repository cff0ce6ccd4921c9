#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "core/fs.h"
#include "data/dataset.h"
#include "data/parquet/convert.h"
#include "data/parquet/reader.h"
#include "support/temp_directory.h"

namespace lockstep::data {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

const fs::Path kGoldens = LOCKSTEP_SOURCE_DIR "/tests/golden/parquet";

std::vector<std::string> names_of_goldens() {
  std::vector<std::string> names;
  const Json errors = read_json((kGoldens / "errors.json").string());
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens))
    if (entry.path().extension() == ".parquet" && !errors.contains(entry.path().filename().string()))
      names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> expected_rows(const std::string& name) {
  const bool shared = name.starts_with("chat_") || name.starts_with("types_");
  std::istringstream lines(fs::read_file(kGoldens / ((shared ? name.substr(0, name.find('_')) : name) + ".jsonl")));
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(parse_ordered_json(line, name).dump());
  return rows;
}

std::string golden_bytes(const std::string& name) {
  return fs::read_file(kGoldens / (name + ".parquet"));
}

std::vector<std::string> all_rows(parquet::Reader& reader) {
  std::vector<std::string> rows;
  while (reader.position() < reader.num_rows()) rows.push_back(reader.next().dump());
  return rows;
}

class Goldens : public ::testing::TestWithParam<std::string> {};

TEST_P(Goldens, RowsAreThoseOfPyarrow) {
  const std::string bytes = golden_bytes(GetParam());
  parquet::Reader reader(bytes, GetParam());
  EXPECT_EQ(all_rows(reader), expected_rows(GetParam()));
}

TEST_P(Goldens, AFileIsReadAsItsBytesAre) {
  const fs::File file(kGoldens / (GetParam() + ".parquet"));
  parquet::Reader reader(ByteSource(file), GetParam());
  EXPECT_EQ(all_rows(reader), expected_rows(GetParam()));
}

TEST(Parquet, AFileThatIsTruncatedWhileItIsReadIsAnError) {
  const TempDirectory dir;
  const std::string bytes = golden_bytes("dictionary_too_large");
  const std::string path = (dir / "rows.parquet").string();
  for (const bool in_order : {true, false}) {
    dir.write("rows.parquet", bytes);
    Dataset data = Dataset::open(path, {.max_bad_rows = 5});
    std::filesystem::resize_file(path, 100);
    const auto read = [&] { return in_order ? data.rest().size() : data.row(data.size() - 1).line + size_t{0}; };
    expect_error<DataError>(read, {"changed while it was read", "rows.parquet"});
    EXPECT_EQ(data.bad_rows().size(), 0u);
  }
}

TEST_P(Goldens, AnyRowCanBeSought) {
  const std::string bytes = golden_bytes(GetParam());
  const std::vector<std::string> rows = expected_rows(GetParam());
  parquet::Reader reader(bytes, GetParam());
  std::mt19937 random(1);
  for (int i = 0; i < 20 && !rows.empty(); ++i) {
    const size_t row = random() % rows.size();
    reader.seek(static_cast<int64_t>(row));
    EXPECT_EQ(reader.next().dump(), rows[row]) << row;
  }
  reader.seek(reader.num_rows());
  EXPECT_EQ(reader.position(), reader.num_rows());
}

// A file that is cut off has no footer; one whose bytes changed reads otherwise or is refused, by an error of ours.
TEST_P(Goldens, DamageIsATypedError) {
  const std::string bytes = golden_bytes(GetParam());
  for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 40)
    EXPECT_THROW(parquet::Reader(std::string_view(bytes).substr(0, size), "f"), FormatError) << size;
  std::mt19937 random(2);
  for (int i = 0; i < 60; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] ^= static_cast<char>(1 << random() % 8);
    try {
      parquet::Reader reader(changed, "f");
      if (reader.num_rows() < 1000) all_rows(reader);
    } catch (const FormatError&) {
    } catch (const DataError&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parquet, Goldens, ::testing::ValuesIn(names_of_goldens()),
                         [](const auto& info) { return info.param; });

TEST(Parquet, FilesThatCannotBeReadSayWhy) {
  const Json errors = read_json((kGoldens / "errors.json").string());
  EXPECT_GE(errors.size(), 4u);
  for (const auto& [name, words] : errors.items()) {
    try {
      Dataset::open((kGoldens / name).string()).rest();
      ADD_FAILURE() << name << " was read";
    } catch (const FormatError& error) {
      for (const Json& word : words)
        EXPECT_NE(std::string(error.what()).find(word.get<std::string>()), std::string::npos) << error.what();
    }
  }
  expect_error<FormatError>([] { parquet::Reader("PAR1PAR1", "f"); },
                            {"damaged Parquet file", "8 bytes", "PAR1 at the end"});
  expect_error<FormatError>([] { parquet::Reader("PAR1\xff\xff\xff\x7fPAR1", "f"); }, {"a footer of 2147483647 bytes"});
  expect_error<DataError>([] { Dataset::open((kGoldens / "no_rows_in_a_group.parquet").string()); },
                          {"empty", "0 rows"});
}

// A list of 2^31 - 1 doubles in a footer of eight bytes: Thrift's own check of it overflows.
TEST(Parquet, CountsBeyondTheFooterAreRefused) {
  using namespace std::string_view_literals;
  for (const std::string_view footer : {"\x19\xf7\xff\xff\xff\xff\x07\0"sv, "\x19\xfc\xff\xff\xff\xff\x07\0"sv,
                                        "\x1b\xff\xff\xff\xff\x07\x77\0"sv, "\x18\xff\xff\xff\xff\x07\0\0"sv})
    expect_error<FormatError>([&] { parquet::read_metadata(footer, "f"); }, {"damaged Parquet footer"});
}

TEST(Parquet, AChecksumThatIsWrongIsSeen) {
  const std::string bytes = golden_bytes("old_repeated");
  const size_t place = bytes.find("\x01\0\0\0p");
  std::string changed = bytes;
  changed[bytes.find('p', 20)] = 'X';
  EXPECT_NE(changed, bytes) << place;
  parquet::Reader reader(changed, "f");
  expect_error<FormatError>([&] { all_rows(reader); }, {"damaged Parquet page", "column a", "a wrong checksum"});
}

TEST(Parquet, SchemaAsText) {
  const std::string bytes = golden_bytes("chat_none_v1");
  const parquet::Reader reader(bytes, "f");
  std::string text;
  for (const parquet::Node& field : reader.schema().fields) text += type_text(field, reader.schema()) + "; ";
  EXPECT_EQ(
      text,
      "int64; list<struct<role: string, content: string>>; list<struct<name: string, tags: list<string>>>; float; "
      "string; ");
}

TEST(Parquet, ANameThatIsNotUtf8IsRefused) {
  std::string bytes = golden_bytes("old_repeated");
  bytes[bytes.find("id", bytes.size() / 2) + 1] = '\xb2';
  expect_error<FormatError>([&] { parquet::Reader(bytes, "f"); }, {"a Parquet schema", "a name that is not UTF-8"});
}

// Parquet is read in order; any other order reads it once and keeps it as JSON Lines.
TEST(ParquetDataset, RowsInAnyOrderAndTheirPlaces) {
  const std::vector<std::string> want = expected_rows("chat_snappy_v1");
  const std::string path = (kGoldens / "chat_snappy_v1.parquet").string();
  Dataset data = Dataset::open(path + "@[2:-3]");
  EXPECT_EQ(data.size(), 35);
  EXPECT_EQ(data.row(0).json.dump(), want[2]);
  const Row row = data.row(30);
  EXPECT_EQ(row.json.dump(), want[32]);
  EXPECT_EQ(row.number, 30);
  EXPECT_EQ(data.where(row), path + " row 33");
  EXPECT_EQ(data.row(7).json.dump(), want[9]);
  EXPECT_EQ(data.next()->json.dump(), want[10]);
  data.rewind();
  EXPECT_EQ(data.rest().size(), 35u);
  expect_error<DataError>([&] { data.row(35); }, {"no such row", "35", "0 to 34"});
  // A format is told by the bytes.
  const TempDirectory dir;
  EXPECT_EQ(Dataset::open(dir.write("rows.jsonl", fs::read_file(path)).string()).size(), 40);
}

// JSON's integers are unsigned, Parquet's are as its column says.
TEST(ParquetDataset, ListsOfSignedIntegersAreTokens) {
  Dataset data = Dataset::open((kGoldens / "old_two_level_list.parquet").string());
  const Row row = data.row(0);
  EXPECT_EQ(token_field(data, row, "a", 100), row.json["a"].get<std::vector<int32_t>>());
  EXPECT_FALSE(row.json["a"].empty());
}

TEST(ParquetDataset, AValueThatIsNoTextIsABadRow) {
  std::string bytes = golden_bytes("old_list_of_structs");
  bytes[bytes.find("y", 30)] = '\xff';
  const TempDirectory dir;
  const std::string path = dir.write("bad.parquet", bytes).string();
  expect_error<DataError>([&] { Dataset::open(path).rest(); },
                          {"bad.parquet row 1", "column a.element.role", "not UTF-8"});
  for (const bool in_order : {true, false}) {
    Dataset data = Dataset::open(path, {.max_bad_rows = 1});
    if (!in_order) {
      EXPECT_EQ(data.row(3).json.dump(), R"({"a":[{"role":"z","n":9}]})");
    }
    data.rewind();
    EXPECT_EQ(data.rest().size(), 3u);
    ASSERT_EQ(data.bad_rows().size(), 1u);
    EXPECT_EQ(data.bad_rows()[0].place, path + " row 1");
    expect_error<DataError>([&] { data.row(0); }, {"row 1", "not UTF-8"});
    EXPECT_EQ(data.next()->number, 1);
  }
}

OrderedJson converted(parquet::Column column, std::string_view bytes) {
  std::string problem;
  const auto json = parquet::to_json(column, bytes, problem);
  return json ? *json : OrderedJson("problem: " + problem);
}

TEST(ParquetConvert, ValuesThatNoCalendarHas) {
  using Kind = parquet::Logical::Kind;
  using Unit = parquet::Logical::Unit;
  const auto le = [](int64_t value, size_t size) { return std::string(reinterpret_cast<const char*>(&value), size); };
  const parquet::Column date{.physical = parquet::Physical::int32, .logical = {.kind = Kind::date}};
  EXPECT_EQ(converted(date, le(-719162, 4)), "0001-01-01");
  EXPECT_EQ(converted(date, le(2932896, 4)), "9999-12-31");
  for (const int64_t day : {-719163L, 2932897L, -2147483648L, 2147483647L})
    EXPECT_EQ(converted(date, le(day, 4)), "problem: a date outside the years 1 to 9999");
  parquet::Column time{.physical = parquet::Physical::int64, .logical = {.kind = Kind::timestamp, .unit = Unit::nanos}};
  EXPECT_EQ(converted(time, le(-1, 8)), "1969-12-31T23:59:59.999999999");
  EXPECT_EQ(converted(time, le(INT64_MIN, 8)), "1677-09-21T00:12:43.145224192");
  time.logical = {.kind = Kind::timestamp, .unit = Unit::millis, .utc = true};
  EXPECT_EQ(converted(time, le(1500, 8)), "1970-01-01T00:00:01.500000+00:00");
  EXPECT_EQ(converted(time, le(INT64_MIN, 8)), "problem: a date outside the years 1 to 9999");
  time.logical = {.kind = Kind::time, .unit = Unit::micros};
  EXPECT_EQ(converted(time, le(86'400'000'000 - 1, 8)), "23:59:59.999999");
  for (const int64_t bad : {86'400'000'000, int64_t{-1}})
    EXPECT_EQ(converted(time, le(bad, 8)), "problem: a time outside the day");
}

TEST(ParquetConvert, DecimalsAreExact) {
  parquet::Column decimal{.physical = parquet::Physical::byte_array,
                          .logical = {.kind = parquet::Logical::Kind::decimal, .scale = 2}};
  using namespace std::string_view_literals;
  EXPECT_EQ(converted(decimal, "\x00"sv), "0.00");
  EXPECT_EQ(converted(decimal, ""sv), "0.00");
  EXPECT_EQ(converted(decimal, "\xff"sv), "-0.01");
  EXPECT_EQ(converted(decimal, "\x80"sv), "-1.28");
  EXPECT_EQ(converted(decimal, "\x01\x00"sv), "2.56");
  EXPECT_EQ(converted(decimal, "\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"sv),
            "1701411834604692317316873037158841057.27");
  decimal.logical.scale = 0;
  EXPECT_EQ(converted(decimal, "\xff\x00"sv), "-256");
}

TEST(ParquetConvert, BytesAreBase64) {
  const parquet::Column binary{.physical = parquet::Physical::byte_array};
  EXPECT_EQ(converted(binary, ""), "");
  EXPECT_EQ(converted(binary, "f"), "Zg==");
  EXPECT_EQ(converted(binary, "fo"), "Zm8=");
  EXPECT_EQ(converted(binary, "foo"), "Zm9v");
  EXPECT_EQ(converted(binary, "\xff\xfe\xfd"), "//79");
}

}  // namespace
}  // namespace lockstep::data
