#include "data/dataset.h"

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::data {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

class DatasetTest : public ::testing::Test {
 protected:
  Dataset read(std::string_view bytes, const std::string& slice = "", int64_t max_bad_rows = 0) {
    return Dataset::open(dir_.write("rows.jsonl", bytes).string() + slice, {.max_bad_rows = max_bad_rows});
  }
  void read_all(std::string_view bytes, const std::string& slice = "") { read(bytes, slice).rest(); }
  std::vector<int64_t> slice_of_five(const std::string& slice) {
    std::vector<int64_t> numbers;
    Dataset data = read("{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n{\"n\":4}\n", slice);
    while (const auto row = data.next()) numbers.push_back(row->json.at("n"));
    EXPECT_EQ(data.size(), static_cast<int64_t>(numbers.size()));
    for (int64_t i = data.size(); i-- > 0;) EXPECT_EQ(data.row(i).json.at("n"), numbers[static_cast<size_t>(i)]);
    return numbers;
  }
  TempDirectory dir_;
};

using Numbers = std::vector<int64_t>;

TEST_F(DatasetTest, RowsAndTheirLines) {
  Dataset data = read("{\"a\":1}\n\n  \t\n{\"a\":\"x\"}");
  const std::vector<Row> rows = data.rest();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].line, 1);
  EXPECT_EQ(rows[1].line, 4);
  EXPECT_EQ(rows[1].number, 1);
  EXPECT_EQ(data.path(), (dir_ / "rows.jsonl").string());
  EXPECT_EQ(data.where(rows[1]), data.path() + " line 4");
}

TEST_F(DatasetTest, ByteOrderMarkAndWindowsLines) {
  Dataset data = read("\xEF\xBB\xBF{\"a\":\"x\\r\"}\r\n\r\n{\"a\":\"y\"}\r\n");
  const std::vector<Row> rows = data.rest();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(string_field(data, rows[0], "a"), "x\r");
  EXPECT_EQ(rows[1].line, 3);
  expect_error<DataError>([&] { read_all("{}\n\xEF\xBB\xBF{]\n"); }, {"line 2"});
}

TEST_F(DatasetTest, LineSeparatorsInsideStringsCutNothing) {
  Dataset data = read("{\"a\":\"x\u2028y\u0085z\"}\n");
  EXPECT_EQ(string_field(data, data.row(0), "a"), "x\u2028y\u0085z");
}

