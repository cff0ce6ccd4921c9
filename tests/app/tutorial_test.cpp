// docs/: the tutorial's commands do what it says, and no page links to what is not there.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

const std::filesystem::path kRoot = LOCKSTEP_SOURCE_DIR;

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The fenced blocks that begin with ```bash and this word (none: nothing), one after the other.
std::string commands(const std::string& page, const std::string& word) {
  const std::string fence = "```bash" + (word.empty() ? "" : " " + word) + "\n";
  std::string all;
  for (size_t at = 0; (at = page.find(fence, at)) != page.npos;) {
    at += fence.size();
    const size_t end = page.find("```", at);
    all += page.substr(at, end - at);
    at = end + 3;
  }
  return all;
}

std::string replaced(std::string text, const std::vector<std::pair<std::string, std::string>>& changes) {
  for (const auto& [from, to] : changes) {
    EXPECT_NE(text.find(from), text.npos) << "the tutorial no longer says " << from;
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
  }
  return text;
}

int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(listener);
  return ntohs(address.sin_port);
}

class Tutorial : public ::testing::Test {
 protected:
  // Runs the commands in a folder that has the repository's models, a build folder of its own, and `lockstep` in its
  // PATH, and returns what they print. Any command that fails ends the script.
  std::string run(const std::string& script) {
    std::filesystem::create_directories(dir_ / "build");
    if (!std::filesystem::exists(dir_ / "models"))
      std::filesystem::create_symlink(std::filesystem::absolute(kRoot / "models"), dir_ / "models");
    dir_.write("commands.sh", script);
    const std::filesystem::path program = std::filesystem::absolute(LOCKSTEP_BINARY);
    const std::string command = "cd '" + dir_.path().string() + "' && PATH='" + program.parent_path().string() +
                                "':$PATH timeout 120 bash -eu commands.sh >out 2>&1";
    const int status = std::system(command.c_str());
    const std::string printed = read(dir_ / "out");
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << printed;
    return printed;
  }

  // Two rollouts, both saved and measured.
  void train() {
    const std::string script =
        replaced(commands(page_, ""), {{"--num-rollout 80", "--num-rollout 2"},
                                       {"--eval-interval 20", "--eval-interval 1"},
                                       {"--save-interval 40", "--save-interval 1"},
                                       {"iter_0000080", "iter_0000002"},
                                       {"models/arith/test.jsonl ", "models/arith/test.jsonl@[0:50] "}});
    printed_ = run(script);
  }

  const std::string page_ = read(kRoot / "docs/tutorial.md");
  testing::TempDirectory dir_;
  std::string printed_;
};

TEST_F(Tutorial, ItsCommandsRun) {
  train();
  for (const char* part :
       {"{\"prompt\":\"37+86=\",\"label\":\"123\"}", "rollout 2/2: reward", "diff 0,", "eval held_out after 2 rollouts",
        "all 2 rollouts were done before", "rank        8", "whole    build/tutorial"})
    EXPECT_NE(printed_.find(part), std::string::npos) << part << "\n" << printed_;
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
    EXPECT_TRUE(std::filesystem::exists(dir_ / "build/tutorial/iter_0000002/lora_adapter" / file)) << file;
  EXPECT_TRUE(std::filesystem::exists(dir_ / "build/tutorial/metrics.jsonl"));
}

TEST_F(Tutorial, TheAdapterIsServed) {
  if (std::system("command -v curl >/dev/null") != 0) GTEST_SKIP() << "curl is not installed";
  train();
  const std::string port = std::to_string(free_port());
  const std::string printed =
      run(replaced(commands(page_, "serve"), {{"8000", port}, {"iter_0000080", "iter_0000002"}}));
  EXPECT_NE(printed.find(R"("model":"sums")"), std::string::npos) << printed;
  EXPECT_NE(printed.find(R"("adapter_version":2)"), std::string::npos) << printed;
}

TEST_F(Tutorial, EveryBlockIsRunSomewhere) {
  for (const char* word : {"install", "serve", "vllm"}) EXPECT_NE(commands(page_, word), "") << word;
  const std::regex fence("```bash([^\n]*)\n");
  for (std::sregex_iterator it(page_.begin(), page_.end(), fence), end; it != end; ++it) {
    const std::string word = (*it)[1];
    EXPECT_TRUE(word.empty() || word == " install" || word == " serve" || word == " vllm") << word;
  }
}

// "[text](path#part)" of every page, from the page's own folder; addresses of the web are not looked up.
TEST(Pages, LinksLeadSomewhere) {
  std::vector<std::filesystem::path> pages;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  const std::regex link(R"(\]\(([^)\s#]+)(#[^)]*)?\))");
  size_t links = 0;
  for (const auto& page : pages) {
    const std::string text = read(page);
    for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
      const std::string target = (*it)[1];
      if (target.find("://") != target.npos) continue;
      ++links;
      EXPECT_TRUE(std::filesystem::exists(page.parent_path() / target)) << page << " links to " << target;
    }
  }
  EXPECT_GT(links, 40u);
}

// `src/...`, `app/...` and so on of CONTRIBUTING.md, but for those with a NAME to fill in.
TEST(Pages, TheGuideNamesFilesThatAreThere) {
  const std::string text = read(kRoot / "CONTRIBUTING.md");
  const std::regex path("`((?:app|bench|docs|src|tests|tools)/[a-z0-9_./-]+)`");
  size_t paths = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), path), end; it != end; ++it, ++paths)
    EXPECT_TRUE(std::filesystem::exists(kRoot / (*it)[1].str())) << (*it)[1];
  EXPECT_GT(paths, 30u);
}

}  // namespace
}  // namespace lockstep::cli
