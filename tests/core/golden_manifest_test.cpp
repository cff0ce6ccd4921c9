// The golden files are those that the generator wrote: MANIFEST.json names every one of them and its SHA-256.
#include <gtest/gtest.h>

#include <filesystem>

#include "core/fs.h"
#include "core/hash.h"
#include "core/json.h"

namespace lockstep {
namespace {

TEST(GoldenManifest, EveryFileHasTheHashThatIsRecorded) {
  const fs::Path root = fs::Path(LOCKSTEP_SOURCE_DIR) / "tests" / "golden";
  const Json files = read_json((root / "MANIFEST.json").string()).at("files");
  EXPECT_GE(files.size(), 48u);
  for (const auto& [name, recorded] : files.items()) {
    ASSERT_TRUE(std::filesystem::is_regular_file(root / name)) << name;
    const std::string bytes = fs::read_file(root / name);
    EXPECT_EQ(bytes.size(), recorded.at("bytes").get<size_t>()) << name;
    Sha256 hash;
    hash.update(bytes);
    EXPECT_EQ(hash.hex(), recorded.at("sha256").get<std::string>()) << name;
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file() || entry.path().filename() == "MANIFEST.json") continue;
    const std::string name = std::filesystem::relative(entry.path(), root).generic_string();
    EXPECT_TRUE(files.contains(name)) << name << " is not in MANIFEST.json";
  }
}

}  // namespace
}  // namespace lockstep
