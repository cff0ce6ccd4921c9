// Rewards by programs: the protocol, and programs that hang, crash, print rubbish, flood, or answer late.
#include "rl/command_reward.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "core/error.h"
#include "rl/python_reward.h"
#include "rl/reward_queue.h"
#include "support/temp_directory.h"

namespace lockstep::rl {
namespace {

using namespace std::chrono_literals;

RewardSample sample(const std::string& response, const std::string& label = "7", const std::string& json = "") {
  return {.row = std::make_shared<RewardRow>(RewardRow{.prompt = "say", .label = label, .json = json}),
          .response = response,
          .group = 3,
          .tokens = {1, 2}};
}

class Programs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c ''") != 0) GTEST_SKIP() << "no python3";
  }

  // A program that reads requests as `q` and runs `body` for each.
  std::string program(const std::string& body) {
    const auto file =
        dir_.write("program" + std::to_string(count_++) + ".py",
                   "import json, os, sys, time\n"
                   "def say(q, reward): print(json.dumps({'id': q['id'], 'reward': reward}), flush=True)\n"
                   "for line in sys.stdin:\n"
                   "    q = json.loads(line)\n" +
                       body);
    return "python3 -S " + file.string();
  }
  // A program that starts at once: a shell that answers 1, once `body` has looked at the line.
  static std::string shell(const std::string& body) {
    return "while read -r line; do id=${line#*:}; id=${id%%,*}; " + body +
           " echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; done";
  }
  std::vector<Score> grade(const std::string& command, const std::vector<std::string>& responses,
                           std::chrono::milliseconds timeout = 20s, size_t programs = 1) {
    CommandReward reward({.pool = {.command = command, .num_programs = programs, .timeout = timeout}});
    std::vector<RewardSample> samples;
    for (const std::string& response : responses) samples.push_back(sample(response));
    std::vector<Score> scores = grade_all(reward, std::move(samples), 1);
    started_ = reward.num_started();
    return scores;
  }
  static void expect_unknown(const Score& score, const std::string& why) {
    EXPECT_FALSE(score.value.has_value());
    EXPECT_NE(score.failure.find(why), std::string::npos) << score.failure;
  }

  testing::TempDirectory dir_;
  int count_ = 0;
  int64_t started_ = 0;
};

TEST_F(Programs, AnswerALineWithALine) {
  const auto scores = grade(program("    say(q, len(q['response']) if q['label'] == '7' and q['group'] == 3 and\n"
                                    "        q['response_length'] == 2 and q['tokens'] == [1, 2] else -1)\n"),
                            {"a", "bb", "c\n\"\xc3\xa4"}, 20s, 2);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0].value, 1.0f);
  EXPECT_EQ(scores[1].value, 2.0f);
  EXPECT_EQ(scores[2].value, 4.0f);
  EXPECT_LE(started_, 2);
}

TEST_F(Programs, WhatIsNoFiniteNumberIsUnknown) {
  const auto scores = grade(
      program("    say(q, json.loads(q['response']))\n"),
      {"0.5", "null", "true", "\"1\"", "[1]", "1e300", "{\"score\": 2, \"acc\": 0, \"x\": \"y\"}", "{\"reward\": 1}"});
  EXPECT_EQ(scores[0].value, 0.5f);
  for (size_t i = 1; i < 6; ++i) EXPECT_FALSE(scores[i].value.has_value()) << i;
  EXPECT_EQ(scores[6].value, 2.0f);
  ASSERT_EQ(scores[6].parts.size(), 2u);
  EXPECT_EQ(scores[6].parts[0].name, "acc");
  EXPECT_EQ(scores[6].parts[0].value, 0.0f);
  expect_unknown(scores[7], "without \"score\"");
  EXPECT_EQ(started_, 1) << "an unknown reward is no reason to replace the program";
}

