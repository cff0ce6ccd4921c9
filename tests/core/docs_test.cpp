// The pages lead somewhere: every file that they name or link exists.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
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

// The files of a row's first cell, those that the addition brings among them. What stands in brackets is an alternative
// to the file before it.
std::set<std::string> files_of(const std::string& row) {
  static const std::regex path("`((src|app|tests|tools|bench|docs)/[^` ,;:]+|README.md)`"), brackets("\\([^)]*\\)");
  std::set<std::string> files;
  for_each_match(std::regex_replace(row.substr(0, row.find(" | ")), brackets, ""), path,
                 [&](const std::string& name) { files.insert(name); });
  return files;
}

// Of every "## Add ..." of CONTRIBUTING.md, in all its tables.
std::map<std::string, std::set<std::string>> additions() {
  std::map<std::string, std::set<std::string>> found;
  std::string heading;
  for (const std::string& line : lines_of(kRoot / "CONTRIBUTING.md")) {
    if (line.starts_with("## ")) heading = line.starts_with("## Add ") ? line.substr(7) : "";
    if (!heading.empty() && line.starts_with("| `")) found[heading].merge(files_of(line));
  }
  return found;
}

TEST(DocsTest, NoAdditionTouchesMoreThanEightFiles) {
  constexpr size_t kMax = 8;
  const auto found = additions();
  for (const auto& [name, files] : found) {
    std::string listed;
    for (const std::string& file : files) listed += "\n  " + file;
    EXPECT_LE(files.size(), kMax) << name << ":" << listed;
    EXPECT_GE(files.size(), 3u) << name << ":" << listed;
  }
  for (const char* name : {"an op", "a weight format", "a linear layer to the block", "experts", "a model family",
                           "a loss", "an objective of the policy loss", "a reward", "a metric or a chart", "a route",
                           "a data format", "a server that generates rollouts", "a way for versions to reach an engine",
                           "a transport between ranks", "a second trainer"})
    EXPECT_TRUE(found.contains(name)) << name;
}

}  // namespace
}  // namespace lockstep
