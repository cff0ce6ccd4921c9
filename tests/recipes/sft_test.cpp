// Supervised and preference runs: shapes of rows, truncation, held-out sets, the best checkpoint, early stop.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "commands/commands.h"
#include "recipes/held_out.h"
#include "recipes/training_fixture.h"
#include "recipes/training_rows.h"

namespace lockstep::recipes {
namespace {

using testing::expect_error;

constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

class Sft : public Training {
 protected:
  Sft() : stream_({.threads = 1}) { template_ = dir_.write("chat.jinja", kTemplate).string(); }

  SftOptions arith(const std::string& save, const std::string& data) {
    SftOptions options = sft(save);
    options.base.hf_checkpoint = kArith;
    options.prompt_data = data;
    options.rows.chat.template_file = template_;
    return options;
  }
  // Sums as conversations of two turns, and as preferences.
  std::string conversations(int count) {
    std::string rows;
    for (int i = 0; i < count; ++i)
      rows += fmt::format(
          R"({{"messages": [{{"role": "user", "content": "{0}+{1}="}}, {{"role": "assistant", "content": "{2}"}},
          {{"role": "user", "content": "{1}+{1}="}}, {{"role": "assistant", "content": "{3}", "weight": {4}}}]}})",
          i, i + 1, 2 * i + 1, 2 * i + 2, i % 3 == 0 ? "0.5" : "1");
    rows.erase(std::remove(rows.begin(), rows.end(), '\n'), rows.end());
    size_t at = 0;
    while ((at = rows.find("}{", at)) != std::string::npos) rows.insert(at + 1, "\n");
    return dir_.write("chat.jsonl", rows + "\n").string();
  }
  std::string preferences(int count) {
    std::string rows;
    for (int i = 0; i < count; ++i)
      rows += fmt::format("{{\"prompt\": \"{}+{}=\", \"chosen\": \"{}\", \"rejected\": \"{}\"}}\n", i, i + 1, 2 * i + 1,
                          2 * i + 3);
    return dir_.write("pairs.jsonl", rows).string();
  }
  SftOptions dpo(const std::string& save) {
    SftOptions options = arith(save, preferences(9));
    options.loss = train::DpoLoss{.beta = 0.5f};
    return options;
  }

  SftOptions kto(const std::string& save) {
    std::string rows;
    for (int i = 0; i < 9; ++i)
      rows += fmt::format("{{\"prompt\": \"{}+{}=\", \"completion\": \"{}\", \"label\": {}}}\n", i, i + 1,
                          i % 2 == 0 ? 2 * i + 1 : 2 * i + 3, i % 2 == 0);
    SftOptions options = arith(save, dir_.write("labels.jsonl", rows).string());
    options.loss = train::KtoLoss{.beta = 0.5f};
    options.training.global_batch_size = 4;  // the last step of an epoch has one row
    options.num_steps = 12;
    options.optimizer.schedule.warmup_steps = 0;
    return options;
  }

  // The rows of a file, by what is a target and what is not: "1+2=[3<|endoftext|>]".
  std::vector<std::string> shown(const std::string& text, const std::function<void(RowOptions&)>& change = {},
                                 bool pairs = false) {
    Base base = load::read_base_config(kArith);
    RowOptions options{.chat = {.template_file = template_}};
    if (change) change(options);
    TrainingRows rows(dir_.write("rows.jsonl", text).string(), base, options,
                      pairs ? RowKind::pairs : RowKind::sequences, control_);
    rows.describe("data", info_);
    const text::Tokenizer tokenizer = text::Tokenizer::load(base.path.string());
    std::vector<std::string> all;
    for (int64_t row = 0; row < rows.size(); ++row) {
      std::vector<train::Datum> datums;
      rows.append(row, datums);
      for (const train::Datum& datum : datums) {
        std::string line(tokenizer.token_bytes(datum.tokens[0]));
        for (int64_t t = 0; t < datum.size(); ++t) {
          const bool was = t > 0 && datum.weights[t - 1] > 0, is = datum.weights[t] > 0;
          const int32_t next = t + 1 < datum.size() ? datum.tokens[t + 1] : datum.targets[t];
          line += std::string(was && !is   ? "]"
                              : !was && is ? "["
                                           : "") +
                  (next < 0 ? "..." : std::string(tokenizer.token_bytes(next)));
        }
        all.push_back(line + (datum.weights.back() > 0 ? "]" : ""));
      }
    }
    return all;
  }

  Stream stream_;
  std::string template_;
};

