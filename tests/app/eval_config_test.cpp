// --eval-config: slime's and miles' layouts, and YAML as PyYAML reads it.
#include "cli/eval_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "app/arguments.h"
#include "cli/parse.h"
#include "cli/yaml.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;

OrderedJson yaml(const std::string& text) {
  return parse_yaml(text, "f.yaml");
}

TEST(Yaml, ValuesAreThoseOfPyYaml) {
  EXPECT_EQ(yaml("a: 1\nb: [x, 'y', \"2\"]\nc: {d: 0.7, e: ~, f: true}\n").dump(),
            R"({"a":1,"b":["x","y","2"],"c":{"d":0.7,"e":null,"f":true}})");
  EXPECT_EQ(yaml("- 1e-3\n- -5\n- +4\n- .5\n- no\n- Off\n- 0x\n- 1.2.3\n- -\n-\n").dump(),
            R"([0.001,-5,4,0.5,false,false,"0x","1.2.3",[null],null])");
  EXPECT_EQ(yaml("a: &x [1, 2]\nb: *x\n").dump(), R"({"a":[1,2],"b":[1,2]})");
  EXPECT_EQ(yaml("a: |\n  two\n  lines\n").dump(), R"({"a":"two\nlines\n"})");
  EXPECT_EQ(yaml("# nothing\n"), nullptr);
  EXPECT_EQ(yaml(R"({"eval": {"datasets": [{"name": "a", "path": "\u00e9"}]}})")["eval"]["datasets"][0]["path"],
            "\u00e9");
}

TEST(Yaml, WhatJsonDoesNotHaveIsRefused) {
  expect_error<FormatError>([] { yaml("a: [1,\n"); }, {"not YAML", "f.yaml, line"});
  expect_error<FormatError>([] { yaml("a: 1\na: 2\n"); }, {"a key twice", "line 2", "a"});
  expect_error<FormatError>([] { yaml("a: .inf\n"); }, {"JSON does not have"});
  expect_error<FormatError>([] { yaml("a: !!python/object:os.system x\n"); }, {"a YAML tag", "python"});
  expect_error<FormatError>([] { yaml("[a]: 1\n"); }, {"a key that is no text"});
  expect_error<FormatError>([] { yaml("a: 1\n---\nb: 2\n"); }, {"more than one YAML document"});
  expect_error<FormatError>([] { yaml("a: &x {b: 1}\nc:\n  <<: *x\n"); }, {"a merge key"});
  expect_error<FormatError>([] { yaml("a: &a [*a]\n"); }, {"nested too deeply"});
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    laughs += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) laughs += fmt::format("{}*a{}", j > 0 ? ", " : "", i - 1);
    laughs += "]\n";
  }
  expect_error<FormatError>([&] { yaml(laughs); }, {"too many values"});
}

class EvalConfig : public ::testing::Test {
 protected:
  std::vector<recipes::EvalSet> read(const std::string& text) {
    return read_eval_config(dir_.write("eval.yaml", text).string());
  }
  testing::TempDirectory dir_;
};