TEST_F(Programs, ThatHangAreReplaced) {
  const auto begin = std::chrono::steady_clock::now();
  const auto scores = grade(shell("case $line in *hang*) sleep 100;; esac;"), {"a", "hang", "b"}, 1500ms);
  EXPECT_EQ(scores[0].value, 1.0f);
  expect_unknown(scores[1], "did not answer within 1500 ms");
  EXPECT_EQ(scores[2].value, 1.0f);
  EXPECT_EQ(started_, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
}

TEST_F(Programs, ThatAllHangAreNotWaitedForOneByOne) {
  const auto begin = std::chrono::steady_clock::now();
  const auto scores = grade("sleep 100", std::vector<std::string>(64, "x"), 500ms, 2);
  for (const Score& score : scores) expect_unknown(score, "did not answer");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST_F(Programs, ThatCrashAreReplacedAndSayWhy) {
  const auto scores = grade(program("    if q['response'] == 'die': sys.stderr.write('out of luck'); sys.exit(3)\n"
                                    "    say(q, 1)\n"),
                            {"a", "die", "b", "die", "c"});
  for (const size_t good : {0, 2, 4}) EXPECT_EQ(scores[good].value, 1.0f) << good;
  expect_unknown(scores[1], "ended before it answered (exit code 3)");
  expect_unknown(scores[3], "out of luck");
  EXPECT_EQ(started_, 3);
}

TEST_F(Programs, ThatCannotBeRunAreNotTriedForEachSample) {
  for (const Score& score : grade("no_such_program_at_all", std::vector<std::string>(64, "x"), 20s, 2))
    expect_unknown(score, "not found");
  EXPECT_LE(started_, 2);
}

TEST_F(Programs, ThatEndOnEveryLineAreGivenUp) {
  for (const Score& score : grade("python3 /no/such/file.py", std::vector<std::string>(64, "x"), 20s, 2))
    expect_unknown(score, "No such file");
  EXPECT_LE(started_, 5) << "two of each of the two programs, and one that had begun";
}

TEST_F(Programs, ThatPrintRubbishAreReplaced) {
  const auto scores = grade(program("    r = q['response']\n"
                                    "    if r == 'rubbish': print('hello', flush=True)\n"
                                    "    elif r == 'other': print(json.dumps({'id': -1, 'reward': 1}), flush=True)\n"
                                    "    elif r == 'empty': print(flush=True)\n"
                                    "    elif r == 'bytes': os.write(1, b'\\xff\\xfe\\n')\n"
                                    "    else: say(q, 1)\n"),
                            {"a", "rubbish", "other", "empty", "bytes", "b"});
  EXPECT_EQ(scores[0].value, 1.0f);
  for (size_t i = 1; i < 5; ++i) expect_unknown(scores[i], "the program's answer is none");
  EXPECT_EQ(scores[5].value, 1.0f);
  EXPECT_EQ(started_, 5);
}

TEST_F(Programs, ThatFloodAreStopped) {
  const std::string flood = program(
      "    if q['response'] == 'flood':\n        while True: os.write(1, b'x' * 65536)\n"
      "    if q['response'] == 'lines':\n        while True: os.write(1, b'{}\\n' * 20000)\n"
      "    say(q, 1)\n");
  const auto scores = grade(flood, {"a", "flood", "b", "lines", "c"});
  for (const size_t good : {0, 2, 4}) EXPECT_EQ(scores[good].value, 1.0f) << good;
  expect_unknown(scores[1], "more than 16777216 bytes");
  expect_unknown(scores[3], "answer is none");
  const auto chatty = grade(program("    say(q, 1)\n    sys.stderr.write('e' * 1000000)\n"), {"a", "b", "c"});
  for (const Score& score : chatty) EXPECT_EQ(score.value, 1.0f);
}

TEST_F(Programs, WhoWriteWithoutBeingAskedAreReplaced) {
  const auto scores = grade(program("    say(q, 1)\n    print('and another thing', flush=True)\n"), {"a", "b", "c"});
  EXPECT_EQ(scores[0].value, 1.0f);
  for (const Score& score : scores)
    if (score.value) {
      EXPECT_EQ(*score.value, 1.0f) << "nobody gets another's answer";
    }
}

TEST_F(Programs, GroupsComeTogether) {
  const std::string command =
      "python3 " + dir_.write("group.py",
                              "import json, sys\n"
                              "for line in sys.stdin:\n"
                              "    q = json.loads(line)\n"
                              "    most = max(len(s['response']) for s in q['samples'])\n"
                              "    r = [len(s['response']) / most for s in q['samples']]\n"
                              "    if q['samples'][0]['response'] == '': r.pop()\n"
                              "    print(json.dumps({'id': q['id'], 'rewards': r}), flush=True)\n")
                       .string();
  CommandReward reward({.pool = {.command = command}, .groups = true});
  const auto scores =
      grade_all(reward, {sample("a"), sample("bbbb"), sample("cc"), sample("cc"), sample(""), sample("d")}, 2);
  EXPECT_EQ(scores[0].value, 0.25f);
  EXPECT_EQ(scores[1].value, 1.0f);
  EXPECT_EQ(scores[2].value, 1.0f);
  expect_unknown(scores[4], "answer is none");
  expect_unknown(scores[5], "answer is none");
}

TEST_F(Programs, CancelledSamplesAreForgotten) {
  CommandReward reward({.pool = {.command = program("    time.sleep(0.3)\n    say(q, 1)\n")}});
  const auto ticket = reward.submit({sample("a")});
  reward.cancel(ticket);
  EXPECT_TRUE(reward.poll(std::chrono::steady_clock::now() + 5s).empty());
  const auto later = reward.submit({sample("b")});
  const auto graded = reward.poll(std::chrono::steady_clock::now() + 20s);
  ASSERT_EQ(graded.size(), 1u);
  EXPECT_EQ(graded[0].ticket, later);
}

class PythonFunctions : public Programs {
 protected:
  std::vector<Score> grade_python(const std::string& code, std::vector<RewardSample> samples, const std::string& name,
                                  bool groups = false, const std::string& key = "") {
    const std::string module = "rewards" + std::to_string(count_++);
    dir_.write(module + ".py", code);
    net::LinePoolOptions pool;
    run_python(pool, module + "." + name, groups, "input", "metadata");
    pool.environment.emplace_back("PYTHONPATH", dir_.path().string());
    CommandReward reward({.pool = pool, .groups = groups, .reward_key = key});
    const size_t size = groups ? samples.size() : 1;
    return grade_all(reward, std::move(samples), size);
  }
};

TEST_F(PythonFunctions, OfSlimeVerlAndTrl) {
  const std::string row = R"({"input": [{"role": "user", "content": "?"}], "data_source": "gsm8k", "hint": 4,
      "metadata": {"k": 2}, "reward_model": {"ground_truth": "8"}, "extra_info": {"x": 1}})";
  const auto one = [&] { return std::vector<RewardSample>{sample("seven", "7", row)}; };
  EXPECT_EQ(grade_python("async def rm(args, sample, **kw):\n    print('noise')\n    return sample.metadata['k'] + "
                         "len(sample.response) + int(sample.label) + (not args.group_rm)\n",
                         one(), "rm")[0]
                .value,
            2.0f + 5 + 7 + 1);
  EXPECT_EQ(grade_python("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return "
                         "{'score': int(ground_truth) + extra_info['x'], 'acc': 0.5, 'note': data_source}\n",
                         one(), "compute_score")[0]
                .value,
            9.0f);
  const std::string trl =
      "def f(prompts, completions, hint, **columns):\n    return [h + len(c[0]['content']) + len(p) if h else None for "
      "p, c, h in zip(prompts, completions, hint)]\n";
  EXPECT_EQ(grade_python(trl, one(), "f")[0].value, 4.0f + 5 + 1);
  const auto both = grade_python(trl, {sample("a", "7", row), sample("bb", "7", row)}, "f", true);
  EXPECT_EQ(both[0].value, 6.0f);
  EXPECT_EQ(both[1].value, 7.0f);
  EXPECT_EQ(grade_python("def rm(args, samples):\n    return [{'a': s.index, 'b': 3} for s in samples]\n", one(), "rm",
                         true, "b")[0]
                .value,
            3.0f);
}

