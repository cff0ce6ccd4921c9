// The walls of the house: which room may include which is re-derived from the #include lines and held against the
// table.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace files = std::filesystem;
using Edges = std::map<std::string, std::set<std::string>>;

const files::path kRoot = LOCKSTEP_SOURCE_DIR;

// docs/architecture.md, besides core.
const Edges kAllowed = {
    {"core", {}},
    {"net", {}},
    {"kernels", {}},
    {"data", {}},
    {"text", {}},
    {"parallel", {}},
    {"lora", {"kernels"}},
    {"checkpoint", {"lora"}},
    {"model", {"kernels", "lora", "parallel"}},
    {"load", {"kernels", "lora", "checkpoint", "model"}},
    {"train", {"kernels", "lora", "model", "parallel"}},
    {"rollout", {"net", "kernels", "lora", "model", "parallel", "text"}},
    {"versions", {"net", "lora", "checkpoint", "model", "load", "parallel", "rollout"}},
    {"rl", {"net", "data", "text", "lora", "parallel", "train", "rollout", "versions"}},
    {"service",
     {"net", "kernels", "data", "text", "parallel", "lora", "checkpoint", "model", "load", "train", "rollout",
      "versions", "rl"}},
    {"recipes",
     {"net", "kernels", "data", "text", "parallel", "lora", "checkpoint", "model", "load", "train", "rollout",
      "versions", "rl", "service"}},
};

bool is_source(const files::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

struct Include {
  std::string from, to, header, file;
};

// Those below `tree`; `from` is the folder in it.
std::vector<Include> includes_below(const files::path& tree) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s+"([a-z_]+)/([^"]+)")re");
  std::vector<Include> found;
  for (const auto& entry : files::recursive_directory_iterator(tree)) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    const std::string room = files::relative(entry.path(), tree).begin()->string();
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_search(line, match, kInclude)) found.push_back({room, match[1], match[2], entry.path().string()});
    }
  }
  return found;
}

std::vector<Include> includes_of_rooms() {
  return includes_below(kRoot / "src");
}

TEST(Rooms, EveryRoomIsUsed) {
  std::set<std::string> used, there;
  for (const Include& include : includes_of_rooms()) {
    there.insert(include.from);
    if (include.from != include.to) used.insert(include.to);
  }
  for (const Include& include : includes_below(kRoot / "app")) used.insert(include.to);
  for (const auto& [room, row] : kAllowed) {
    EXPECT_TRUE(there.contains(room)) << room << " is listed and not there";
    EXPECT_TRUE(used.contains(room)) << "nobody includes " << room;
  }
}

// Who samples, publishes or trains with samples knows the port, not who stands behind it.
TEST(Rooms, OnlyThoseWhoMakeAnEngineNameIt) {
  for (const Include& include : includes_of_rooms()) {
    const bool names_engine = include.to == "rollout" && include.header.starts_with("local/engine");
    EXPECT_FALSE(names_engine && include.from != "rollout" && include.from != "recipes" && include.from != "service")
        << include.file;
  }
  EXPECT_FALSE(kAllowed.at("train").contains("rollout") || kAllowed.at("rollout").contains("train"));
}

TEST(Rooms, EveryIncludeIsAListedEdge) {
  int edges = 0;
  for (const Include& include : includes_of_rooms()) {
    if (include.from == include.to || include.to == "core") continue;
    ++edges;
    ASSERT_TRUE(kAllowed.contains(include.from)) << include.file << " lies in no room";
    EXPECT_TRUE(kAllowed.at(include.from).contains(include.to))
        << include.file << " includes " << include.to << "/" << include.header << "; " << include.from
        << " may not see " << include.to;
  }
  EXPECT_GT(edges, 50) << "the sources were not found";
}

TEST(Rooms, NoTwoRoomsIncludeEachOther) {
  Edges seen;
  for (const Include& include : includes_of_rooms())
    if (include.from != include.to) seen[include.from].insert(include.to);
  for (const auto& [from, rooms] : seen)
    for (const std::string& to : rooms)
      EXPECT_FALSE(seen.contains(to) && seen.at(to).contains(from)) << from << " and " << to << " include each other";
}

