#include "core/json.h"

#include "support/temp_directory.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::TempDirectory;

TEST(ParseJson, NamesSourceAndReason) {
  EXPECT_EQ(parse_json(R"({"a":[1,2.5,null,true,"x"]})", "f")["a"].size(), 5u);
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1", "nul", "1 2", "{'a':1}", "[NaN]", "[1e999]", "\"\xff\"",
                          "\"\xc3\"", "\"\\ud800\"", "\x80", "{\"a\" 1}", "\"\n\""})
    expect_error<FormatError>([&] { parse_json(bad, "DIR/f.json"); }, {"invalid JSON", "DIR/f.json"});
}

TEST(ParseJson, DuplicateKeysAtAnyDepth) {
  expect_error<FormatError>([] { parse_json(R"({"k":1,"k":2})", "f"); }, {"twice", "\"k\""});
  expect_error<FormatError>([] { parse_json(R"([{"a":{"b":{},"c":1,"b":2}}])", "f"); }, {"twice", "\"b\""});
  expect_error<FormatError>([] { parse_json("{\"\\u0061\":1,\"a\":2}", "f"); }, {"twice", "\"a\""});
  EXPECT_NO_THROW(parse_json(R"({"a":{"a":{"a":[{"a":1},{"a":2}]}},"b":{"a":1}})", "f"));
}

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

// What reads a value (dump, comparison) calls itself for each level.
TEST(ParseJson, DepthDoesNotOverflowTheStack) {
  EXPECT_EQ(parse_json(nested(kMaxJsonDepth), "f").dump(), nested(kMaxJsonDepth));
  EXPECT_EQ(parse_ordered_json(nested(kMaxJsonDepth), "f").dump(), nested(kMaxJsonDepth));
  for (const std::string& deep : {nested(kMaxJsonDepth + 1), nested(200000), std::string(200000, '[')}) {
    expect_error<FormatError>([&] { parse_json(deep, "f"); }, {"nested too deeply", "at most 500"});
    expect_error<FormatError>([&] { parse_ordered_json(deep, "f"); }, {"nested too deeply", "at most 500"});
  }
}

TEST(ParseOrderedJson, KeepsTheOrderAndTheSpellingOfNumbers) {
  std::map<std::string, std::string> numbers;
  const OrderedJson json = parse_ordered_json(
      R"({"z":1,"a":{"b":[true,null,"x\u00e9"],"f":2.50},"f":3.50,"big":123456789012345678901,"l":[1.50],"i":-7})", "f",
      &numbers);
  EXPECT_EQ(json.dump(),
            R"({"z":1,"a":{"b":[true,null,"xé"],"f":2.5},"f":3.5,"big":1.2345678901234568e+20,"l":[1.5],"i":-7})");
  EXPECT_EQ(numbers, (std::map<std::string, std::string>{{"f", "3.50"}, {"big", "123456789012345678901"}}));
  numbers.clear();
  EXPECT_EQ(parse_ordered_json("[1.50]", "f", &numbers).size(), 1u);
  EXPECT_EQ(parse_ordered_json("2.50", "f", &numbers), 2.5);
  EXPECT_TRUE(numbers.empty());
}

TEST(ParseOrderedJson, RefusesWhatParseJsonRefuses) {
  for (const char* bad : {"", "{", "{\"a\":1}{", "[1,]", "{'a':1}", "NaN", "\"\xff\"", "\"\\ud800\"", "01", "1 2"}) {
    EXPECT_THROW(parse_json(bad, "f"), FormatError) << bad;
    expect_error<FormatError>([&] { parse_ordered_json(bad, "FILE line 3"); }, {"invalid JSON", "FILE line 3"});
  }
  expect_error<FormatError>([] { parse_ordered_json(R"({"a":1,"b":{"k":1,"k":2}})", "f"); }, {"twice", "\"k\""});
}

// The library's own builder compares each new key with all before it.
TEST(ParseOrderedJson, ManyKeysAreReadInTimeThatGrowsWithThem) {
  std::string text = "{";
  for (int i = 0; i < 30000; ++i) text += "\"key" + std::to_string(i) + "\":0,";
  EXPECT_EQ(parse_ordered_json(text + "\"last\":1}", "f").size(), 30001u);
  expect_error<FormatError>([&] { parse_ordered_json(text + "\"key77\":1}", "f"); }, {"twice", "key77"});
}

