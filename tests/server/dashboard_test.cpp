// The dashboard: routes over files of a run, and who is refused.
#include "server/dashboard/dashboard.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <thread>

#include "core/json.h"
#include "recipes/samples/sample_writer.h"
#include "server/dashboard/page.h"
#include "server/dashboard/run_files.h"
#include "server/protocol_fixture.h"
#include "support/temp_directory.h"

namespace lockstep::server {
namespace {

using recipes::SampleGroup;
using recipes::SampleWriter;
using testing::Client;

constexpr std::chrono::seconds kLong(60);  // the machine may be busy
constexpr const char* kScript = "<script>alert(1)</script>";

SampleWriter::Group group_of(int64_t step, int64_t number, std::vector<std::optional<float>> rewards) {
  SampleWriter::Group group{.entry = {.step = step, .group = number, .rewards = std::move(rewards)}, .lines = {}};
  for (size_t i = 0; i < group.entry.rewards.size(); ++i) {
    group.entry.lengths.push_back(5);
    group.entry.truncated.push_back(step == 2);
    group.lines += json_text(Json{{"step", step}, {"group", number}, {"index", i}, {"response", kScript}}) + "\n";
  }
  return group;
}

class DashboardTest : public ::testing::Test {
 protected:
  DashboardTest() : run_((dir_.path() / "run").string()), writer_(run_, 0, 1000) {
    fs::write_file_atomic(fs::Path(run_) / "run.json",
                          R"({"kind":"rl","iterations":9,"arguments":{"--lr":"0.001","--rm-api-key":"***"}})");
    fs::write_file_atomic(fs::Path(run_) / "metrics.jsonl",
                          "{\"step\":1,\"reward\":0.5}\n{\"step\":2,\"reward\":0.75}\n");
    writer_.write({group_of(1, 0, {1.0f, 0.0f}), group_of(1, 1, {1.0f, 1.0f})});
    writer_.write({group_of(2, 0, {std::nullopt, 0.0f})});
  }
  ~DashboardTest() override { stop(); }

  void serve(DashboardOptions options = {}) {
    if (options.runs.empty()) options.runs = {run_};
    options.port = 0;
    dashboard_ = std::make_unique<Dashboard>(std::move(options));
    thread_ = std::thread([this] { dashboard_->run(); });
  }
  void stop() {
    if (!dashboard_) return;
    dashboard_->stop();
    thread_.join();
    dashboard_.reset();
  }

  testing::Reply ask(const std::string& path, const std::string& headers = "Host: 127.0.0.1\r\n",
                     const std::string& method = "GET") const {
    Client client(dashboard_->port());
    client.send(method + " " + path + " HTTP/1.1\r\nConnection: close\r\n" + headers + "\r\n");
    std::string all;
    for (std::string bytes = client.receive(kLong); !bytes.empty(); bytes = client.receive(kLong)) all += bytes;
    return testing::parsed_reply(all);
  }

  void append(const std::string& line) const {
    std::ofstream(fs::Path(run_) / "metrics.jsonl", std::ios::app) << line << "\n";
  }

  lockstep::testing::TempDirectory dir_;
  std::string run_;
  SampleWriter writer_;
  std::unique_ptr<Dashboard> dashboard_;
  std::thread thread_;
};

TEST_F(DashboardTest, SaysWhatRunsThereAre) {
  serve();
  const OrderedJson runs = ask("/api/runs").json()["runs"];
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0]["name"], "run");
  EXPECT_EQ(runs[0]["kind"], "rl");
  EXPECT_EQ(runs[0]["iterations"], 9);
  EXPECT_EQ(runs[0]["metrics"], 2);
  EXPECT_EQ(runs[0]["groups"], 3);
  EXPECT_EQ(runs[0]["samples"], 6);
  EXPECT_EQ(runs[0]["arguments"]["--rm-api-key"], "***");
}

TEST_F(DashboardTest, MetricsAreReadFromALine) {
  serve();
  const OrderedJson all = ask("/api/runs/0/metrics").json(), rest = ask("/api/runs/0/metrics?from=1").json();
  EXPECT_EQ(all["lines"].size(), 2u);
  ASSERT_EQ(rest["lines"].size(), 1u);
  EXPECT_EQ(rest["lines"][0]["reward"], 0.75);
  EXPECT_EQ(rest["total"], 2);
  EXPECT_EQ(ask("/api/runs/0/metrics?from=99").json()["lines"].size(), 0u);
}