using Shown = std::vector<std::string>;

TEST_F(Sft, EveryShapeOfRows) {
  EXPECT_EQ(shown(R"({"prompt": "1+2=", "completion": "3"})"), Shown{"1+2=[3<|endoftext|>]"});
  EXPECT_EQ(shown(R"({"text": "1+2=3"})"), Shown{"1[+2=3<|endoftext|>]"});
  EXPECT_EQ(shown(R"({"text": "1+2=3<|endoftext|>"})"), Shown{"1[+2=3<|endoftext|>]"});
  const char* chat = R"({"messages": [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"},
                                      {"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"}]})";
  std::string row = chat;
  row.erase(std::remove(row.begin(), row.end(), '\n'), row.end());
  const std::string user = "user: 1+2=<|endoftext|>assistant: ";
  EXPECT_EQ(shown(row), Shown{user + "[3<|endoftext|>]user: 2+2=<|endoftext|>assistant: [4<|endoftext|>]"});
  const std::string all = shown(row, [](RowOptions& o) { o.loss_mask = LossMaskType::all; })[0];
  EXPECT_EQ(std::count(all.begin(), all.end(), '['), 1);
  EXPECT_LE(all.find('['), std::string("user").size());
  EXPECT_EQ(all.back(), ']');
  EXPECT_EQ(
      shown(
          R"({"prompt": [{"role": "user", "content": "1+2="}], "completion": [{"role": "assistant", "content": "3"}]})"),
      Shown{user + "[3<|endoftext|>]"});
  EXPECT_EQ(shown(R"({"chat": [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"}]})",
                  [](RowOptions& o) { o.messages_key = "chat"; }),
            Shown{user + "[3<|endoftext|>]"});
  // Assistant turns of prompt and completion alike, but only of the completion.
  const char* both =
      R"({"prompt": [{"role": "assistant", "content": "0"}, {"role": "user", "content": "1+2="}], "completion": [{"role": "assistant", "content": "3"}]})";
  EXPECT_THROW(shown(both, [](RowOptions& o) { o.loss_mask = LossMaskType::assistant; }), DataError);
  EXPECT_EQ(shown(both)[0], "assistant: 0<|endoftext|>" + user + "[3<|endoftext|>]");
}

// TRL's order.
TEST_F(Sft, ARowOfSeveralShapesIsTheFirst) {
  const std::string text = R"("text": "5+5=10")", pair = R"("prompt": "1+2=", "completion": "3")",
                    chat =
                        R"("messages": [{"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"}])";
  const Shown wanted = {"1+2=[3<|endoftext|>]"}, turn = {"user: 2+2=<|endoftext|>assistant: [4<|endoftext|>]"};
  EXPECT_EQ(shown("{" + text + ", " + pair + "}"), wanted);
  EXPECT_EQ(shown("{" + text + ", " + pair + "}", [](RowOptions& o) { o.loss_mask = LossMaskType::completion; }),
            wanted);
  EXPECT_EQ(shown("{" + text + ", " + chat + ", " + pair + "}"), wanted);
  EXPECT_EQ(shown("{" + text + ", " + chat + "}"), turn);
  EXPECT_EQ(shown("{" + chat + R"(, "prompt": "1+2="})"), turn) << "half a pair";
  EXPECT_EQ(shown("{" + text + R"(, "prompt": "1+2=", "completion": null})"), Shown{"5[+5=10<|endoftext|>]"});
}

