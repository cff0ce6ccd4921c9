#include "commands/output_file.h"

#include <gtest/gtest.h>

#include "core/fs.h"
#include "support/temp_directory.h"

namespace lockstep::commands {
namespace {

TEST(OutputFile, HasOneWriter) {
  const testing::TempDirectory dir;
  const std::string file = (dir / "out.jsonl").string();
  {
    OutputFile first(file, {{"seed", 1}}, false);
    EXPECT_EQ(first.unlocked(), "");
    first.write("{}\n");
    for (const bool overwrite : {false, true})
      testing::expect_error<ResourceError>(
          [&] {
            OutputFile(file, {{"seed", 1}}, overwrite);
          },
          {"the --output file is in use", "out.jsonl", "another --output"});
  }
  EXPECT_EQ(fs::read_file(file), "{}\n");
  OutputFile second(file, {{"seed", 1}}, false);
  EXPECT_EQ(second.earlier_line(), "{}");
}

TEST(OutputFile, ADeviceIsWrittenAsItIs) {
  {
    OutputFile file("/dev/null", {{"seed", 1}}, false);
    file.write("{}\n");
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_FALSE(fs::exists("/dev/null.run.json"));
}

}  // namespace
}  // namespace lockstep::commands
