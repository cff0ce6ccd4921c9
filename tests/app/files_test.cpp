// merge, diff, verify, convert on the command line.
#include <gtest/gtest.h>

#include <sstream>

#include "app/arguments.h"
#include "cli/command_line.h"
#include "cli/parse_files.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;

const std::string kAdapter = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3/adapter";

TEST(MergeCommand, Flags) {
  const auto parse = [](const std::string& more) {
    return parse_merge(words("--hf-checkpoint M --lora-adapter-path a --output o " + more));
  };
  const commands::MergeOptions plain = parse("");
  EXPECT_EQ(plain.max_shard_bytes, 5'000'000'000);
  EXPECT_FALSE(plain.dtype);
  EXPECT_FALSE(plain.overwrite);
  for (const auto& [text, bytes] : {std::pair<std::string, int64_t>{"40KB", 40'000},
                                    {"1.5MB", 1'500'000},
                                    {"2GiB", int64_t{2} << 30},
                                    {"512MiB", int64_t{512} << 20},
                                    {"77", 77},
                                    {"8B", 8}})
    EXPECT_EQ(parse("--max-shard-size " + text).max_shard_bytes, bytes) << text;
  for (const std::string text : {"5TB", "GB", "-1GB", "0", "1e30"})
    expect_error<ConfigError>([&] { parse("--max-shard-size " + text); }, {"--max-shard-size", "5GB"});
  EXPECT_EQ(parse("--dtype bfloat16").dtype, DType::bf16);
  EXPECT_EQ(parse("--dtype f16").dtype, DType::f16);
  EXPECT_EQ(parse("--dtype float32").dtype, DType::f32);
  EXPECT_FALSE(parse("--dtype auto").dtype);
  expect_error<ConfigError>([&] { parse("--dtype int8"); }, {"--dtype", "int8", "bfloat16"});
  expect_error<ConfigError>([] { parse_merge({}); }, {"missing: --hf-checkpoint, --lora-adapter-path, --output"});
}

TEST(ConvertCommand, Flags) {
  const auto parse = [](const std::string& more) {
    return parse_convert(words("--hf-checkpoint M --lora-adapter-path a --output o " + more));
  };
  EXPECT_EQ(parse("--to hf").to, commands::AdapterNames::hf);
  EXPECT_EQ(parse("--to megatron --lora-type canonical_lora").lora_type, lora::LoraType::canonical);
  EXPECT_FALSE(parse("--to megatron --lora-type auto").lora_type);
  expect_error<ConfigError>([&] { parse(""); }, {"missing: --to"});
  expect_error<ConfigError>([&] { parse("--to nemo"); }, {"--to", "nemo", "megatron, hf"});
  expect_error<ConfigError>([&] { parse("--to hf --lora-type lora"); }, {"--lora-type", "Megatron's names"});
}

TEST(DiffCommand, ExitCodesAreThoseOfDiff) {
  std::ostringstream out, err;
  const Console console{.out = &out, .err = &err};
  EXPECT_EQ(run({"diff", kAdapter, kAdapter}, console), 0);
  EXPECT_EQ(run({"diff", kAdapter, kAdapter + "_pattern"}, console), 1);
  EXPECT_EQ(run({"diff", kAdapter, kAdapter + "_pattern", "--rtol", "1", "--json"}, console), 1);
  expect_error<ConfigError>([&] { run({"diff", kAdapter}, console); }, {"diff needs two paths"});
  expect_error<ConfigError>([&] { run({"diff", kAdapter, "/nowhere"}, console); }, {"no adapter there", "/nowhere"});
}

TEST(VerifyCommand, PrintsWhatItChecked) {
  std::ostringstream out, err;
  const Console console{.out = &out, .err = &err};
  EXPECT_EQ(run({"verify", kAdapter}, console), 0);
  EXPECT_NE(out.str().find("checked  "), std::string::npos);
  EXPECT_NE(out.str().find("whole    " + kAdapter), std::string::npos);
  expect_error<FormatError>(
      [&] {
        run({"verify", kAdapter, "--hf-checkpoint", LOCKSTEP_SOURCE_DIR "/models/arith"}, console);
      },
      {"problems found"});
  EXPECT_NE(out.str().find("problem  "), std::string::npos);
  expect_error<ConfigError>([&] { run({"verify"}, console); }, {"verify needs a path"});
}

}  // namespace
}  // namespace lockstep::cli