TEST_F(Sft, PreferencesShareAPrompt) {
  const Shown wanted = {"1+2=[3<|endoftext|>]", "1+2=[4<|endoftext|>]"};
  EXPECT_EQ(shown(R"({"prompt": "1+2=", "chosen": "3", "rejected": "4"})", {}, true), wanted);
  EXPECT_EQ(shown(R"({"chosen": "1+2=3", "rejected": "1+2=4"})", {}, true), wanted);
  testing::expect_error<DataError>([&] { shown(R"({"prompt": "1+2=", "chosen": null, "rejected": "4"})", {}, true); },
                                   {"is null", "chosen"});
  const std::string user = "user: 1+2=<|endoftext|>assistant: ";
  const Shown chat = {user + "[3<|endoftext|>]", user + "[4<|endoftext|>]"};
  const char* question = R"({"role": "user", "content": "1+2="})";
  EXPECT_EQ(shown(fmt::format(R"({{"chosen": [{0}, {1}3"}}], "rejected": [{0}, {1}4"}}]}})", question,
                              R"({"role": "assistant", "content": ")"),
                  {}, true),
            chat);
  EXPECT_EQ(shown(R"({"chosen": "a b c", "rejected": "a b d"})", {}, true),
            (Shown{"a b[ c<|endoftext|>]", "a b[ d<|endoftext|>]"}));
  EXPECT_THROW(shown(R"({"chosen": "a", "rejected": [{"role": "user", "content": "b"}]})", {}, true), DataError);
  // The mask of assistant's turns, which reads weights, is not one of preferences.
  const char* weighted = R"({"role": "assistant", "content": "3", "weight": 0})";
  expect_error<DataError>(
      [&] {
        shown(fmt::format(R"({{"prompt": [{0}], "chosen": [{1}], "rejected": [{1}]}})", question, weighted), {}, true);
      },
      {"rows.jsonl line 1", "weights of messages", "of a preference loss", "rows without weights"});
}

TEST_F(Sft, WhatIsWrongWithARowNamesItsLine) {
  const auto fails = [&](const std::string& row, std::initializer_list<const char*> parts) {
    SCOPED_TRACE(row);
    testing::expect_error<DataError>([&] { shown("{\"text\": \"ok\"}\n" + row); }, parts);
  };
  for (const char* row : {R"({"question": "a"})", R"({"conversations": []})", R"({"instruction": "a", "output": "b"})"})
    fails(row, {"rows.jsonl line 2", "none of the shapes", R"({"messages"}, {"prompt", "completion"}, {"text"})",
                "RowOptions::messages_key"});
  fails(R"({"question": "a"})", {"keys question"});
  fails(R"({"text": null})", {"rows.jsonl line 2, text", "a field is null"});
  fails(R"({"messages": null})", {"rows.jsonl line 2, messages", "a field is null"});
  fails(R"({"prompt": "a"})", {"rows.jsonl line 2", "lacks a key", "wanted: completion"});
  fails(R"({"messages": "a"})", {"rows.jsonl line 2", "messages", "a list of messages"});
  fails(R"({"messages": [{"role": "user", "content": "a"}]})", {"line 2", "no token of the row is a target"});
  fails(R"({"prompt": "a", "completion": 3})", {"line 2", "completion", "a string"});
  const std::string turns =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], )";
  fails(turns + R"("tools": "[bad"})", {"rows.jsonl line 2, tools", "[bad", "a list of JSON schemas"});
  fails(turns + R"("chat_template_kwargs": []})", {"rows.jsonl line 2, chat_template_kwargs", "an object"});
  fails(turns + R"("chat_template_kwargs": {"tools": []}})", {"rows.jsonl line 2, chat_template_kwargs", "tools"});
  fails(R"({"text": ")" + std::string(600, 'x') + R"("})", {"line 2", "context", "RowOptions::max_length"});
  // Unless they may be bad.
  EXPECT_EQ(shown("{\"text\": 3}\n{\"text\": \"ok\"}", [](RowOptions& o) { o.max_bad_rows = 1; }).size(), 1u);
  EXPECT_NE(info_.str().find("line 1"), std::string::npos) << info_.str();
}

