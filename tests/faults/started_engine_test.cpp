// Servers that a run starts, watches and ends: another Lockstep, whose bytes are those of the engine of the process.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "faults/train_process.h"

namespace lockstep {
namespace {

class StartedEngine : public testing::TrainProcess {
 protected:
  std::vector<std::string> with_server(const std::string& more = "") const {
    return {"--rollout-engine", "lockstep", "--rollout-engine-command",
            std::string(LOCKSTEP_BINARY) +
                " serve --hf-checkpoint " LOCKSTEP_SOURCE_DIR "/models/arith --device cpu --threads 1 " + more};
  }
  std::string adapter(const std::string& name) const {
    return read(name + "/iter_000000" + std::to_string(kRollouts) + "/lora_adapter/adapter_model.safetensors");
  }
  // The server's process, once there are metrics of the run.
  pid_t server_of(const std::string& name) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    while (metrics(name).empty() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string number = entry.path().filename().string();
      if (number.find_first_not_of("0123456789") != std::string::npos) continue;
      std::error_code gone;
      const auto program = std::filesystem::read_symlink(entry.path() / "exe", gone);
      if (gone || program != std::filesystem::canonical(LOCKSTEP_BINARY)) continue;
      std::ifstream file(entry.path() / "cmdline");
      const std::string line((std::istreambuf_iterator<char>(file)), {});
      if (line.find(std::string("serve") + '\0') != std::string::npos && line.find(mark()) != std::string::npos)
        return std::stoi(number);
    }
    return 0;
  }
  std::string mark() const { return "mark-" + std::to_string(::getpid()); }
};

TEST_F(StartedEngine, GivesTheBytesOfTheLocalEngineAndEndsWithTheRun) {
  ASSERT_EQ(wait(start("local")), 0) << read("log");
  ASSERT_EQ(wait(start("server", with_server("--served-model-name " + mark()))), 0) << read("log");
  EXPECT_NE(read("log").find("bit for bit"), std::string::npos) << read("log");
  ASSERT_FALSE(adapter("local").empty());
  EXPECT_EQ(adapter("server"), adapter("local"));
  const std::vector<Json> local = metrics("local"), remote = metrics("server");
  ASSERT_EQ(remote.size(), local.size());
  for (size_t i = 0; i < local.size(); ++i)
    for (const char* key : {"loss", "reward", "grad_norm", "logprob_diff", "version", "response_len"})
      EXPECT_EQ(local[i].value(key, Json()), remote[i].value(key, Json())) << key << " of rollout " << i;
  EXPECT_FALSE(read("server/rollout_adapters/server.log").empty()) << "its log is kept";
  EXPECT_EQ(server_of("server"), 0) << "it has ended";
}

// Versions come and go at the server while it samples with older ones, and no bit differs.
TEST_F(StartedEngine, GivesTheBytesOfTheLocalEngineAheadOfTraining) {
  ASSERT_EQ(wait(start("local", {"--max-staleness", "2"})), 0) << read("log");
  std::vector<std::string> more = with_server();
  more.insert(more.end(), {"--max-staleness", "2", "--true-on-policy-mode"});
  ASSERT_EQ(wait(start("server", more)), 0) << read("log");
  ASSERT_FALSE(adapter("local").empty());
  EXPECT_EQ(adapter("server"), adapter("local"));
}

// A key that the server is started with, and that the run sends, stands in nothing that the run writes or prints.
TEST_F(StartedEngine, ItsKeyIsShownNowhere) {
  std::vector<std::string> more = with_server("--api-key hunter2");
  more.insert(more.end(), {"--rollout-engine-api-key", "hunter2"});
  ASSERT_EQ(wait(start("server", more)), 0) << read("log");
  EXPECT_NE(read("log").find("--api-key ***"), std::string::npos) << read("log");
  EXPECT_EQ(read("log").find("hunter2"), std::string::npos) << read("log");
  EXPECT_NE(read("server/run.json").find("--api-key ***"), std::string::npos);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() / "server"))
    if (entry.is_regular_file()) {
      EXPECT_EQ(fs::read_file(entry.path()).find("hunter2"), std::string::npos) << entry.path();
    }
}

TEST_F(StartedEngine, ThatDiesEndsTheRunAndSaysHow) {
  const pid_t run = start("dies", with_server("--served-model-name " + mark()));
  const pid_t server = server_of("dies");
  ASSERT_GT(server, 0) << read("log");
  ::kill(server, SIGKILL);
  EXPECT_EQ(wait(run), 7) << read("log");
  EXPECT_NE(read("log").find("the server that was started has ended"), std::string::npos) << read("log");
  EXPECT_EQ(wait(start("never",
                       {"--rollout-engine", "lockstep", "--rollout-engine-command", "echo no such model; exit 3 #"})),
            7);
  EXPECT_NE(read("log").find("exit code 3"), std::string::npos) << read("log");
  EXPECT_NE(read("log").find("no such model"), std::string::npos) << "the end of its log: " << read("log");
}

}  // namespace
}  // namespace lockstep