TEST_F(DashboardTest, GroupsAreFilteredAndPaged) {
  serve();
  const auto total = [&](const std::string& query) { return ask("/api/runs/0/groups?" + query).json()["total"]; };
  EXPECT_EQ(total(""), 3);
  EXPECT_EQ(total("show=mixed"), 1);
  EXPECT_EQ(total("show=equal"), 2);
  EXPECT_EQ(total("show=truncated"), 1);
  EXPECT_EQ(total("show=unknown"), 1);
  EXPECT_EQ(total("step=1"), 2);
  const OrderedJson newest = ask("/api/runs/0/groups?count=1").json(),
                    second = ask("/api/runs/0/groups?order=oldest&first=1&count=1").json();
  EXPECT_EQ(newest["groups"][0]["step"], 2);
  ASSERT_EQ(second["groups"].size(), 1u);
  EXPECT_EQ(second["groups"][0]["group"], 1);
}

TEST_F(DashboardTest, SamplesAreDataAndNeverMarkup) {
  serve();
  const testing::Reply reply = ask("/api/runs/0/samples?step=1&group=1");
  EXPECT_EQ(reply.type(), "application/json");
  EXPECT_NE(reply.head.find("X-Content-Type-Options: nosniff"), std::string::npos);
  const OrderedJson samples = reply.json()["samples"];
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[1]["response"], kScript);
  EXPECT_EQ(ask("/api/runs/0/samples?step=1&group=7").status, 404);
}

TEST_F(DashboardTest, BadQueriesSayWhatIsWanted) {
  serve();
  for (const char* path : {"/api/runs/0/metrics?from=x", "/api/runs/0/metrics?from=-1", "/api/runs/0/groups?show=some",
                           "/api/runs/0/groups?order=up", "/api/runs/0/groups?count=", "/api/runs/0/samples?step=1",
                           "/api/runs/x/metrics", "/api/runs/99999999999999999999/metrics"}) {
    const testing::Reply reply = ask(path);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_FALSE(reply.json()["error"].get<std::string>().empty()) << path;
  }
  for (const char* path : {"/api", "/api/", "/api/run", "/api/runs/", "/api/runs/1/metrics", "/api/runs/0/",
                           "/api/runs/0/other", "/metrics.jsonl", "/../run.json", "/api/runs/0/samples/../../.."})
    EXPECT_EQ(ask(path).status, 404) << path;
}