TEST_F(Sft, TruncationIsCounted) {
  const auto cut = [](int64_t length, TruncationMode mode) {
    return [=](RowOptions& o) { o.max_length = length, o.truncation = mode; };
  };
  const std::string rows =
      "{\"prompt\": \"1+2=\", \"completion\": \"12345\"}\n{\"prompt\": \"123456789\", \"completion\": \"1\"}\n";
  EXPECT_EQ(shown(rows, cut(6, TruncationMode::keep_start)), Shown{"1+2=[12]"});
  EXPECT_NE(info_.str().find("2 rows cut to RowOptions::max_length 6: 9 tokens are not seen"), std::string::npos)
      << info_.str();
  EXPECT_NE(info_.str().find("1 rows left out"), std::string::npos) << info_.str();
  EXPECT_EQ(shown(rows, cut(6, TruncationMode::keep_end)), (Shown{"1[2345<|endoftext|>]", "6789[1<|endoftext|>]"}));
  EXPECT_THROW(shown(rows, cut(4, TruncationMode::keep_start)), DataError);  // nothing is left
  const std::string pair = R"({"prompt": "1+2=", "chosen": "12", "rejected": "3456"})";
  EXPECT_EQ(shown(pair, cut(6, TruncationMode::keep_start), true), (Shown{"1+2=[12]", "1+2=[34]"}));
}

TEST_F(Sft, PackedConversationsAreUnpackedOnes) {
  const std::string data = conversations(10);
  run_sft(arith("packed", data), control_);
  SftOptions alone = arith("alone", data);
  alone.training.max_tokens = 1;
  run_sft(alone, control_);
  EXPECT_EQ(adapter_bytes("packed", 6), adapter_bytes("alone", 6));
  EXPECT_LT(metrics("packed").back()["loss"], metrics("packed").front()["loss"]);
}

TEST_F(Sft, DpoFallsFromLogTwo) {
  SftOptions options = dpo("dpo");
  options.optimizer.schedule.warmup_steps = 0;
  run_sft(options, control_);
  SftOptions split = dpo("split");
  split.optimizer.schedule.warmup_steps = 0;
  split.training.max_tokens = 1;
  run_sft(split, control_);
  EXPECT_EQ(adapter_bytes("dpo", 6), adapter_bytes("split", 6));
  const auto lines = metrics("dpo");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(2), 1e-12);  // a fresh adapter is the reference
  EXPECT_EQ(lines[0]["rewards/margins"], 0.0);
  EXPECT_LT(lines[5]["loss"].get<double>(), 0.6);
  EXPECT_GT(lines[5]["rewards/margins"].get<double>(), 0.1);
  EXPECT_NEAR(lines[5]["rewards/margins"].get<double>(),
              lines[5]["rewards/chosen"].get<double>() - lines[5]["rewards/rejected"].get<double>(), 1e-12);
  for (const char* key : {"rewards/accuracies", "logps/chosen", "logps/rejected"})
    EXPECT_TRUE(lines[5][key].is_number()) << key;
}

// The last step of an epoch has one row, so that the one before is looked at.
TEST_F(Sft, KtoLearnsWhatIsDesirable) {
  SftOptions options = kto("kto");
  run_sft(options, control_);
  SftOptions split = kto("split");
  split.training.max_tokens = 1;
  run_sft(split, control_);
  EXPECT_EQ(adapter_bytes("kto", 12), adapter_bytes("split", 12));
  const auto lines = metrics("kto");
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines[0]["loss"], 0.5);  // a fresh adapter is the reference
  EXPECT_EQ(lines[0]["kl"], 0.0);
  EXPECT_LT(lines[10]["loss"].get<double>(), 0.49);
  EXPECT_GT(lines[10]["rewards/margins"].get<double>(), 0.02);
  EXPECT_NEAR(lines[10]["rewards/margins"].get<double>(),
              lines[10]["rewards/chosen"].get<double>() - lines[10]["rewards/rejected"].get<double>(), 1e-12);
  EXPECT_EQ(lines[11]["kl"], 0.0);  // no other row
  EXPECT_TRUE(lines[11]["rewards/margins"].is_null());
  EXPECT_EQ(read_json((dir_ / "kto" / "run.json").string())["kind"], "kto");
}