TEST_F(EvalConfig, ListsWithDefaults) {
  const auto sets = read(R"(eval:
  defaults:
    max_response_len: 16384
    top_p: 0.7
    n_samples_per_eval_prompt: 4
  datasets:
    - name: aime
      path: /root/aime.jsonl
      rm_type: deepscaler
      n_samples_per_eval_prompt: 16
      temperature: null
    - name: gpqa
      path: /root/gpqa.jsonl
      prompt_key: question
      label_key: answer
      temperature: 0
      top_k: 1
      min_new_tokens: 2
      stop: ["\n\n", "END"]
      stop_token_ids: [1, 2]
      metadata_overrides: {source: held_out}
)");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "aime");
  EXPECT_EQ(sets[0].path, "/root/aime.jsonl");
  EXPECT_EQ(sets[0].samples, 16);
  EXPECT_EQ(sets[0].max_tokens, 16384);
  EXPECT_EQ(sets[0].top_p, 0.7f);
  EXPECT_FALSE(sets[0].temperature);
  ASSERT_EQ(sets[0].reward.size(), 1u);
  EXPECT_EQ(sets[0].reward[0].name(), "deepscaler");
  EXPECT_EQ(sets[1].samples, 4);
  EXPECT_EQ(sets[1].input_key, "question");
  EXPECT_EQ(sets[1].label_key, "answer");
  EXPECT_EQ(sets[1].temperature, 0.0f);
  EXPECT_EQ(sets[1].top_k, 1);
  EXPECT_EQ(sets[1].min_tokens, 2);
  EXPECT_EQ(*sets[1].stop, (std::vector<std::string>{"\n\n", "END"}));
  EXPECT_EQ(*sets[1].stop_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(sets[1].metadata["source"], "held_out");
  EXPECT_TRUE(sets[1].reward.empty());
}

TEST_F(EvalConfig, MappingsAndJson) {
  const auto sets = read(R"({"datasets": {"a": {"path": "x"}, "b": {"path": "y", "name": "c", "stop": "."}}})");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "a");
  EXPECT_EQ(sets[1].name, "c");
  EXPECT_EQ(*sets[1].stop, std::vector<std::string>{"."});
}

TEST_F(EvalConfig, WhatItDoesNotKnowIsRefusedByName) {
  const auto refused = [&](const std::string& text, std::initializer_list<const char*> parts) {
    SCOPED_TRACE(text);
    expect_error<ConfigError>([&] { read(text); }, parts);
  };
  refused("datasets: []\n", {"without a set"});
  refused("datasets: [{path: x}]\n", {"lacks a key", "set 1", "name"});
  refused("datasets: [{name: x}]\n", {"lacks a key", "eval.yaml: x", "path"});
  refused("datasets: [{name: a, path: x}, {name: a, path: y}]\n", {"two evaluation sets of one name"});
  refused("datasets: [{name: a, path: x, custom_generate_function_path: f.g}]\n",
          {"unknown key", "custom_generate_function_path", "eval.yaml: a"});
  refused("defaults: {custom_rm_path: f.g}\ndatasets: [{name: a, path: x}]\n",
          {"unknown key", "defaults", "custom_rm_path"});
  refused("datasets: [{name: a, path: x, temperature: hot}]\n", {"a, temperature", "hot", "a number"});
  refused("datasets: [{name: a, path: x, n_samples_per_eval_prompt: 0}]\n", {"at least 1"});
  refused("datasets: [{name: a, path: x, rm_type: ifbench}]\n", {"not graded here", "a, rm_type"});
  refused("datasets: [{name: a, path: '${oc.env:HOME}/x'}]\n", {"${...}"});
  refused("data: []\n", {"unknown key", "data"});
}

TEST_F(EvalConfig, OfATrainingRun) {
  const std::string file =
      dir_.write("eval.yaml", "datasets: [{name: a, path: x}, {name: b, path: y, temperature: 0}]\n").string();
  const auto o =
      parse_train(train_args("--eval-interval 2 --save s --save-best --save-best-set b --eval-reward-key acc "
                             "--eval-min-new-tokens 3 --eval-prompt-data c z --eval-config " +
                             file))
          .options;
  ASSERT_EQ(o.eval_sets.size(), 2u);
  EXPECT_EQ(o.save_best_set, "b");
  EXPECT_EQ(o.eval_reward_key, "acc");
  EXPECT_EQ(o.eval_sampling.min_tokens, 3);
  expect_error<ConfigError>(
      [&] {
        parse_train(train_args("--eval-interval 2 --save s --save-best --save-best-set c --eval-config " + file));
      },
      {"--save-best-set", "no evaluation set", "a, b"});
  expect_error<ConfigError>([&] { parse_train(train_args("--save-best-set a")); }, {"needs --save-best"});
  dir_.write("eval.yaml", "datasets: [{name: a, path: x, top_p: 7}]\n");
  expect_error<ConfigError>([&] { parse_train(train_args("--eval-interval 2 --eval-config " + file)); },
                            {"a: ", "top_p"});
}

}  // namespace
}  // namespace lockstep::cli
