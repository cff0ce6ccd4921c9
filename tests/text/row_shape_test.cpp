#include "text/row_shape.h"

#include <gtest/gtest.h>

#include "support/temp_directory.h"

namespace lockstep::text {
namespace {

using lockstep::testing::expect_error;

class RowShapeTest : public ::testing::Test {
 protected:
  RowShape shape(const std::string& row) {
    Dataset data = Dataset::open(dir_.write("rows.jsonl", row).string());
    return row_shape(data, data.row(0));
  }
  void rejects(const std::string& row, std::initializer_list<const char*> parts) {
    expect_error<DataError>([&] { shape(row); }, parts);
  }
  testing::TempDirectory dir_;
};

TEST_F(RowShapeTest, IsToldByTheKeys) {
  const std::string chat = R"([{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[]}])";
  EXPECT_EQ(shape(R"({"tokens":[1],"loss_mask":[0],"prompt":"p","completion":"c"})"), RowShape::tokens);
  EXPECT_EQ(shape(R"({"chosen":"a","rejected":"b"})"), RowShape::preference);
  EXPECT_EQ(shape("{\"prompt\":" + chat + ",\"chosen\":" + chat + ",\"rejected\":" + chat + "}"), RowShape::preference);
  EXPECT_EQ(shape("{\"messages\":" + chat + ",\"tools\":null}"), RowShape::messages);
  EXPECT_EQ(shape(R"({"completion":"c","prompt":"p"})"), RowShape::prompt_completion);
  EXPECT_EQ(shape("{\"prompt\":" + chat + ",\"completion\":" + chat + "}"), RowShape::prompt_completion);
  EXPECT_EQ(shape(R"({"text":""})"), RowShape::text);
  EXPECT_EQ(shape(R"({"prompt":"p","label":3.5,"metadata":{}})"), RowShape::prompt_label);
  EXPECT_EQ(shape("{\"prompt\":" + chat + ",\"label\":\"x\"}"), RowShape::prompt_label);
  // A column of a Parquet file that this row leaves empty.
  EXPECT_EQ(shape(R"({"messages":null,"text":"x"})"), RowShape::text);
}

TEST_F(RowShapeTest, ErrorsNameKeysAndShapes) {
  rejects(R"({"question":"q","answer":"a","text":null})",
          {"rows.jsonl line 1", "no known shape", "keys question, answer, text (null)",
           "tokens + loss_mask; chosen + rejected; messages; prompt + completion; text; prompt + label"});
  rejects(R"({"messages":"hello"})", {"line 1: messages", "\"hello\"", "a list of messages with role and content"});
  rejects(R"({"messages":[]})", {"line 1: messages", "[]"});
  rejects(R"({"messages":[{"content":"x"}]})", {"line 1: messages"});
  rejects(R"({"messages":[{"role":1,"content":"x"}]})", {"line 1: messages"});
  rejects(R"({"text":7})", {"line 1: text", "7", "a string"});
  rejects(R"({"tokens":"1","loss_mask":[]})", {"line 1: tokens", "a list"});
  rejects(R"({"prompt":"p","completion":[{"role":"assistant","content":"x"}]})",
          {"line 1", "one of prompt and completion"});
  rejects(R"({"chosen":"p","rejected":[{"role":"assistant","content":"x"}]})", {"one of chosen and rejected"});
}

}  // namespace
}  // namespace lockstep::text