TEST_F(Sft, KtoGoesOnWhereItWasInterrupted) {
  run_sft(kto("whole"), control_);
  SftOptions part = kto("part");
  part.num_steps = 5;
  part.optimizer.decay_steps = 12;
  run_sft(part, control_);
  part.num_steps = 12;
  part.save.load = part.save.save;
  run_sft(part, control_);
  EXPECT_EQ(adapter_bytes("whole", 12), adapter_bytes("part", 12));
  std::get<train::KtoLoss>(part.loss).undesirable_weight = 0.5f;
  expect_error<ConfigError>([&] { run_sft(part, control_); }, {"--undesirable-weight"});
}

TEST_F(Sft, KtoIsEvaluatedWithTheKlOfTheWholeSet) {
  SftOptions options = kto("eval");
  options.eval_sets = {{"labels", options.prompt_data + "@[0:5]"}};
  options.eval_interval = 12;
  run_sft(options, control_);
  SftOptions split = kto("eval_split");
  split.eval_sets = options.eval_sets;
  split.eval_interval = 12;
  split.training.max_tokens = 1;
  run_sft(split, control_);
  std::vector<Json> evaluations, other;
  for (const Json& line : metrics("eval"))
    if (line.contains("eval")) evaluations.push_back(line);
  for (const Json& line : metrics("eval_split"))
    if (line.contains("eval")) other.push_back(line);
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations, other);
  EXPECT_EQ(evaluations[0]["loss"], 0.5);
  EXPECT_LT(evaluations[1]["loss"].get<double>(), 0.5);
  EXPECT_GT(evaluations[1]["rewards/margins"].get<double>(), 0);
}

TEST_F(Sft, KtoWantsLabels) {
  const auto refused = [&](const std::string& row, std::initializer_list<const char*> parts) {
    SftOptions options = kto("refused");
    options.prompt_data = dir_.write("bad.jsonl", row + "\n").string();
    expect_error<DataError>([&] { run_sft(options, control_); }, parts);
  };
  refused(R"({"prompt": "1+2=", "completion": "3"})", {"no label", "bad.jsonl"});
  refused(R"({"prompt": "1+2=", "completion": "3", "label": 1})", {"no label", "got:    1"});
  refused(R"({"prompt": "1+2=", "chosen": "3", "rejected": "4"})", {"completion"});
  refused(R"({"text": "1+2=3", "label": true})", {"a prompt, a completion and a label"});
}

// Where the reference is the adapter that the run starts with, nothing is preferred yet.
TEST_F(Sft, AnAdapterIsTheReference) {
  run_sft(dpo("first"), control_);
  const std::string adapter =
      (dir_.path() / "first" / checkpoint::iteration_directory_name(6) / "lora_adapter").string();
  SftOptions from_base = dpo("from_base"), from_adapter = dpo("from_adapter");
  for (SftOptions* options : {&from_base, &from_adapter}) {
    options->adapter.adapter_path = adapter;
    options->eval_sets = {{"pairs", options->prompt_data + "@[0:3]"}};
    options->eval_interval = 6;
  }
  from_adapter.reference = adapter;
  run_sft(from_base, control_);
  run_sft(from_adapter, control_);
  for (size_t line : {0, 1}) {
    EXPECT_NE(metrics("from_base")[line]["rewards/margins"], 0.0);
    EXPECT_EQ(metrics("from_adapter")[line]["rewards/margins"], 0.0);
    EXPECT_NEAR(metrics("from_adapter")[line]["loss"].get<double>(), std::log(2), 1e-12);
  }
  SftOptions other = dpo("from_adapter");
  other.save.load = other.save.save;
  expect_error<ConfigError>([&] { run_sft(other, control_); }, {"--ref-load"});
}

