// Files of prompts: what lines hold, and that an interrupted run ends with the file of one that was not.
#include <fmt/format.h>

#include <algorithm>

#include "commands/commands_fixture.h"
#include "commands/output_file.h"

namespace lockstep::commands {
namespace {

using lockstep::testing::expect_error;

class GenerateFile : public Commands {
 protected:
  GenerateFile() {
    std::string rows;
    for (int i = 0; i < 9; ++i) rows += fmt::format("{{\"prompt\":\"{}+{}=\",\"id\":{},\"x\":0.1}}\n", 7 * i, i + 3, i);
    fs::write_file_atomic(path("in.jsonl"), rows);
  }

  GenerateOptions to(const std::string& output) const {
    GenerateOptions options;
    options.base = {.hf_checkpoint = kArith, .stream = {.threads = 2}, .device = "cpu"};
    options.input = path("in.jsonl");
    options.output = path(output);
    options.n = 2;
    options.sampling.max_tokens = 6;
    options.max_sequences = 4;
    return options;
  }
  std::string made(const GenerateOptions& options) {
    run_generate(options, control_);
    return fs::read_file(options.output);
  }
  std::vector<Json> rows_of(const std::string& text) {
    out_ << text;
    return lines();
  }
};

TEST_F(GenerateFile, ARowThatDoesNotFitTheMemoryIsNamed) {
  GenerateOptions options = to("out.jsonl");
  Stream stream({.threads = 1});
  const load::Base base = recipes::load_base(options.base, stream, control_);
  const int64_t block_bytes =
      base.config.layers * base.model->kv_layer_elements() * static_cast<int64_t>(sizeof(float));
  options.kv_bytes = 2 * block_bytes;
  EXPECT_NO_THROW(made(options));
  fs::write_file_atomic(path("in.jsonl"), "{\"prompt\":\"1+1=\"}\n{\"prompt\":\"" + std::string(60, '1') + "+1=\"}\n");
  options.output = path("other.jsonl");
  expect_error<ResourceError>([&] { run_generate(options, control_); },
                              {"does not fit the KV pool", "in.jsonl line 2"});
}

TEST_F(GenerateFile, LinesAreTheRowsWithResults) {
  GenerateOptions options = to("out.jsonl");
  options.top_logprobs = 3;
  options.prompt_logprobs = 2;
  const std::vector<Json> rows = rows_of(made(options));
  ASSERT_EQ(rows.size(), 18u);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    EXPECT_EQ(row["row"], i / 2);
    EXPECT_EQ(row["id"], i / 2);
    EXPECT_EQ(row["x"], 0.1);
    EXPECT_EQ(row["index"], i % 2);
    EXPECT_TRUE(row["adapter_version"].is_null());
    EXPECT_TRUE(row["finish_reason"] == "stop" || row["finish_reason"] == "length");
    const size_t count = row["tokens"].size();
    ASSERT_GT(count, 0u);
    ASSERT_EQ(row["logprobs"].size(), count);
    ASSERT_EQ(row["top_logprobs"].size(), count);
    for (size_t t = 0; t < count; ++t) {
      const Json& top = row["top_logprobs"][t];
      EXPECT_EQ(top.size(), 3u);
      const std::string id = std::to_string(row["tokens"][t].get<int>());
      if (top.contains(id)) {
        EXPECT_EQ(top[id], row["logprobs"][t]);
      }
      for (const Json& value : top) EXPECT_LE(value.get<double>(), 0);
    }
    const size_t prompt = row["prompt_tokens"].size();
    ASSERT_EQ(row["prompt_logprobs"].size(), prompt);
    ASSERT_EQ(row["prompt_top_logprobs"].size(), prompt);
    EXPECT_TRUE(row["prompt_logprobs"][0].is_null());
    EXPECT_TRUE(row["prompt_top_logprobs"][0].is_null());
    for (size_t t = 1; t < prompt; ++t) EXPECT_EQ(row["prompt_top_logprobs"][t].size(), 2u);
  }
}

TEST_F(GenerateFile, WhatRunsAtOnceAndWhereItGoesChangeNothing) {
  const std::string wanted = made(to("a.jsonl"));
  GenerateOptions options = to("b.jsonl");
  options.max_sequences = 1;
  EXPECT_EQ(made(options), wanted);
  options.max_sequences = 256;
  options.output.clear();
  taken(out_);
  run_generate(options, control_);
  EXPECT_EQ(taken(out_), wanted);
}

TEST_F(GenerateFile, ACutFileEndsAsTheWholeOne) {
  GenerateOptions options = to("out.jsonl");
  const std::string whole = made(options);
  std::vector<size_t> ends;  // of lines
  for (size_t at = 0; (at = whole.find('\n', at)) != std::string::npos;) ends.push_back(++at);
  ASSERT_EQ(ends.size(), 18u);
  // Nothing, a torn first line, a row and its break missing, between the samples of a row, behind a row, a torn last
  // line, the last break missing, all of it.
  for (const size_t cut :
       {size_t{0}, ends[0] / 2, ends[1] - 1, ends[2], ends[5], ends[16] + 7, ends[17] - 1, ends[17]}) {
    SCOPED_TRACE(cut);
    std::filesystem::resize_file(options.output, cut);
    taken(info_);
    EXPECT_EQ(made(options), whole);
    const size_t rows = static_cast<size_t>(std::ranges::count(whole.substr(0, cut), '\n')) / 2;
    EXPECT_NE(info_.str().find(fmt::format("made    {} rows", 9 - rows)), std::string::npos) << info_.str();
    if (rows > 0) {
      EXPECT_NE(info_.str().find(fmt::format("; {} rows were there already", rows)), std::string::npos) << info_.str();
    }
  }
}

TEST_F(GenerateFile, AnInterruptKeepsWhatIsDoneAndTheSameCommandGoesOn) {
  const std::string whole = made(to("whole.jsonl"));
  const GenerateOptions options = to("out.jsonl");
  int runs = 0;
  for (bool done = false; !done; ++runs) {
    ASSERT_LT(runs, 50);
    int steps = 0;
    control_.interrupted = [&] { return ++steps > 12; };
    try {
      run_generate(options, control_);
      done = true;
    } catch (const Cancelled& cancelled) {
      const std::string part = fs::read_file(options.output);
      EXPECT_TRUE(whole.starts_with(part)) << part;
      EXPECT_TRUE(part.empty() || part.ends_with('\n'));
      EXPECT_EQ(cancelled.fault().got, fmt::format("{} of 9 rows", std::ranges::count(part, '\n') / 2));
      EXPECT_NE(cancelled.fault().attempt.find("the same command"), std::string::npos);
    }
  }
  EXPECT_GE(runs, 2);
  EXPECT_EQ(fs::read_file(options.output), whole);
}

TEST_F(GenerateFile, ALongerInputIsGoneOnWith) {
  GenerateOptions options = to("out.jsonl");
  const std::string whole = made(to("whole.jsonl"));
  options.input += "@[0:4]";
  const std::string part = made(options);
  EXPECT_TRUE(whole.starts_with(part));
  EXPECT_LT(part.size(), whole.size());
  options.input = path("in.jsonl");
  EXPECT_EQ(made(options), whole);
  options.input += "@[0:4]";
  expect_error<ConfigError>([&] { run_generate(options, control_); },
                            {"more rows than the input", "line 9", "--overwrite"});
  EXPECT_EQ(fs::read_file(options.output), whole);
}

TEST_F(GenerateFile, OtherSettingsAreRefused) {
  const GenerateOptions options = to("out.jsonl");
  const std::string whole = made(options);
  const auto refused = [&](const auto& change, std::initializer_list<const char*> parts) {
    GenerateOptions other = options;
    change(other);
    expect_error<ConfigError>([&] { run_generate(other, control_); }, parts);
    EXPECT_EQ(fs::read_file(options.output), whole);
  };
  refused([](GenerateOptions& o) { o.sampling.temperature = 0.5f; },
          {"other settings", "temperature 0.5", "temperature 1", "--overwrite"});
  refused([](GenerateOptions& o) { o.sampling.seed = 1; }, {"seed 1", "seed 42"});
  refused([](GenerateOptions& o) { o.sampling.stop = {"x"}; }, {"stop [\"x\"]"});
  refused([](GenerateOptions& o) { o.sampling.repetition_penalty = 1.5f; }, {"repetition_penalty 1.5"});
  refused([](GenerateOptions& o) { o.n = 1; }, {"n 1", "n 2"});
  refused([](GenerateOptions& o) { o.top_logprobs = 1; }, {"top_logprobs 1"});
  refused([&](GenerateOptions& o) { o.adapter_path = adapter_of(kArith, lora::LoraType::fused); },
          {"adapter_version 7", "adapter_version null"});
  // The base by what it weighs, not by its name.
  GenerateOptions moved = options;
  moved.base.hf_checkpoint = model_with(kArith, "README.md", {});
  EXPECT_EQ(made(moved), whole);
  // What does not decide the lines may change.
  GenerateOptions faster = options;
  faster.base.stream.threads = 1;
  faster.max_sequences = 3;
  std::filesystem::resize_file(options.output, whole.size() / 2);
  EXPECT_EQ(made(faster), whole);
  GenerateOptions again = options;
  again.sampling.seed = 1;
  again.overwrite = true;
  const std::string other = made(again);
  EXPECT_NE(other, whole);
  again.overwrite = false;
  EXPECT_EQ(made(again), other) << "the settings were overwritten too";
}

TEST_F(GenerateFile, OtherRowsAreRefused) {
  const GenerateOptions options = to("out.jsonl");
  const std::string whole = made(options);
  const auto refused = [&](std::initializer_list<const char*> parts) {
    expect_error<ConfigError>([&] { run_generate(options, control_); }, parts);
  };
  std::string rows = fs::read_file(options.input);
  rows.replace(rows.find("\"id\":3"), 6, "\"id\":4");
  fs::write_file_atomic(options.input, rows);
  refused({"another row than the input", "out.jsonl line 7", "sample 0 of row 3", "--overwrite"});
  EXPECT_EQ(fs::read_file(options.output), whole);
  fs::write_file_atomic(options.output, "not json\n");
  refused({"another row", "line 1", "not json"});
  std::filesystem::remove(OutputFile::settings_path(options.output));
  refused({"nothing says how it was made", "out.jsonl.run.json"});
}

TEST_F(GenerateFile, BadRowsAreTheSameBehindAnInterruption) {
  std::string rows = fs::read_file(path("in.jsonl"));
  rows.insert(rows.find('\n') + 1, "{\"prompt\":\"\"}\n");
  rows += "{\"prompt\":7}\nno json\n";
  fs::write_file_atomic(path("in.jsonl"), rows);
  GenerateOptions options = to("out.jsonl");
  expect_error<DataError>([&] { run_generate(options, control_); }, {"empty prompt", "in.jsonl line 2"});
  options.max_bad_rows = 3;
  const std::string whole = made(options);
  const std::string info = taken(info_);
  for (const char* part : {"line 2", "line 11", "line 12"}) EXPECT_NE(info.find(part), std::string::npos) << info;
  EXPECT_EQ(rows_of(whole)[2]["row"], 2);
  std::filesystem::resize_file(options.output, whole.size() / 2);
  EXPECT_EQ(made(options), whole);
  const std::string again = taken(info_);
  EXPECT_EQ(again.substr(again.rfind("in.jsonl line 2:")).substr(0, 16), "in.jsonl line 2:");
  options.max_bad_rows = 2;
  expect_error<DataError>([&] { run_generate(options, control_); }, {"after 2 bad rows"});
}

TEST_F(GenerateFile, WhatCannotBe) {
  GenerateOptions options = to("in.jsonl");
  expect_error<ConfigError>([&] { run_generate(options, control_); }, {"--output is the input"});
  options = to("out.jsonl");
  options.input_key = "completion";
  expect_error<ConfigError>([&] { run_generate(options, control_); }, {"the place of the prompt", "completion"});
  options = to("out.jsonl");
  options.sampling.stop_token_ids = {4000};
  options.sampling.min_tokens = 1;
  expect_error<ConfigError>([&] { run_generate(options, control_); }, {"stop_token_ids", "4000"});
}

TEST_F(GenerateFile, PenaltiesEndsAndLeastTokens) {
  GenerateOptions options = to("plain.jsonl");
  options.n = 1;
  options.sampling.temperature = 0;
  options.sampling.max_tokens = 12;
  const std::vector<Json> plain = rows_of(made(options));
  options.sampling.ignore_eos = true;
  options.output = path("on.jsonl");
  for (const Json& row : rows_of(made(options))) {
    EXPECT_EQ(row["tokens"].size(), 12u);
    EXPECT_EQ(row["finish_reason"], "length");
  }
  options.sampling.ignore_eos = false;
  options.sampling.min_tokens = 9;
  options.output = path("least.jsonl");
  for (const Json& row : rows_of(made(options))) EXPECT_GE(row["tokens"].size(), 9u);
  options.sampling.min_tokens = 0;
  options.output = path("ids.jsonl");
  options.sampling.stop_token_ids = {plain[0]["tokens"][0].get<int32_t>()};
  const Json stopped = rows_of(made(options))[0];
  EXPECT_EQ(stopped["tokens"].size(), 1u);
  EXPECT_EQ(stopped["completion"], "");
  EXPECT_EQ(stopped["finish_reason"], "stop");
  options.sampling.stop_token_ids.clear();
  options.output = path("once.jsonl");
  options.sampling.presence_penalty = 1e4f;
  options.sampling.ignore_eos = true;
  for (const Json& row : rows_of(made(options))) {
    std::vector<int> tokens = row["tokens"];
    std::ranges::sort(tokens);
    EXPECT_EQ(std::ranges::adjacent_find(tokens), tokens.end()) << row;
  }
}

// A stop string that ends before min_tokens ends nothing, so it cuts nothing either.
TEST_F(GenerateFile, AStopBeforeTheLeastTokensStaysInTheText) {
  GenerateOptions options = to("plain.jsonl");
  options.n = 1;
  options.sampling.temperature = 0;
  options.sampling.ignore_eos = true;
  const std::string text = rows_of(made(options))[0]["completion"];
  ASSERT_GT(text.size(), 1u);
  options.sampling.stop = {text.substr(0, 1)};
  options.sampling.min_tokens = 6;
  options.output = path("least.jsonl");
  const std::string kept = rows_of(made(options))[0]["completion"];
  EXPECT_TRUE(kept.starts_with(text.substr(0, 1))) << kept;
}

}  // namespace
}  // namespace lockstep::commands
