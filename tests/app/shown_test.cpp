// What files hold never reaches a terminal raw: errors, notes, reports, and results where they go to a terminal.
#include <gtest/gtest.h>

#include <sstream>

#include "checkpoint/peft_directory.h"
#include "cli/command_line.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/printable.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

using testing::TempDirectory;

const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";
// A colour, a title, a clear screen of one byte more, and letters that are read backwards.
const std::string kEvil = "\x1b[31m\x1b]0;x\x07\u009b2J\u202ecod.exe";
constexpr const char* kShownEvil = "\\x1b[31m\\x1b]0;x\\x07\\u009b2J\\u202ecod.exe";

struct Said {
  std::string out, err;
  int code = 0;
};

Said said(const Values& args, bool terminal = false) {
  std::ostringstream out, err;
  Said said;
  try {
    said.code = run(args, {.out = &out, .err = &err, .out_terminal = terminal, .err_terminal = terminal});
  } catch (...) {
    said.code = report_error(err);
  }
  said.out = out.str();
  said.err = err.str();
  return said;
}

// Nothing in `text` is obeyed, and the evil name is shown in one of two ways: written out by us, or by JSON before us.
void expect_harmless(const std::string& text) {
  EXPECT_EQ(printable(text, Lines::kept), text);
  const bool shown =
      text.find(kShownEvil) != std::string::npos || text.find("\\u001b[31m\\u001b]0;x\\u0007") != std::string::npos;
  EXPECT_TRUE(shown) << text;
}

std::string with_key(const std::string& path, const std::string& key, const Json& value) {
  Json json = read_json(path);
  json[key] = value;
  return json.dump();
}

// A copy of the model with one file replaced.
fs::Path model_with(const TempDirectory& dir, const std::string& file, const std::string& bytes) {
  std::filesystem::create_directories(dir / "model");
  for (const auto& entry : std::filesystem::directory_iterator(kArith))
    if (entry.path().filename() != file)
      std::filesystem::create_symlink(entry.path(), dir / "model" / entry.path().filename());
  dir.write("model/" + file, bytes);
  return dir / "model";
}

TEST(Shown, ErrorsAboutAModel) {
  for (const auto& [key, value] :
       {std::pair<std::string, Json>{"model_type", kEvil}, {"hidden_act", kEvil}, {kEvil, 1}}) {
    const TempDirectory dir;
    const Said result =
        said({"inspect", model_with(dir, "config.json", with_key(kArith + "/config.json", key, value)).string()});
    EXPECT_EQ(result.code, 4);
    expect_harmless(result.err);
  }
}

TEST(Shown, ErrorsAboutDamagedJson) {
  const TempDirectory dir;
  const Said result = said({"inspect", model_with(dir, "config.json", "{\"" + kEvil + "\xff\": ]").string()});
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(printable(result.err, Lines::kept), result.err);
}

TEST(Shown, NamesOfTensors) {
  const TempDirectory dir;
  const float value = 1;
  const NamedTensors tensors = {
      {"base_model.model." + kEvil + ".lora_C.weight", ConstTensor(&value, DType::f32, {1, 1})}};
  checkpoint::write_peft_directory(dir / "adapter", {.rank = 1}, {"q_proj"}, "", tensors);
  const Said result = said({"inspect", (dir / "adapter").string()});
  EXPECT_EQ(result.code, 4);
  expect_harmless(result.err);
}

TEST(Shown, ValuesOfAnAdapterConfig) {
  const TempDirectory dir;
  checkpoint::write_peft_directory(dir / "adapter", {.rank = 1}, {"q_proj"}, "", {});
  const std::string file = (dir / "adapter/adapter_config.json").string();
  for (const auto& [key, value] :
       {std::pair<std::string, Json>{"bias", kEvil}, {kEvil, true}, {"target_modules", "(" + kEvil}}) {
    const std::string before = fs::read_file(file);
    dir.write("adapter/adapter_config.json", with_key(file, key, value));
    const Said result = said({"inspect", (dir / "adapter").string()});
    EXPECT_EQ(result.code, 4);
    expect_harmless(result.err);
    dir.write("adapter/adapter_config.json", before);
  }
}

TEST(Shown, PathsAndArguments) {
  const Said result = said({"inspect", "/nowhere/" + kEvil});
  EXPECT_EQ(result.code, 2);
  expect_harmless(result.err);
  expect_harmless(said({kEvil}).err);
}

TEST(Shown, RowsOfADataSet) {
  const TempDirectory dir;
  const std::string rows = dir.write("rows.jsonl", Json{{kEvil, kEvil}}.dump() + "\n{\"" + kEvil + "\n").string();
  const Said result = said({"inspect", rows});
  EXPECT_EQ(result.code, 0);
  expect_harmless(result.out);
  EXPECT_NE(result.out.find("bad row"), std::string::npos);
  EXPECT_EQ(said({"render", "--hf-checkpoint", kArith, "--tokens", "--input", rows}).code, 3);
}

TEST(Shown, WhatAChatTemplateRaises) {
  const TempDirectory dir;
  const std::string file = dir.write("t.jinja", "{{ raise_exception('" + kEvil + "') }}").string();
  const Said result = said({"render", "--chat-template", file, "--prompt", "1"});
  EXPECT_NE(result.code, 0);
  expect_harmless(result.err);
}

// Results are data: exact in a pipe or a file, and made printable on a terminal, where colours are ours alone.
TEST(Shown, TokensAndTexts) {
  const std::string text = "1+" + kEvil;
  const Said row = said({"tokenize", text, "--hf-checkpoint", kArith});
  Values ids = {"detokenize", "--hf-checkpoint", kArith};
  const Json read = Json::parse(row.out);
  for (const Json& id : read["ids"]) ids.push_back(id.dump());
  EXPECT_EQ(said(ids).out, text + "\n");
  const Said shown = said(ids, true);
  EXPECT_EQ(shown.out, printable(text) + "\n");

  std::string coloured = said({"tokenize", text, "--hf-checkpoint", kArith}, true).out;
  for (const char* colour : {"\033[30;46m", "\033[30;43m", "\033[30;42m", "\033[30;45m", "\033[0m"})
    for (size_t place = coloured.find(colour); place != std::string::npos; place = coloured.find(colour))
      coloured.erase(place, std::string(colour).size());
  EXPECT_EQ(printable(coloured, Lines::kept), coloured);

  const TempDirectory dir;
  const std::string file =
      dir.write("t.jinja", "{% generation %}{{ messages[0].content }}{% endgeneration %}").string();
  const Values render = {"render", "--chat-template", file, "--prompt", text};
  EXPECT_EQ(said(render).out, text + "\n");
  const std::string marked = said(render, true).out;
  EXPECT_NE(marked.find(kShownEvil), std::string::npos) << marked;
  EXPECT_EQ(marked.find("\x1b[31m"), std::string::npos) << marked;
}

}  // namespace
}  // namespace lockstep::cli