TEST_F(Sft, HeldOutRowsAreEvaluated) {
  SftOptions options = arith("eval", conversations(10));
  options.eval_sets = {{"chat", options.prompt_data + "@[0:3]"}, {"sums", kArith + "/test.jsonl@[0:4]"}};
  options.eval_sets[1].path = dir_.write("sums.jsonl", "{\"prompt\": \"1+2=\", \"completion\": \"3\"}\n").string();
  options.eval_interval = 4;
  run_sft(options, control_);
  std::vector<Json> evals;
  for (const Json& line : metrics("eval"))
    if (line.contains("eval")) evals.push_back(line);
  ASSERT_EQ(evals.size(), 6u);  // before the first step, after four, after the last; two sets
  EXPECT_EQ(evals[0]["eval"], "chat");
  EXPECT_EQ(evals[1]["eval"], "sums");
  EXPECT_EQ(evals[4]["step"], 6);
  EXPECT_LT(evals[4]["loss"], evals[0]["loss"]);
  EXPECT_NEAR(evals[1]["perplexity"].get<double>(), std::exp(evals[1]["loss"].get<double>()), 1e-9);
  EXPECT_GE(evals[0]["token_accuracy"].get<double>(), 0);
  EXPECT_EQ(evals[1]["tokens"], 2);
  // Evaluation changes nothing.
  run_sft(arith("plain", conversations(10)), control_);
  EXPECT_EQ(adapter_bytes("plain", 6), adapter_bytes("eval", 6));
}

TEST_F(Sft, TheBestCheckpointIsKeptAndPatienceEnds) {
  SftOptions options = arith("best", conversations(10));
  options.optimizer.schedule.lr = 0.3;  // soon worse than before
  options.optimizer.schedule.style = train::DecayStyle::constant;
  options.num_steps = 30;
  options.save.save_interval = 0;
  options.eval_sets = {
      {"sums", dir_.write("sums.jsonl", "{\"prompt\": \"11+12=\", \"completion\": \"23\"}\n").string()}};
  options.eval_interval = 1;
  options.save_best = true;
  options.patience = 3;
  run_sft(options, control_);
  double best = 1e9;
  int64_t at = 0, last = 0;
  for (const Json& line : metrics("best")) {
    last = line["step"];
    if (line.contains("eval") && last > 0 && line["loss"].get<double>() < best) best = line["loss"], at = last;
  }
  EXPECT_EQ(checkpoint::best_iteration(options.save.save), at);
  EXPECT_EQ(last, at + 3);
  EXPECT_LT(last, 30);
  EXPECT_NE(info_.str().find("stop    3 evaluations"), std::string::npos);
  // Resuming a run that stopped adds nothing.
  const size_t lines = metrics("best").size();
  options.save.load = options.save.save;
  run_sft(options, control_);
  EXPECT_EQ(metrics("best").size(), lines);
  // Where it goes on from another directory, the best checkpoint is still the one over there.
  options.save.save = (dir_.path() / "elsewhere").string();
  info_.str("");
  run_sft(options, control_);
  EXPECT_NE(info_.str().find(options.save.load + "/" + checkpoint::iteration_directory_name(at)), std::string::npos)
      << info_.str();
}

TEST_F(Sft, AFormerBestCheckpointDoesNotStay) {
  SftOptions options = arith("best", conversations(10));
  options.num_steps = 4;
  options.save.save_interval = 0;
  options.save.total_limit = 1;
  options.eval_sets = {{"rows", options.prompt_data}};
  options.eval_interval = 1;
  options.save_best = true;
  run_sft(options, control_);
  const auto lines = metrics("best");
  EXPECT_LT(lines.back()["loss"], lines.front()["loss"]);
  EXPECT_EQ(checkpoint::best_iteration(options.save.save), 4);
  EXPECT_EQ(checkpoint::saved_iterations(options.save.save), std::vector<int64_t>{4});
}