TEST_F(DatasetTest, SlicesAsInPython) {
  EXPECT_EQ(slice_of_five(""), (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(slice_of_five("@[1:3]"), (Numbers{1, 2}));
  EXPECT_EQ(slice_of_five("@[:2]"), (Numbers{0, 1}));
  EXPECT_EQ(slice_of_five("@[3:]"), (Numbers{3, 4}));
  EXPECT_EQ(slice_of_five("@[:]"), (Numbers{0, 1, 2, 3, 4}));
  EXPECT_EQ(slice_of_five("@[-2:]"), (Numbers{3, 4}));
  EXPECT_EQ(slice_of_five("@[:-4]"), (Numbers{0}));
  EXPECT_EQ(slice_of_five("@[-100:2]"), (Numbers{0, 1}));
  EXPECT_EQ(slice_of_five("@[2:100]"), (Numbers{2, 3, 4}));
  EXPECT_EQ(slice_of_five("@[-9223372036854775808:9223372036854775807]").size(), 5u);
  for (const char* empty : {"@[3:3]", "@[4:2]", "@[5:]", "@[:0]", "@[:-5]"})
    expect_error<DataError>([&] { slice_of_five(empty); }, {"empty", "5 rows", empty});
  for (const char* bad : {"@[]", "@[1]", "@[a:b]", "@[1:2:3]", "@[1.0:2]", "@[ 1:2]", "@[99999999999999999999:]"})
    expect_error<ConfigError>([&] { slice_of_five(bad); }, {"slice", bad});
}

TEST_F(DatasetTest, RowsOutsideTheSliceAreNotParsed) {
  EXPECT_EQ(read("{\"n\":1}\nbroken\n", "@[:1]").rest().size(), 1u);
  expect_error<DataError>([&] { read_all("{\"n\":1}\nbroken\n", "@[1:]"); }, {"rows.jsonl line 2"});
}

TEST_F(DatasetTest, MissingAndEmptyFiles) {
  expect_error<DataError>([&] { Dataset::open((dir_ / "absent.jsonl").string()); }, {"absent.jsonl", "No such file"});
  expect_error<DataError>([&] { Dataset::open((dir_ / "absent.jsonl").string() + "@[0:1]"); },
                          {"absent.jsonl", "No such file"});
  for (const char* nothing : {"", "\n\n", "  \r\n\t\n", "\xEF\xBB\xBF"})
    expect_error<DataError>([&] { read(nothing); }, {"rows.jsonl", "empty"});
}

TEST_F(DatasetTest, BadRowsNameFileLineAndReason) {
  for (const char* bad : {"{", "{\"a\":1}{", "nope", "{'a':1}", "{\"a\":NaN}", "{\"a\":\"\xff\"}",
                          "{\"a\":\"\\ud800\"}", "{\"a\":1}\r{}"})
    expect_error<DataError>([&] { read_all(std::string("{\"a\":1}\n\n") + bad + "\n"); },
                            {"rows.jsonl line 3", "invalid JSON"});
  expect_error<DataError>([&] { read_all("{\"a\":1,\"a\":2}"); }, {"line 1", "twice"});
  for (const char* other : {"[1]", "3", "\"x\"", "null", "true"})
    expect_error<DataError>([&] { read_all(other); }, {"line 1", "not a JSON object"});
}

TEST_F(DatasetTest, StringField) {
  Dataset data = read("{\"prompt\":\"p\",\"n\":3}");
  const Row row = data.row(0);
  EXPECT_EQ(string_field(data, row, "prompt"), "p");
  expect_error<DataError>([&] { string_field(data, row, "n"); }, {"line 1: n", "3", "a string"});
  expect_error<DataError>([&] { string_field(data, row, "text"); }, {"rows.jsonl line 1", "text", "keys prompt, n"});
}

TEST_F(DatasetTest, LabelsAsWritten) {
  Dataset data = read(
      R"({"s":"4.50","i":-7,"f":3.50,"e":1e3,"big":123456789012345678901234567890,"z":0.1000000000000000055,"b":true,"n":null,"l":[2.50],"o":{"f":9.90}})");
  const Row row = data.row(0);
  EXPECT_EQ(label_field(data, row, "s"), "4.50");
  EXPECT_EQ(label_field(data, row, "i"), "-7");
  EXPECT_EQ(label_field(data, row, "f"), "3.50");
  EXPECT_EQ(label_field(data, row, "e"), "1e3");
  EXPECT_EQ(label_field(data, row, "big"), "123456789012345678901234567890");
  EXPECT_EQ(label_field(data, row, "z"), "0.1000000000000000055");
  for (const char* key : {"b", "n", "l", "o"})
    expect_error<DataError>([&] { label_field(data, row, key); }, {"line 1: ", key, "a string or a number"});
  expect_error<DataError>([&] { label_field(data, row, "absent"); }, {"absent"});
}

TEST_F(DatasetTest, TokenField) {
  Dataset data = read(
      R"({"t":[0,5,9],"none":[],"neg":[1,-1],"big":[10],"huge":[18446744073709551615],"f":[1.0],"s":["1"],"b":[true],"x":7})");
  const Row row = data.row(0);
  EXPECT_EQ(token_field(data, row, "t", 10), (std::vector<int32_t>{0, 5, 9}));
  EXPECT_TRUE(token_field(data, row, "none", 10).empty());
  expect_error<DataError>([&] { token_field(data, row, "neg", 10); }, {"line 1: neg[1]", "-1", "0 to 9"});
  expect_error<DataError>([&] { token_field(data, row, "big", 10); }, {"big[0]", "10"});
  for (const char* key : {"huge", "f", "s", "b"})
    expect_error<DataError>([&] { token_field(data, row, key, 10); }, {"[0]", "not a token id"});
  expect_error<DataError>([&] { token_field(data, row, "x", 10); }, {"line 1: x", "a list of token ids"});
}

TEST_F(DatasetTest, MaskField) {
  Dataset data = read(R"({"m":[0,1,1],"two":[0,2],"half":[0.5],"x":7})");
  const Row row = data.row(0);
  EXPECT_EQ(mask_field(data, row, "m"), (std::vector<int32_t>{0, 1, 1}));
  expect_error<DataError>([&] { mask_field(data, row, "two"); }, {"line 1: two[1]", "got:    2", "wanted: 0 or 1"});
  expect_error<DataError>([&] { mask_field(data, row, "half"); }, {"half[0]", "0 or 1"});
  expect_error<DataError>([&] { mask_field(data, row, "x"); }, {"line 1: x", "a list of 0 and 1"});
}

}  // namespace
}  // namespace lockstep::data
