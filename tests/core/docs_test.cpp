// The pages lead somewhere: every file that they name or link exists.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace lockstep {
namespace {

namespace stdfs = std::filesystem;

const stdfs::path kRoot = LOCKSTEP_SOURCE_DIR;

std::vector<stdfs::path> pages() {
  std::vector<stdfs::path> found = {kRoot / "README.md", kRoot / "CONTRIBUTING.md", kRoot / "models/arith/README.md"};
  for (const auto& entry : stdfs::recursive_directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  return found;
}

std::vector<std::string> lines_of(const stdfs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// NAME and ROOM stand for what a reader adds; a pattern is one of the shell's.
bool is_placeholder(const std::string& name) {
  static const std::regex pattern("NAME|ROOM|DIR|[*{<]");
  return std::regex_search(name, pattern);
}

void expect_exists(const stdfs::path& path, const stdfs::path& page, size_t line) {
  EXPECT_TRUE(stdfs::exists(path)) << page.lexically_relative(kRoot).string() << " line " << line << " names "
                                   << path.lexically_normal().lexically_relative(kRoot).string();
}

template <class F>
void for_each_match(const std::string& line, const std::regex& pattern, const F& f) {
  for (auto at = std::sregex_iterator(line.begin(), line.end(), pattern); at != std::sregex_iterator(); ++at)
    f((*at)[1].str());
}

TEST(DocsTest, EveryLinkLeadsToAFile) {
  const std::regex link("\\]\\(([^)#]+)(#[^)]*)?\\)");
  size_t links = 0;
  for (const stdfs::path& page : pages()) {
    const std::vector<std::string> lines = lines_of(page);
    for (size_t i = 0; i < lines.size(); ++i)
      for_each_match(lines[i], link, [&](const std::string& target) {
        if (target.find("://") != std::string::npos) return;
        ++links;
        expect_exists(page.parent_path() / target, page, i + 1);
      });
  }
  EXPECT_GT(links, 50u);
}

TEST(DocsTest, EveryPathInCodeMarksExists) {
  const std::regex path("`((src|app|tests|tools|bench|docs|examples|models)/[^` ,;:]+)");
  size_t paths = 0;
  for (const stdfs::path& page : pages()) {
    const std::vector<std::string> lines = lines_of(page);
    for (size_t i = 0; i < lines.size(); ++i)
      for_each_match(lines[i], path, [&](const std::string& name) {
        if (is_placeholder(name)) return;
        ++paths;
        expect_exists(kRoot / name, page, i + 1);
      });
  }
  EXPECT_GT(paths, 50u);
}

// The files of a row's first cell that exist already; what the row adds has NAME in it.
std::set<std::string> changed_files(const std::string& row) {
  static const std::regex path("`((src|app|tests|tools|bench|docs)/[^` ,;:]+|README.md)`");
  std::set<std::string> files;
  for_each_match(row.substr(0, row.find(" | ")), path, [&](const std::string& name) {
    if (!is_placeholder(name)) files.insert(name);
  });
  return files;
}

// What is added most often changes at most eight files beside its own.
TEST(DocsTest, NoAdditionTouchesManyFiles) {
  constexpr size_t kMost = 8;
  const std::set<std::string> counted = {
      "a weight format",          "a linear layer to the block",     "experts",
      "a model family",           "an objective of the policy loss", "a server that generates rollouts",
      "a transport between ranks"};
  size_t rows = 0, tables = 0, seen = 0;
  std::string heading;
  std::set<std::string> files;
  for (const std::string& line : lines_of(kRoot / "CONTRIBUTING.md")) {
    if (line.starts_with("## ")) heading = line.starts_with("## Add ") ? line.substr(7) : line;
    if (!line.starts_with("|")) rows = 0, files.clear();
    if (!line.starts_with("| `")) continue;
    if (rows == 0) {
      ++tables;
      seen += counted.contains(heading);
    }
    EXPECT_LE(++rows, kMost) << heading;
    files.merge(changed_files(line));
    if (counted.contains(heading)) {
      EXPECT_LE(files.size(), kMost) << heading;
    }
  }
  EXPECT_GE(tables, 8u);
  EXPECT_GE(seen, counted.size());
}

}  // namespace
}  // namespace lockstep