TEST(Rooms, CheckpointSeesOnlyTheNamesOfLora) {
  for (const Include& include : includes_of_rooms()) {
    if (include.from == "checkpoint" && include.to == "lora") {
      EXPECT_TRUE(include.header == "config.h" || include.header == "policy.h") << include.file;
    }
  }
}

TEST(Rooms, TargetsLinkExactlyTheirRow) {
  std::ifstream lines(kRoot / "src" / "CMakeLists.txt");
  static const std::regex kRoom(R"(^lockstep_room\(([a-z]+)((?: [a-z]+)*)\))");
  Edges linked;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, kRoom)) continue;
    std::istringstream names(match[2]);
    auto& rooms = linked[match[1]];
    for (std::string name; names >> name;)
      if (name != "core") rooms.insert(name);
  }
  EXPECT_EQ(linked, kAllowed);
}

// std::regex calls itself for every character and backtracks without bound: core/regex.h.
TEST(Rooms, NobodyUsesStdRegex) {
  int files_read = 0;
  for (const char* tree : {"src", "app"})
    for (const auto& entry : files::recursive_directory_iterator(kRoot / tree)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++files_read;
      std::ifstream lines(entry.path());
      for (std::string line; std::getline(lines, line);) {
        EXPECT_EQ(line.find("<regex>"), std::string::npos) << entry.path() << ": " << line;
        if (!line.starts_with("//")) {
          EXPECT_EQ(line.find("std::regex"), std::string::npos) << entry.path() << ": " << line;
        }
      }
    }
  EXPECT_GT(files_read, 300) << "the sources were not found";
}

// The folders of app/, each with those that it may see.
TEST(Rooms, FoldersOfTheProgramSeeOnlyThoseBeforeThem) {
  const Edges allowed = {{"commands", {}},
                         {"server/http", {}},
                         {"server/protocol", {"server/http"}},
                         {"server/routes", {"server/http", "server/protocol"}},
                         {"server/dashboard", {"server/http"}},
                         {"server", {"server/http", "server/protocol", "server/routes"}},
                         {"cli", {"commands", "server", "server/dashboard"}}};
  const auto folder = [](const std::string& room, const std::string& below) {
    const size_t slash = below.find('/');
    return room != "server" || slash == std::string::npos ? room : room + "/" + below.substr(0, slash);
  };
  std::set<std::string> seen;
  for (const Include& include : includes_below(kRoot / "app")) {
    const std::string below = files::relative(include.file, kRoot / "app" / include.from).string();
    const std::string from = folder(include.from, below), to = folder(include.to, include.header);
    seen.insert(from);
    ASSERT_TRUE(allowed.contains(from)) << include.file << " lies in no folder that is listed";
    if (from == to || (!allowed.contains(to) && include.to != "cli" && include.to != "server")) continue;
    EXPECT_TRUE(allowed.at(from).contains(to)) << include.file << " includes " << include.to << "/" << include.header;
  }
  EXPECT_EQ(seen.size(), allowed.size());
}

TEST(Rooms, ServerAndCommandLineHoldNoLogicOfTheirOwn) {
  static const std::regex kInclude(
      R"re(^\s*#\s*include\s+"(kernels|model|train|rollout|versions)/(?!sampling\.h|loss\.h|schedule\.h))re");
  int files_read = 0;
  for (const char* tree : {"cli", "server"})
    for (const auto& entry : files::recursive_directory_iterator(kRoot / "app" / tree)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++files_read;
      std::ifstream lines(entry.path());
      for (std::string line; std::getline(lines, line);)
        EXPECT_FALSE(std::regex_search(line, kInclude)) << entry.path() << ": " << line << " belongs in a recipe";
    }
  EXPECT_GT(files_read, 80) << "the sources were not found";
}

}  // namespace
