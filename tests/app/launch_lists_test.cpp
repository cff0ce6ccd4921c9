// Every argument list of a dense model that miles' launch scripts pass (tests/data/launches, written by
// tools/launch_lists.py), with the flags that describe its model left out and a tiny model, its data and one device
// appended: it resolves, and one rollout runs, or it ends in the error that says which function of Python it needs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "app/arguments.h"
#include "cli/command_line.h"
#include "cli/known.h"
#include "core/error.h"
#include "core/fs.h"
#include "core/json.h"
#include "server/http/http.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

const std::string kModel = LOCKSTEP_SOURCE_DIR "/models/arith";

constexpr char kGenerate[] = "Python is not run for: --custom-generate-function-path";
constexpr char kTis[] = "Python is not run for: --custom-tis-function-path";
constexpr char kEvalFunction[] = "Python is not run for: --eval-function-path";

// The refusals among the lists; all others run.
const std::map<std::string, std::string>& refusals() {
  static const std::map<std::string, std::string> kRefusals = {
      {"eval__run-qwen3-32B", kEvalFunction},
      {"eval__run-qwen3-4B", kEvalFunction},
      {"geo3k_vlm__run_geo3k_vlm", kGenerate},  // and its rows have images
      {"geo3k_vlm__run_geo3k_vlm_sft", "not available yet: --multimodal-keys"},
      {"search-r1__run_qwen2.5_3B", kGenerate},
      {"strands_sglang__strands_qwen3_8b", kGenerate},
      {"tau-bench__run_qwen3_4B", kGenerate},
      {"train_infer_mismatch_helper__run-qwen3-4b-fsdp-mis", kTis},
      {"train_infer_mismatch_helper__run-qwen3-4b-mis", kTis},
  };
  return kRefusals;
}

Values without_shape(const Values& list) {
  Values kept;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto shape = std::ranges::find(shape_flags(), list[i], &ShapeFlag::name);
    if (shape == shape_flags().end())
      kept.push_back(list[i]);
    else if (shape->arity == Arity::one)
      ++i;
  }
  return kept;
}

// Says log-prob -1 of everything it is asked about, as SGLang's /generate does.
class Teacher {
 public:
  Teacher()
      : server_(server::HttpOptions{.port = 0}, [](const server::HttpRequest& request,
                                                   const std::shared_ptr<server::Responder>& reply) {
          const Json body = Json::parse(request.body);
          Json itself = Json::array(), others = Json::array();
          for (const Json& id : body["input_ids"]) {
            itself.push_back({itself.empty() ? Json() : Json(-1.0), id, nullptr});
            Json said = Json::array();
            for (const Json& candidate : body.value("token_ids_logprob", Json::array()))
              said.push_back({-1.0, candidate, nullptr});
            others.push_back(others.empty() ? Json() : said);
          }
          reply->send(
              {.body = Json{{"text", ""},
                            {"meta_info", {{"input_token_logprobs", itself}, {"input_token_ids_logprobs", others}}}}
                           .dump()});
        }) {}
  ~Teacher() {
    server_.stop();
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_.port()) + "/generate"; }

 private:
  server::HttpServer server_;
  std::thread thread_{[this] { server_.run(); }};
};

class LaunchLists : public ::testing::Test {
 protected:
  // The list by its name, with what this test puts in the place of the script's machine.
  Values adapted(const std::string& name) {
    Values list;
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/data/launches/" + name + ".txt");
    for (std::string word; std::getline(file, word);) list.push_back(word);
    EXPECT_GT(list.size(), 90u) << name;
    list = without_shape(list);
    for (std::string& word : list) {
      if (word.starts_with("<REPO_ROOT>/")) word = (dir_ / fs::Path(word).filename().string()).string();
      if (const size_t url = word.find("http://127.0.0.1:1314"); url != std::string::npos)
        word = word.substr(0, url) + teacher_.url();
    }
    const auto has = [&](const char* flag) { return std::ranges::count(list, flag) > 0; };
    std::string more =
        " --hf-checkpoint " + kModel + " --prompt-data " + (dir_ / "train.jsonl").string() +
        " --actor-num-nodes 1 --actor-num-gpus-per-node 1 --rollout-num-gpus 1 --num-gpus-per-node 1"
        " --rollout-num-gpus-per-engine 1 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1"
        " --context-parallel-size 1 --max-tokens-per-gpu 256 --device cpu --threads 1";
    if (has("--apply-chat-template") || has("sft_loss")) more += " --chat-template " + (dir_ / "chat.jinja").string();
    if (!has("--lora-rank")) more += " --lora-rank 4 --target-modules all-linear";
    if (has("--ref-load")) more += " --ref-load " + kModel;
    if (has("--opd-teacher-load")) more += " --opd-teacher-load " + kModel;
    if (has("--load")) more += " --load " + (dir_ / "save").string();
    if (has("--save")) more += " --save " + (dir_ / "save").string();
    if (has("--dump-details")) more += " --dump-details " + (dir_ / "details").string();
    if (has("--eval-prompt-data")) more += " --eval-prompt-data held_out " + (dir_ / "test.jsonl").string();
    if (has("--custom-rm-path") && !has("--use-opd")) more += " --custom-rm-path rewards.half";
    const bool sft = has("sft_loss");
    more += sft ? " --rollout-batch-size 4 --global-batch-size 4 --num-rollout 1"
                : " --rollout-batch-size 2 --n-samples-per-prompt 4 --global-batch-size 8 --num-rollout 1"
                  " --rollout-max-response-len 8 --label-key label";
    // The tiny model solves no task of the filtered list: its groups would all be dropped.
    if (has("--dynamic-sampling-filter-path")) more += " --rm-type random";
    if (has("--over-sampling-batch-size")) more += " --over-sampling-batch-size 8";
    if (has("--num-steps-per-rollout")) more += " --num-steps-per-rollout 1";
    if (has("--n-samples-per-eval-prompt")) more += " --n-samples-per-eval-prompt 1";
    if (has("--eval-max-response-len")) more += " --eval-max-response-len 8";
    for (const std::string& word : words(more)) list.push_back(word);
    return list;
  }

