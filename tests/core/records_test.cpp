// Benchmark records are whole: a number without its command, machine and commit is no record.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/fs.h"
#include "core/json.h"

namespace lockstep {
namespace {

TEST(Records, EachSaysHowItWasMade) {
  int records = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(LOCKSTEP_SOURCE_DIR "/bench/records")) {
    if (entry.path().extension() != ".json") continue;
    ++records;
    const Json record = parse_json(fs::read_file(entry.path()), entry.path().string());
    for (const char* field : {"name", "date", "command", "machine", "commit"})
      EXPECT_TRUE(record.contains(field)) << entry.path() << ": " << field;
  }
  EXPECT_GT(records, 0);
}

}  // namespace
}  // namespace lockstep