TEST_F(DashboardTest, ThePageLoadsNothingFromElsewhere) {
  serve();
  const testing::Reply page = ask("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.type(), "text/html; charset=utf-8");
  EXPECT_NE(page.head.find("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'"),
            std::string::npos);
  EXPECT_NE(page.head.find("frame-ancestors 'none'"), std::string::npos);
  std::set<std::string_view> paths;
  for (const PageFile& file : page_files()) {
    paths.insert(file.path);
    EXPECT_EQ(ask(std::string(file.path)).body, file.bytes);
    EXPECT_EQ(file.bytes.find("http://"), std::string_view::npos) << file.path;
    EXPECT_EQ(file.bytes.find("https://"), std::string_view::npos) << file.path;
    for (const char* unsafe : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick="})
      EXPECT_EQ(file.bytes.find(unsafe), std::string_view::npos) << file.path << " has " << unsafe;
  }
  EXPECT_TRUE(paths.contains("/") && paths.contains("/app.js") && paths.contains("/style.css"));
}

TEST_F(DashboardTest, OnlyItsOwnNamesAreServed) {
  serve();
  for (const char* host : {"localhost", "127.0.0.1:7860", "[::1]:7860", "[::1]"})
    EXPECT_EQ(ask("/api/runs", "Host: " + std::string(host) + "\r\n").status, 200) << host;
  for (const char* host : {"evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", ""})
    EXPECT_EQ(ask("/", "Host: " + std::string(host) + "\r\n").status, 403) << host;
}

TEST_F(DashboardTest, OnlyReadsAreServed) {
  serve();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    const testing::Reply reply = ask("/api/runs", "Host: localhost\r\nContent-Length: 0\r\n", method);
    EXPECT_EQ(reply.status, 405) << method;
    EXPECT_NE(reply.head.find("Allow: GET, HEAD"), std::string::npos);
  }
  EXPECT_EQ(ask("/api/runs", "Host: localhost\r\n", "HEAD").body, "");
}

TEST_F(DashboardTest, DataNeedsTheToken) {
  serve({.token = "secret word"});
  EXPECT_EQ(ask("/").status, 200) << "the page itself holds no data";
  const auto with = [&](const std::string& header) {
    return ask("/api/runs", "Host: gpu7.example\r\n" + header).status;
  };
  EXPECT_EQ(with(""), 401);
  EXPECT_EQ(with("Authorization: Bearer secret\r\n"), 401);
  EXPECT_EQ(with("Authorization: Bearer secret words\r\n"), 401);
  EXPECT_EQ(with("Authorization: secret word\r\n"), 401);
  EXPECT_EQ(with("Authorization: Bearer secret word\r\n"), 200);
  EXPECT_EQ(ask("/api/runs?token=secret%20word", "Host: localhost\r\n").status, 401) << "addresses are logged";
  EXPECT_EQ(dashboard_->address().find("secret"), std::string::npos);
}

TEST_F(DashboardTest, OtherMachinesNeedAToken) {
  EXPECT_THROW(Dashboard({.runs = {run_}, .host = "0.0.0.0", .port = 0}), ConfigError);
  EXPECT_NO_THROW(Dashboard({.runs = {run_}, .host = "0.0.0.0", .port = 0, .token = "x"}));
}

// Sandboxes of a run are forked, which a process with threads must not do.
TEST_F(DashboardTest, ARunThatServesHasNoThreadsBeforeItSaysSo) {
  const auto num_threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  std::ostringstream info;
  const recipes::Control control{.out = &info, .info = &info};
  const auto before = num_threads();
  with_dashboard({.runs = {run_}, .port = 0}, control, [&](const recipes::Control& inner) {
    EXPECT_EQ(num_threads(), before);
    inner.working();
    const std::string address = info.str();
    const size_t colon = address.rfind(':');
    Client client(std::stoi(address.substr(colon + 1)));
    client.send("GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(testing::parsed_reply(client.receive(kLong)).status, 200);
  });
  EXPECT_EQ(num_threads(), before);
  EXPECT_THROW(with_dashboard({.runs = {run_}, .port = 0}, control,
                              [](const recipes::Control&) { throw ConfigError({.what = "no such model"}); }),
               ConfigError);
}

TEST_F(DashboardTest, ADirectoryWithoutARunIsRefused) {
  EXPECT_THROW(Dashboard({.runs = {dir_.path().string()}, .port = 0}), ConfigError);
  EXPECT_THROW(Dashboard({.runs = {(dir_.path() / "none").string()}, .port = 0}), ConfigError);
  EXPECT_NO_THROW(Dashboard({.runs = {(dir_.path() / "none").string()}, .port = 0, .may_be_empty = true}));
}

TEST_F(DashboardTest, EventsComeWhenFilesGrow) {
  serve();
  Client client(dashboard_->port());
  client.send("GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::string all;
  const auto await = [&](const std::string& text) {
    const auto end = testing::Clock::now() + kLong;
    while (all.find(text) == std::string::npos && testing::Clock::now() < end)
      all += client.receive(std::chrono::seconds(5));
    return all.find(text) != std::string::npos;
  };
  EXPECT_TRUE(await("text/event-stream"));
  EXPECT_TRUE(await(R"("metrics":2,"groups":3)"));
  append(R"({"step":3,"reward":1})");
  EXPECT_TRUE(await(R"("metrics":3,"groups":3)"));
  writer_.write({group_of(3, 0, {0.0f})});
  EXPECT_TRUE(await(R"("metrics":3,"groups":4)"));
}

TEST_F(DashboardTest, ALineThatIsBeingWrittenWaits) {
  RunFiles files(run_, false);
  EXPECT_TRUE(files.refresh());
  EXPECT_FALSE(files.refresh());
  std::ofstream(fs::Path(run_) / "metrics.jsonl", std::ios::app) << R"({"step":3,)";
  EXPECT_FALSE(files.refresh());
  append(R"("reward":1})");
  EXPECT_TRUE(files.refresh());
  append("not json");
  append(R"({"step":4})");
  EXPECT_TRUE(files.refresh());
  EXPECT_EQ(Json::parse(files.metrics_json(0))["lines"].size(), 4u);
}

TEST_F(DashboardTest, AReplacedFileBeginsAnew) {
  RunFiles files(run_, false);
  files.refresh();
  const int64_t epoch = Json::parse(files.state_json(0))["epoch"];
  fs::write_file_atomic(fs::Path(run_) / "metrics.jsonl", "{\"step\":1,\"reward\":0}\n{\"step\":2,\"reward\":0}\n");
  EXPECT_TRUE(files.refresh());
  const Json metrics = Json::parse(files.metrics_json(0));
  EXPECT_NE(metrics["epoch"], epoch);
  ASSERT_EQ(metrics["lines"].size(), 2u);
  EXPECT_EQ(metrics["lines"][0]["reward"], 0);
}

TEST_F(DashboardTest, ADamagedPieceIsAnAnswerThatSaysSo) {
  fs::write_file_atomic(fs::Path(run_) / "samples" / recipes::piece_name(1), "broken");
  serve();
  const testing::Reply reply = ask("/api/runs/0/samples?step=1&group=0");
  EXPECT_EQ(reply.status, 422);
  EXPECT_NE(reply.json()["error"].get<std::string>().find("samples"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::server