  void SetUp() override {
    setenv("PYTHONPATH", dir_.path().c_str(), 1);  // of rewards.py
    std::string rows;
    for (int a = 1; a < 9; ++a)
      rows += OrderedJson{{"prompt", {{{"role", "user"}, {"content", fmt::format("{}+{}=", a, 9 - a)}}}},
                          {"messages",
                           {{{"role", "user"}, {"content", fmt::format("{}+{}=", a, 9 - a)}},
                            {{"role", "assistant"}, {"content", "9"}}}},
                          {"label", "9"},
                          {"answer", "9"},
                          {"metadata", {{"opd_teacher", a % 2 == 0 ? "math" : "code"}}}}
                  .dump() +
              "\n";
    dir_.write("train.jsonl", rows);
    dir_.write("test.jsonl", rows);
    // The published file also grades ifbench, which is refused by name (docs/rewards.md).
    dir_.write("multi_task.yaml",
               "eval:\n  defaults: {max_response_len: 8, top_p: 0.7}\n  datasets:\n    - {name: aime, "
               "path: " +
                   (dir_ / "test.jsonl").string() + ", rm_type: deepscaler, n_samples_per_eval_prompt: 2}\n");
    dir_.write("chat.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}");
    dir_.write("rewards.py", "def half(args, sample, **kwargs):\n    return 0.5\n");
  }

  void TearDown() override { unsetenv("PYTHONPATH"); }

  // What the program makes of it; the text of a ConfigError. `--without` of what the error says changes no result.
  std::string outcome(Values list) {
    list.insert(list.begin(), "train");
    for (int attempt = 0;; ++attempt) {
      std::ostringstream out, err;
      try {
        EXPECT_EQ(run(list, {.out = &out, .err = &err}), 0) << err.str();
        return {};
      } catch (const ConfigError& error) {
        constexpr std::string_view kWithout = "same results: --without ";
        const size_t at = error.fault().attempt.find(kWithout);
        if (attempt > 0 || at == std::string::npos) return error.what();
        list.insert(list.end(), {"--without", error.fault().attempt.substr(at + kWithout.size())});
      }
    }
  }

  testing::TempDirectory dir_;
  Teacher teacher_;
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/tests/data/launches"))
    if (entry.path().extension() == ".txt") all.push_back(entry.path().stem().string());
  std::ranges::sort(all);
  return all;
}

TEST_F(LaunchLists, ResolveOrSayWhichPythonTheyNeed) {
  EXPECT_EQ(names().size(), 30u);
  for (const auto& [name, refusal] : refusals()) EXPECT_TRUE(std::ranges::binary_search(names(), name)) << name;
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    Values list = adapted(name);
    list.push_back("--dry-run");
    const std::string said = outcome(list);
    const auto refusal = refusals().find(name);
    if (refusal == refusals().end())
      EXPECT_EQ(said, "");
    else
      EXPECT_NE(said.find(refusal->second), std::string::npos) << said;
  }
}

TEST_F(LaunchLists, OneRolloutRuns) {
  for (const std::string& name : names()) {
    if (refusals().contains(name)) continue;
    SCOPED_TRACE(name);
    std::filesystem::remove_all(dir_ / "save");
    EXPECT_EQ(outcome(adapted(name)), "");
  }
}

}  // namespace
}  // namespace lockstep::cli