TEST_F(PythonFunctions, ThatFailLeaveTheSampleUnknownAndSayWhy) {
  const auto scores = grade_python(
      "def rm(args, sample):\n    if sample.response == 'bad': raise ValueError('no luck')\n"
      "    return float('nan') if sample.response == 'nan' else None if sample.response == "
      "'none' else 1\n",
      {sample("bad"), sample("nan"), sample("none"), sample("good")}, "rm");
  expect_unknown(scores[0], "ValueError: no luck");
  expect_unknown(scores[1], "null");
  expect_unknown(scores[2], "null");
  EXPECT_EQ(scores[3].value, 1.0f);
  expect_unknown(grade_python("def rm(args, sample): return 0.5, 'why'\n", {sample("x")}, "rm")[0],
                 "the reward is no number: [0.5");
  const std::string none = "def f(prompts, completions, **columns): return []\n";
  for (const bool groups : {false, true})
    expect_unknown(grade_python(none, {sample("x")}, "f", groups)[0], "wrong number of rewards: 0 for 1 samples");
  expect_unknown(grade_python("", {sample("x")}, "missing")[0], "AttributeError");
  expect_unknown(grade_python("import nothing_like_this\n", {sample("x")}, "rm")[0], "ModuleNotFoundError");
  expect_unknown(grade_python("def rm(a, b): pass\n", {sample("x")}, "rm")[0], "neither slime's");
  for (const char* path : {"rm", "a.", ".a", "a.b;rm", "a.$(x)", "", "-c.a"}) {
    net::LinePoolOptions pool;
    EXPECT_THROW(run_python(pool, path, false, "input", "metadata"), ConfigError) << path;
  }
}

}  // namespace
}  // namespace lockstep::rl