// What was best on other rows says nothing of these, whatever the set is called.
TEST_F(Sft, AResumedRunWithAnotherHeldOutSetBeginsItsBestAnew) {
  const std::string easy = dir_.write("easy.jsonl", "{\"text\": \"1\"}\n").string(),
                    hard = dir_.write("hard.jsonl", "{\"text\": \"xqzj qxjz 9)\"}\n").string();
  SftOptions options = arith("first", conversations(10));
  options.optimizer.decay_steps = 8;
  options.num_steps = 4;
  options.eval_sets = {{"held_out", easy}};
  options.eval_interval = 2;
  options.save_best = true;
  options.patience = 2;
  run_sft(options, control_);
  ASSERT_LT(metrics("first").back()["loss"].get<double>(), 1e6);
  const std::string same_rows = dir_.write("copy.jsonl", "{\"text\": \"1\"}\n").string();
  const auto resumed = [&](const std::string& name, const std::string& set, const std::string& path) {
    SftOptions again = options;
    again.num_steps = 8;
    again.eval_sets = {{set, path}};
    again.save.load = options.save.save;
    again.save.save = (dir_.path() / name).string();
    info_.str("");
    run_sft(again, control_);
    return info_.str();
  };
  EXPECT_NE(resumed("other", "held_out", hard).find("held-out set held_out has other rows than the one of that name"),
            std::string::npos)
      << info_.str();
  double best = 1e9;
  int64_t at = 0;
  std::vector<int64_t> evaluated;
  for (const Json& line : metrics("other"))
    if (line.contains("eval")) {
      evaluated.push_back(line["step"]);
      if (line["loss"].get<double>() < best) best = line["loss"], at = line["step"];
    }
  ASSERT_GE(evaluated.size(), 3u) << info_.str();
  EXPECT_EQ(evaluated[0], 4);  // where the run goes on may be the best on this set
  EXPECT_EQ(checkpoint::best_iteration((dir_.path() / "other").string()), at);
  EXPECT_EQ(resumed("renamed", "test", same_rows).find("begin anew"), std::string::npos) << info_.str();
  EXPECT_NE(resumed("both", "test", hard).find("held-out set test has other rows than held_out"), std::string::npos)
      << info_.str();
}

TEST_F(Sft, InterruptedAnywhereResumesWithItsEvaluations) {
  const auto options = [&](const std::string& save) {
    SftOptions o = dpo(save);
    o.eval_sets = {{"a", o.prompt_data + "@[0:2]"}, {"b", o.prompt_data + "@[2:5]"}};
    o.eval_interval = 2;
    o.eval_before_train = false;
    o.save_best = true;
    o.patience = 5;
    return o;
  };
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_sft(options("whole"), control_);
  ASSERT_GT(questions, 15);
  for (int at = 4; at < questions; at += 3) {
    const std::string name = "part" + std::to_string(at);
    int asked = 0;
    control_.interrupted = [&] { return ++asked > at; };
    EXPECT_THROW(run_sft(options(name), control_), Cancelled);
    control_.interrupted = [] { return false; };
    SftOptions again = options(name);
    again.save.load = again.save.save;
    run_sft(again, control_);
    EXPECT_EQ(adapter_bytes(name, 6), adapter_bytes("whole", 6)) << at;
    EXPECT_EQ(checkpoint::best_iteration(again.save.save), checkpoint::best_iteration(options("whole").save.save))
        << at;
    const auto got = metrics(name), wanted = metrics("whole");
    ASSERT_EQ(got.size(), wanted.size()) << at;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i]["loss"], wanted[i]["loss"]) << at << ", line " << i;
  }
}

// Same rows, same flags that are kept by name, other tokens: the run could not be the uninterrupted one.
TEST_F(Sft, ResumedWithOtherTokensIsRefused) {
  SftOptions options = sft("part");
  options.rows.max_length = 5;
  options.num_steps = 2;
  run_sft(options, control_);
  options.save.load = options.save.save;
  options.rows.truncation = TruncationMode::keep_end;
  testing::expect_error<ConfigError>([&] { run_sft(options, control_); },
                                     {"tokens and targets of --prompt-data", "train_state.json"});
}

