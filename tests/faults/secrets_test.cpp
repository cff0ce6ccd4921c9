// A run whose URL of rewards has a password and a key: both reach the service, and nothing that the run writes or
// prints.
#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include "faults/train_process.h"
#include "server/http/http.h"

namespace lockstep {
namespace {

class RewardUrl : public testing::TrainProcess {
 protected:
  RewardUrl()
      : server_({.port = 0},
                [this](const server::HttpRequest& request, const std::shared_ptr<server::Responder>& reply) {
                  // Of "u:hunter2". From the 25th sample on the service fails, in words that a run repeats.
                  allowed_ += request.header("authorization") == "Basic dTpodW50ZXIy" &&
                              request.parameter("key") == "hunter2" && request.path == "/score";
                  host_ = std::string(request.header("host"));
                  reply->send({.status = ++asked_ > 24 ? 400 : 200, .body = "0.5"});
                }),
        thread_([this] { server_.run(); }) {}
  ~RewardUrl() override {
    server_.stop();
    thread_.join();
  }
  void expect_hidden(const std::string& name) const {
    EXPECT_EQ(read("log").find("hunter2"), std::string::npos) << read("log");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() / name))
      if (entry.is_regular_file()) {
        EXPECT_EQ(fs::read_file(entry.path()).find("hunter2"), std::string::npos) << entry.path();
      }
  }

  std::atomic<int> asked_ = 0, allowed_ = 0;
  std::string host_;
  server::HttpServer server_;
  std::thread thread_;
};

TEST_F(RewardUrl, ShowsItsSecretsNowhere) {
  const std::string place = "127.0.0.1:" + std::to_string(server_.port());
  const std::vector<std::string> more = {"--rm-type",      "remote_rm",
                                         "--rm-url",       "http://u:hunter2@" + place + "/score?key=hunter2",
                                         "--dump-details", (dir_ / "run/details").string(),
                                         "--use-wandb",    "--use-tensorboard"};
  ASSERT_EQ(wait(start("run", more)), 0) << read("log");
  EXPECT_EQ(asked_, kRollouts * 8);
  EXPECT_EQ(allowed_, asked_);
  EXPECT_EQ(host_, place);
  EXPECT_EQ(metrics("run").front()["reward"], 0.5);
  EXPECT_NE(read("run/run.json").find("http://***@" + place + "/score?key=***"), std::string::npos);
  EXPECT_NE(read("log").find(place + "/score?key=*** answered 400"), std::string::npos) << read("log");
  expect_hidden("run");
}

// What cannot be reached is said without them, too.
TEST_F(RewardUrl, IsRefusedAtOnceWhereItCannotBeUsed) {
  const std::pair<std::string, std::string> cases[] = {{"u:hunter2@127.0.0.1:80", "http://USER:PASSWORD@HOST:PORT"},
                                                       {"https://u:hunter2@127.0.0.1:80", "TLS"},
                                                       {"http://u:hunter2@127.0.0.1", "a host and a port"}};
  for (const auto& [url, why] : cases) {
    EXPECT_EQ(wait(start("refused", {"--rm-type", "remote_rm", "--rm-url", url})), 2) << url;
    EXPECT_NE(read("log").find(why), std::string::npos) << read("log");
  }
  EXPECT_EQ(wait(start("both", {"--rm-type", "remote_rm", "--rm-url", "http://u:hunter2@127.0.0.1:80", "--rm-api-key",
                                "hunter2"})),
            2);
  EXPECT_NE(read("log").find("by a user or by a key"), std::string::npos) << read("log");
  EXPECT_EQ(read("log").find("hunter2"), std::string::npos) << read("log");
}

}  // namespace
}  // namespace lockstep
