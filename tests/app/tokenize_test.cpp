// tokenize, detokenize.
#include <gtest/gtest.h>

#include <sstream>

#include "app/arguments.h"
#include "cli/command_line.h"
#include "cli/parse.h"
#include "core/error.h"
#include "core/fs.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;
using testing::TempDirectory;

const std::string kModel = LOCKSTEP_SOURCE_DIR "/models/arith";

std::string output_of(Values args, bool terminal = false) {
  std::ostringstream out, err;
  args.insert(args.end(), {"--hf-checkpoint", kModel});
  EXPECT_EQ(run(args, {.out = &out, .err = &err, .out_terminal = terminal}), 0);
  EXPECT_EQ(err.str(), "");
  return out.str();
}

TEST(Tokenize, FlagsAndRules) {
  const auto text = parse_tokenize({"12+34", "--hf-checkpoint", "M", "--add-special-tokens", "--ids-only"});
  EXPECT_EQ(text.text, "12+34");
  EXPECT_TRUE(text.add_special_tokens && text.ids_only);
  const auto file = parse_tokenize(words("--hf-checkpoint M --input f --input-key k --output o"));
  EXPECT_EQ(file.text, std::nullopt);
  EXPECT_EQ(file.input, "f");
  EXPECT_EQ(file.input_key, "k");
  EXPECT_EQ(file.output, "o");
  expect_error<ConfigError>([] { parse_tokenize({"a"}); }, {"missing: --hf-checkpoint"});
  expect_error<ConfigError>([] { parse_tokenize(words("--hf-checkpoint M")); }, {"one of TEXT and --input", "neither"});
  expect_error<ConfigError>([] { parse_tokenize(words("a --hf-checkpoint M --input f")); }, {"both"});
  expect_error<ConfigError>([] { parse_tokenize(words("a --hf-checkpoint M --input-key k")); }, {"needs --input"});
  expect_error<ConfigError>([] { parse_tokenize(words("a b --hf-checkpoint M")); }, {"unexpected argument", "b"});
  EXPECT_NE(tokenize_help().find("lockstep tokenize [TEXT]"), std::string::npos);
}

TEST(Detokenize, FlagsAndRules) {
  const auto ids = parse_detokenize(words("5 6 7 --hf-checkpoint M --skip-special-tokens"));
  EXPECT_EQ(ids.ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_TRUE(ids.skip_special_tokens);
  EXPECT_EQ(parse_detokenize(words("--hf-checkpoint M --input f")).input_key, "ids");
  expect_error<ConfigError>([] { parse_detokenize(words("--hf-checkpoint M")); }, {"one of IDS and --input"});
  expect_error<ConfigError>([] { parse_detokenize(words("5 --hf-checkpoint M --output f")); }, {"needs --input"});
  expect_error<ConfigError>([] { parse_detokenize(words("5 x --hf-checkpoint M")); }, {"bad value of IDS", "x"});
  expect_error<ConfigError>([] { parse_detokenize(words("-1 --hf-checkpoint M")); }, {"-1"});
  EXPECT_NE(detokenize_help().find("lockstep detokenize [IDS...]"), std::string::npos);
}

TEST(Tokenize, ALineOfJsonForEveryText) {
  const Json row = parse_json(output_of({"tokenize", "1+ <|endoftext|>"}), "output");
  ASSERT_EQ(row["ids"].size(), row["spans"].size());
  ASSERT_EQ(row["ids"].size(), row["tokens"].size());
  EXPECT_EQ(row["tokens"], Json::parse(R"(["1", "+", "\u0120", "<|endoftext|>"])"));
  EXPECT_EQ(row["spans"], Json::parse("[[0, 1], [1, 2], [2, 3], [3, 16]]"));
  const Json ids = parse_json(output_of({"tokenize", "1+ <|endoftext|>", "--ids-only"}), "output");
  EXPECT_EQ(ids, (Json{{"ids", row["ids"]}}));
  Values args = {"detokenize"};
  for (const Json& id : row["ids"]) args.push_back(id.dump());
  EXPECT_EQ(output_of(args), "1+ <|endoftext|>\n");
  args.push_back("--skip-special-tokens");
  EXPECT_EQ(output_of(args), "1+ \n");
}

TEST(Tokenize, FilesOfTextAndOfRows) {
  const TempDirectory dir;
  const std::string rows = dir.write("rows.jsonl", "{\"q\": \"12\"}\n{\"q\": \"3\\u00e9\"}\n").string();
  EXPECT_EQ(output_of({"tokenize", "--input", rows, "--input-key", "q", "--output", (dir / "out").string()}), "");
  const std::string lines = fs::read_file(dir / "out");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  EXPECT_EQ(output_of({"detokenize", "--input", (dir / "out").string()}),
            "{\"text\":\"12\"}\n{\"text\":\"3\u00e9\"}\n");
  const std::string chat = dir.write("chat.jinja", "{{ messages }}").string();
  for (const Values& args : {Values{"tokenize", "--input", rows, "--input-key", "q", "--output", rows},
                             Values{"tokenize", "--input", rows, "--output", rows},
                             Values{"detokenize", "--input", rows, "--input-key", "q", "--output", rows},
                             Values{"render", "--chat-template", chat, "--input", rows, "--output", rows},
                             Values{"render", "--tokens", "--input", rows, "--output", rows},
                             Values{"score", "--input", rows, "--output", rows}})
    expect_error<ConfigError>([&] { output_of(args); }, {"--output is the input"});
  EXPECT_EQ(fs::read_file(rows), "{\"q\": \"12\"}\n{\"q\": \"3\\u00e9\"}\n");
  const std::string text = dir.write("text.txt", "1\n2\n").string();
  EXPECT_EQ(parse_json(output_of({"tokenize", "--input", text}), "output")["ids"].size(), 4u);
  expect_error<DataError>([&] { output_of({"tokenize", "--input", rows, "--input-key", "x"}); }, {"line 1", "q"});
  const std::string broken = dir.write("broken", "a\xff").string();
  expect_error<DataError>([&] { output_of({"tokenize", "--input", broken}); }, {"not UTF-8", "byte 1"});
}

// As transformers decodes them, but not without a word: the text looks whole.
TEST(Detokenize, IdsThatTheTokenizerLacksAreTold) {
  const TempDirectory dir;
  const auto told = [](Values args) {
    std::ostringstream out, err;
    args.insert(args.end(), {"--hf-checkpoint", kModel});
    EXPECT_EQ(run(args, {.out = &out, .err = &err}), 0);
    return err.str();
  };
  EXPECT_NE(told({"detokenize", "20", "5000"}).find("note    1 of the ids are not the tokenizer's"), std::string::npos);
  const std::string rows = dir.write("rows.jsonl", "{\"ids\": [20, 5000]}\n{\"ids\": [20, 9999]}\n").string();
  EXPECT_NE(told({"detokenize", "--input", rows}).find("note    2 of the ids"), std::string::npos);
  EXPECT_EQ(told({"detokenize", "20"}), "");
}

TEST(Tokenize, NeighboursHaveOtherColoursOnATerminal) {
  const std::string shown = output_of({"tokenize", "1+\n<|endoftext|>"}, true);
  EXPECT_NE(shown.find("\033[30;46m1\033[0m\033[30;43m+\033[0m"), std::string::npos) << shown;
  EXPECT_NE(shown.find("\033[97;41m<|endoftext|>\033[0m"), std::string::npos) << shown;
  EXPECT_NE(shown.find("4 tokens"), std::string::npos) << shown;
}

}  // namespace
}  // namespace lockstep::cli
