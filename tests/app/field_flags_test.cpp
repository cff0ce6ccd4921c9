// Errors of the libraries name fields, the program prints flags.
#include "cli/field_flags.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "checkpoint/hf_directory.h"
#include "cli/command_line.h"
#include "core/stream.h"
#include "train/loss.h"
#include "train/schedule.h"

namespace lockstep::cli {
namespace {

TEST(FieldFlags, NamesBecomeFlags) {
  EXPECT_EQ(with_flags("PolicyLoss::clip_low, PolicyLoss::clip_high"), "--eps-clip, --eps-clip-high");
  EXPECT_EQ(with_flags("a smaller TrainerOptions::max_tokens than 5"), "a smaller --max-tokens-per-gpu than 5");
  EXPECT_EQ(with_flags("(SaveOptions::load)"), "(--load)");
  for (const char* other :
       {"", "::", "a::b", "SaveOptions::loaded", "XSaveOptions::load", "12:34::56", "SaveOptions:load"})
    EXPECT_EQ(with_flags(other), other);
}

TEST(FieldFlags, AStreamSaysFlagsToo) {
  std::ostringstream out;
  FlagStream stream(out);
  stream << "note    no SaveOptions::save: " << 3 << ' ' << std::string("SaveOptions::other") << '\n' << std::flush;
  EXPECT_EQ(out.str(), "note    no --save: 3 SaveOptions::other\n");
}

// What the program prints of an error that `body` throws.
std::string printed(const std::function<void()>& body) {
  std::ostringstream err;
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (...) {
    report_error(err);
  }
  return err.str();
}

TEST(FieldFlags, MessagesOfLibrariesArePrintedWithFlags) {
  const auto loss = [](const train::Loss& kind) { evaluate_loss(kind, {}, {}, {}, {}, {}, {}); };
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[&] { loss(train::PolicyLoss{.clip_low = -1}); },
       "error: a clip range must not be negative\n  where:  --eps-clip, --eps-clip-high\n  got:    -1.000000, "
       "0.200000\n"
       "  wanted: >= 0\n  kind:   ConfigError\n"},
      {[&] { loss(train::PolicyLoss{.clip_c = 0.5f}); }, "  where:  --eps-clip-c\n"},
      {[&] { loss(train::DpoLoss{.beta = 0}); }, "  where:  --dpo-beta\n"},
      {[] { train::parse_kl_type("k4"); }, "  where:  --kl-loss-type\n"},
      {[] { train::parse_decay_style("steep"); }, "  where:  --lr-decay-style\n"},
      {[] { Stream({.threads = -1}); }, "  where:  --threads\n"},
      {[] { parse_cpu_isa("sse"); }, "  where:  --cpu-isa\n"},
      {[] { parse_device("tpu"); }, "  where:  --device\n"},
      {[] { checkpoint::resolve_hf_checkpoint("/nowhere/at all", "cache"); }, "  where:  --hf-checkpoint\n"},
  };
  for (const auto& [body, wanted] : cases) EXPECT_NE(printed(body).find(wanted), std::string::npos) << printed(body);
}

// The texts between quotation marks of every source below src/, where they are, and the whole line.
void for_each_literal(
    const std::function<void(const std::string& text, const std::string& where, const std::string& line)>& use) {
  const std::filesystem::path root = LOCKSTEP_SOURCE_DIR "/src";
  const std::regex literal(R"re("((?:[^"\\]|\\.)*)")re");
  size_t sources = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") continue;
    ++sources;
    std::ifstream file(entry.path());
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (line.size() > 2000) continue;  // tables
      const size_t comment = line.find("// ");
      const std::string code = comment == 0 ? "" : line;
      for (std::sregex_iterator it(code.begin(), code.end(), literal), end; it != end; ++it)
        use((*it)[1], entry.path().lexically_relative(root).string() + ":" + std::to_string(number), code);
    }
  }
  EXPECT_GT(sources, 300u);
}

// But for the settings that a checkpoint keeps: their names are part of its format, and are the flags'.
TEST(FieldFlags, NoLibraryNamesAFlag) {
  const std::regex flag("(^|[^a-z-])--[a-z][a-z-]+"), name("--[a-z][a-z-]+"),
      message("\\.(what|where|got|wanted|attempt) ");
  for_each_literal([&](const std::string& text, const std::string& where, const std::string& line) {
    const bool is_setting =
        where.starts_with("recipes/") && std::regex_match(text, name) && !std::regex_search(line, message);
    // And the flags of other programs: of servers that a run asks.
    const bool kept =
        is_setting || where.starts_with("recipes/rl_settings.cpp") || where.starts_with("recipes/algorithm.cpp") ||
        where.starts_with("recipes/sft.cpp") || where.starts_with("recipes/run_settings.cpp") ||
        where.starts_with("recipes/server_settings.cpp") || where.starts_with("rollout/remote/engine_kind.h") ||
        where.starts_with("rollout/remote/sglang_dialect.cpp") || where.starts_with("recipes/rollout_engine.cpp") ||
        where.starts_with("versions/server_check.cpp");
    if (!kept) {
      EXPECT_FALSE(std::regex_search(text, flag)) << where << ": \"" << text << "\"";
    }
  });
}

TEST(FieldFlags, EveryFieldThatAMessageNamesIsInTheTableAndEveryFlagIsOne) {
  std::set<std::string> known, named;
  for (const auto& [field, flag] : field_flags()) known.emplace(field);
  const std::regex field(
      "(^|[^A-Za-z0-9_:])([A-Z][A-Za-z]*(?:Options|Loss|Config|Scale|Checks)|Schedule|Base)::([a-z_0-9]+)");
  for_each_literal([&](const std::string& text, const std::string& where, const std::string&) {
    for (std::sregex_iterator it(text.begin(), text.end(), field), end; it != end; ++it) {
      const std::string name = (*it)[2].str() + "::" + (*it)[3].str();
      if (name.starts_with("TrainOptions::")) continue;  // of one pass of the model: the trainer sets them
      EXPECT_TRUE(known.contains(name)) << where << ": " << name;
      named.insert(name);
    }
  });
  EXPECT_EQ(named, known) << "every field of the table is named by some message";

  std::ostringstream help, err;
  for (const char* command : {"train", "sft", "dpo", "score", "generate", "serve"})
    run({command, "--help"}, {.out = &help, .err = &err});
  for (const auto& [name, flag] : field_flags())
    EXPECT_TRUE(std::regex_search(help.str(), std::regex("\n *" + std::string(flag) + " "))) << flag;
}

}  // namespace
}  // namespace lockstep::cli