// A short text may stand for much memory.
TEST(ParseOrderedJson, ValuesAreCounted) {
  size_t left = 7;
  EXPECT_EQ(parse_ordered_json(R"({"a":[1,"x",{}],"b":null})", "f", nullptr, &left).size(), 2u);
  EXPECT_EQ(left, 1u);
  EXPECT_EQ(parse_ordered_json("1", "f", nullptr, &left), 1);
  EXPECT_EQ(left, 0u);
  expect_error<FormatError>([&] { parse_ordered_json("1", "FILE", nullptr, &left); }, {"too many values", "FILE"});
  std::string text = "[";
  for (int i = 0; i < 1000; ++i) text += "{},";
  text += "{}]";
  left = 1001;
  expect_error<FormatError>([&] { parse_ordered_json(text, "f", nullptr, &left); }, {"too many values"});
  left = 1002;
  EXPECT_EQ(parse_ordered_json(text, "f", nullptr, &left).size(), 1001u);
}

TEST(ReadJson, MissingFileIsDataError) {
  const TempDirectory dir;
  EXPECT_EQ(read_json(dir.write("x.json", "[7]").string())[0], 7);
  expect_error<DataError>([&] { read_json((dir / "absent.json").string()); }, {"absent.json"});
}

class JsonObjectTest : public ::testing::Test {
 protected:
  Json json_ = Json::parse(R"({"i":-7,"big":18446744073709551615,"f":2.5,"whole":8.0,"s":"text","t":true,"n":null,
                               "o":{"inner":1},"l":[1]})");
  JsonObject object_{json_, "DIR/c.json"};
};

TEST_F(JsonObjectTest, TypedAccess) {
  EXPECT_EQ(object_.integer("i"), -7);
  EXPECT_EQ(object_.number("f"), 2.5);
  EXPECT_EQ(object_.number("i"), -7.0);
  EXPECT_EQ(object_.string("s"), "text");
  EXPECT_TRUE(object_.boolean("t", false));
  EXPECT_EQ(object_.object("o").integer("inner"), 1);
  EXPECT_TRUE(object_.value("n").is_null());
  EXPECT_TRUE(object_.has("i"));
  EXPECT_FALSE(object_.has("n"));
  EXPECT_FALSE(object_.has("absent"));
}

TEST_F(JsonObjectTest, AbsentAndNullTakeTheFallback) {
  for (const char* key : {"n", "absent"}) {
    EXPECT_EQ(object_.integer(key, 5), 5);
    EXPECT_EQ(object_.number(key, 1.5), 1.5);
    EXPECT_EQ(object_.string(key, "d"), "d");
    EXPECT_TRUE(object_.boolean(key, true));
    expect_error<FormatError>([&] { object_.integer(key); }, {"missing", "DIR/c.json", key});
    expect_error<FormatError>([&] { object_.object(key); }, {"missing", key});
  }
  expect_error<FormatError>([&] { object_.value("absent"); }, {"missing", "absent"});
}

TEST_F(JsonObjectTest, WrongTypesNameFileKeyValueAndType) {
  expect_error<FormatError>([&] { object_.integer("s"); }, {"DIR/c.json", "s", "\"text\"", "an integer"});
  expect_error<FormatError>([&] { object_.integer("t", 1); }, {"true", "an integer"});
  expect_error<FormatError>([&] { object_.integer("whole"); }, {"8.0", "an integer"});
  expect_error<FormatError>([&] { object_.integer("big"); }, {"18446744073709551615", "out of range"});
  expect_error<FormatError>([&] { object_.number("t", 1); }, {"true", "a number"});
  expect_error<FormatError>([&] { object_.number("s"); }, {"a number"});
  expect_error<FormatError>([&] { object_.boolean("i", true); }, {"-7", "true or false"});
  expect_error<FormatError>([&] { object_.string("i", "d"); }, {"-7", "a string"});
  expect_error<FormatError>([&] { object_.object("l"); }, {"DIR/c.json: l", "[1]", "an object"});
  expect_error<FormatError>([&] { object_.object("o").integer("x"); }, {"DIR/c.json: o", "x"});
  expect_error<FormatError>([] { JsonObject(Json(3), "w"); }, {"w", "3", "an object"});
}

TEST_F(JsonObjectTest, LongValuesAreCutInMessages) {
  const Json json = {{"k", std::string(100000, 'x')}};
  try {
    JsonObject(json, "w").integer("k");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_LT(std::string(error.what()).size(), 500u);
  }
}

TEST(JsonText, BytesThatAreNoUtf8AreReplaced) {
  EXPECT_EQ(json_text(Json{{"a", "x\xFFy"}}), "{\"a\":\"x\xEF\xBF\xBDy\"}");
  EXPECT_EQ(json_text(OrderedJson{{"b", "\xC3\xA9"}, {"a", 1}}, 1), "{\n \"b\": \"\xC3\xA9\",\n \"a\": 1\n}");
}

}  // namespace
}  // namespace lockstep