TEST_F(Sft, RenderShowsWhatIsTrainedOn) {
  commands::RenderOptions options{.hf_checkpoint = kArith, .chat = {.template_file = template_}, .tokens = true};
  options.input = dir_.write("rows.jsonl",
                             R"({"prompt": "1+2=", "completion": "3"})"
                             "\n"
                             R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "3",)"
                             R"( "weight": 0.5}]})"
                             "\n"
                             R"({"chosen": "1+2=3", "rejected": "1+2=4"})"
                             "\n")
                      .string();
  commands::run_render(options, control_);
  std::vector<Json> lines;
  std::istringstream printed(out_.str());
  for (std::string line; std::getline(printed, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 3u) << out_.str();
  EXPECT_EQ(lines[0]["text"], "1+2=3<|endoftext|>");
  EXPECT_EQ(lines[0]["loss_mask"].dump(), "[0,0,0,0,1,1]");
  EXPECT_EQ(lines[0]["tokens"].size(), 6u);
  EXPECT_EQ(lines[1]["text"], "user: 1<|endoftext|>assistant: 3<|endoftext|>");
  EXPECT_EQ(lines[1]["loss_mask"].back(), 0.5);
  EXPECT_EQ(lines[2]["chosen"]["loss_mask"].dump(), "[0,0,0,0,1,1]");
  EXPECT_EQ(lines[2]["rejected"]["text"], "1+2=4<|endoftext|>");
  // What it says of a row is a row that means the same.
  EXPECT_EQ(shown(R"({"prompt": "1+2=", "completion": "3"})"), shown(lines[0].dump()));
  // On a terminal targets are coloured.
  out_.str("");
  control_.out_terminal = true;
  options.input += "@[0:1]";
  commands::run_render(options, control_);
  EXPECT_NE(out_.str().find("1+2=\033[30;42m3<|endoftext|>\033[0m"), std::string::npos) << out_.str();
  EXPECT_NE(out_.str().find("2 of 6 tokens are targets"), std::string::npos) << out_.str();
  control_.out_terminal = false;
  options.loss_mask = LossMaskType::completion;
  options.input = dir_.write("rows.jsonl", R"({"messages": [{"role": "user", "content": "1"}]})").string();
  testing::expect_error<DataError>([&] { commands::run_render(options, control_); },
                                   {"rows.jsonl line 1", "no completion"});
}

TEST(BestSoFar, CountsWhatIsNotBetter) {
  BestSoFar best;
  EXPECT_FALSE(best.add(0, 1.0, 0));  // no checkpoint of the beginning
  EXPECT_TRUE(best.add(2, 2.0, 0));
  EXPECT_FALSE(best.add(4, 2.0, 0));
  EXPECT_FALSE(best.add(6, 1.95, 0.1));
  EXPECT_EQ(best.stale, 2);
  const BestSoFar same = BestSoFar::from(best.json(), "test");
  EXPECT_EQ(same.json(), best.json());
  EXPECT_TRUE(best.add(8, 1.8, 0.1));
  EXPECT_EQ(best.iteration, 8);
  EXPECT_EQ(best.stale, 0);
}

TEST(BestSoFar, BeginsAnewOnOtherRows) {
  std::ostringstream out;
  BestSoFar best;
  best.add(2, 2.0, 0);
  OrderedJson kept = best.json();
  kept.erase("set");
  kept.erase("digest");
  best = BestSoFar::from(kept, "of an older version");
  EXPECT_FALSE(best.measure_on("a", "rows of a", out));
  EXPECT_EQ(best.iteration, 2);
  best = BestSoFar::from(best.json(), "test");
  EXPECT_FALSE(best.measure_on("b", "rows of a", out));
  EXPECT_EQ(out.str(), "");
  EXPECT_TRUE(best.measure_on("c", "rows of c", out));
  EXPECT_NE(out.str().find("held-out set c has other rows than b"), std::string::npos) << out.str();
  EXPECT_FALSE(best.loss);
  EXPECT_EQ(best.evaluated, -1);
  EXPECT_TRUE(best.add(4, 3.0, 0));
}

}  // namespace
}  // namespace lockstep::recipes
