// Adapters loaded, replaced and unloaded while requests are answered: vLLM's and SGLang's routes, through HTTP.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "server/adapter_fixture.h"

namespace lockstep::server {
namespace {

using testing::Client, testing::Reply, testing::Served;

constexpr const char* kLoad = "/v1/load_lora_adapter";
constexpr const char* kUnload = "/v1/unload_lora_adapter";

class Adapters : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<lockstep::testing::TempDirectory>();
    a_ = testing::write_adapter(dir_->path() / "a", 1);
    b_ = testing::write_adapter(dir_->path() / "b", 2, 8);
    wide_ = testing::write_adapter(dir_->path() / "wide", 3, 32);
    std::filesystem::create_directories(dir_->path() / "empty");
  }
  static void TearDownTestSuite() { dir_.reset(); }

  Adapters() : served_({}, options()) {}

  static service::ServingOptions options() {
    service::ServingOptions options;
    options.adapters.max_lora_rank = 16;
    options.adapters.max_loras = 3;
    return options;
  }
  Reply load(const std::string& name, const std::string& path, OrderedJson more = OrderedJson::object()) const {
    OrderedJson body = {{"lora_name", name}, {"lora_path", path}};
    body.update(more);
    return served_.post(kLoad, body);
  }
  OrderedJson ask(const std::string& model, OrderedJson more = OrderedJson::object()) const {
    OrderedJson body = {{"model", model},   {"prompt", "12+34="}, {"temperature", 0},
                        {"max_tokens", 12}, {"ignore_eos", true}, {"return_token_ids", true}};
    body.update(more);
    return served_.json("/v1/completions", body);
  }
  OrderedJson ids(const std::string& model, OrderedJson more = OrderedJson::object()) const {
    return ask(model, std::move(more))["choices"][0]["token_ids"];
  }
  std::vector<std::string> models() const {
    std::vector<std::string> names;
    const OrderedJson list = served_.get("/v1/models").json();
    for (const OrderedJson& card : list["data"]) names.push_back(card["id"]);
    return names;
  }

  static std::unique_ptr<lockstep::testing::TempDirectory> dir_;
  static std::string a_, b_, wide_;
  Served served_;
};
std::unique_ptr<lockstep::testing::TempDirectory> Adapters::dir_;
std::string Adapters::a_, Adapters::b_, Adapters::wide_;

using Names = std::vector<std::string>;

TEST_F(Adapters, LoadListUseUnload) {
  const Reply loaded = load("a", a_);
  EXPECT_EQ(loaded.status, 200);
  EXPECT_EQ(loaded.body, "Success: LoRA adapter 'a' added successfully.");
  EXPECT_NE(loaded.type(), "application/json");
  EXPECT_EQ(load("b", b_).status, 200);
  EXPECT_EQ(models(), (Names{"base", "a", "b"}));
  const OrderedJson list = served_.get("/v1/models").json();
  const OrderedJson &base = list["data"][0], &card = list["data"][1];
  EXPECT_TRUE(base["parent"].is_null());
  EXPECT_EQ(base["max_model_len"], 512);
  EXPECT_EQ(base["permission"][0]["object"], "model_permission");
  EXPECT_EQ(card["parent"], "base");
  EXPECT_EQ(card["root"], a_);
  EXPECT_TRUE(card["max_model_len"].is_null());
  EXPECT_EQ(card["rank"], 4);
  EXPECT_NE(ids("a"), ids("base"));
  EXPECT_NE(ids("a"), ids("b"));
  EXPECT_EQ(ids("a"), ids("base:a")) << "SGLang's spelling";
  EXPECT_EQ(ask("a")["adapter_version"], card["adapter_version"]);
  const Reply unloaded = served_.post(kUnload, {{"lora_name", "a"}});
  EXPECT_EQ(unloaded.status, 200);
  EXPECT_EQ(unloaded.body, "Success: LoRA adapter 'a' removed successfully.");
  EXPECT_EQ(models(), (Names{"base", "b"}));
  EXPECT_EQ(served_.post("/v1/completions", {{"model", "a"}, {"prompt", "x"}}).status, 404);
  EXPECT_EQ(served_.post(kUnload, {{"lora_name", "a"}}).status, 404);
}

TEST_F(Adapters, LoadingErrors) {
  ASSERT_EQ(load("a", a_).status, 200);
  const OrderedJson before = ids("a");
  const auto type = [&](const Reply& reply) { return reply.json()["error"]["type"].get<std::string>(); };
  EXPECT_EQ(load("a", a_).status, 400);
  EXPECT_EQ(type(load("a", a_)), "InvalidUserInput");
  EXPECT_EQ(load("base", a_).status, 400);
  EXPECT_EQ(load("", a_).status, 400);
  EXPECT_EQ(load("c", "").status, 400);
  EXPECT_EQ(load("c", (dir_->path() / "missing").string()).status, 404);
  EXPECT_EQ(load("c", (dir_->path() / "empty").string()).status, 404);
  EXPECT_EQ(load("c", std::string("a\0b", 3)).status, 404);
  EXPECT_EQ(load("c", std::string(5000, 'a')).status, 404);
  EXPECT_EQ(load("c", (dir_->path() / std::string(300, 'x')).string()).status, 500) << "nobody can tell";
  EXPECT_EQ(load("c", wide_).status, 500) << "rank 32 of at most 16";
  EXPECT_EQ(load("c", LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3/adapter").status, 500) << "of another base";
  EXPECT_EQ(load("c", a_, {{"sha256", std::string(64, '0')}}).status, 500);
  EXPECT_EQ(load("a", (dir_->path() / "missing").string(), {{"load_inplace", true}}).status, 404);
  EXPECT_EQ(load("a", b_, {{"load_inplace", true}, {"sha256", "00"}}).status, 500);
  EXPECT_EQ(served_.post(kLoad, {{"lora_name", "c"}}).status, 400);
  EXPECT_EQ(served_.post(kLoad, {{"lora_name", 3}, {"lora_path", a_}}).status, 400);
  EXPECT_EQ(served_.post(kUnload, {{"lora_name", ""}}).status, 400);
  EXPECT_EQ(served_.post(kUnload, OrderedJson::object()).status, 400);
  EXPECT_EQ(models(), (Names{"base", "a"}));
  EXPECT_EQ(ids("a"), before) << "the old version goes on serving";
}

TEST_F(Adapters, AVersionCanBePinned) {
  ASSERT_EQ(load("a", a_, {{"adapter_version", 5}}).status, 200);
  const OrderedJson old = ids("a");
  ASSERT_EQ(load("a", b_, {{"load_inplace", true}, {"adapter_version", 9}}).status, 200);
  EXPECT_NE(ids("a"), old);
  const OrderedJson pinned = ask("a", {{"adapter_version", 5}, {"return_token_versions", true}});
  EXPECT_EQ(pinned["choices"][0]["token_ids"], old);
  EXPECT_EQ(pinned["adapter_version"], 5);
  EXPECT_EQ(pinned["choices"][0]["token_versions"], OrderedJson(std::vector<int>(12, 5)));
  EXPECT_EQ(ask("a")["adapter_version"], 9);
  EXPECT_EQ(served_.post("/v1/completions", {{"model", "a"}, {"prompt", "x"}, {"adapter_version", 6}}).status, 404);
  EXPECT_EQ(load("a", a_, {{"load_inplace", true}, {"adapter_version", 9}}).status, 400) << "not newer";
}

// A stream of 400 tokens, during which the name is reloaded.
std::vector<OrderedJson> stream_over_reload(const Served& served, const std::string& path, bool follow) {
  const OrderedJson body = {{"model", "a"},
                            {"prompt", "12+34="},
                            {"temperature", 0},
                            {"max_tokens", 400},
                            {"ignore_eos", true},
                            {"stream", true},
                            {"return_token_ids", true},
                            {"return_token_versions", true},
                            {"follow_adapter", follow}};
  Client client = served.connect();
  client.send(testing::request_text("POST", "/v1/completions", body.dump(), "Connection: close\r\n"));
  std::string bytes = client.receive_to("\n\n");
  const Reply reloaded =
      served.post(kLoad, {{"lora_name", "a"}, {"lora_path", path}, {"load_inplace", true}, {"adapter_version", 2}});
  EXPECT_EQ(reloaded.status, 200) << reloaded.body;
  bytes += client.receive_all();
  return Served::events(testing::parsed_reply(bytes).body);
}

TEST_F(Adapters, ARequestInFlightKeepsItsVersion) {
  ASSERT_EQ(load("a", a_, {{"adapter_version", 1}}).status, 200);
  const OrderedJson alone = ids("a", {{"max_tokens", 400}});
  OrderedJson streamed = OrderedJson::array();
  for (const OrderedJson& event : stream_over_reload(served_, b_, false)) {
    EXPECT_EQ(event["adapter_version"], 1);
    const OrderedJson& choice = event["choices"][0];
    streamed.insert(streamed.end(), choice["token_ids"].begin(), choice["token_ids"].end());
    for (const OrderedJson& version : choice["token_versions"]) EXPECT_EQ(version, 1);
  }
  EXPECT_EQ(streamed, alone);
  EXPECT_EQ(ask("a")["adapter_version"], 2);
}

TEST_F(Adapters, ARequestMayFollow) {
  ASSERT_EQ(load("a", a_, {{"adapter_version", 1}}).status, 200);
  std::vector<int> versions;
  for (const OrderedJson& event : stream_over_reload(served_, b_, true))
    for (const OrderedJson& version : event["choices"][0]["token_versions"]) versions.push_back(version);
  EXPECT_EQ(versions.size(), 400u);
  EXPECT_TRUE(std::ranges::is_sorted(versions));
  EXPECT_EQ(versions.front(), 1);
  EXPECT_EQ(versions.back(), 2) << "400 tokens take longer than a load of this size";
}

TEST_F(Adapters, SglangsRoutes) {
  const Reply loaded = served_.post("/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", a_}});
  EXPECT_EQ(loaded.status, 200);
  EXPECT_EQ(loaded.json(),
            OrderedJson({{"success", true}, {"error_message", nullptr}, {"loaded_adapters", {{"a", a_}}}}));
  const Reply again = served_.post("/load_lora_adapter", {{"lora_name", "a"}, {"lora_path", a_}});
  EXPECT_EQ(again.status, 400);
  EXPECT_EQ(again.json()["success"], false);
  EXPECT_NE(again.json()["error_message"].get<std::string>().find("already loaded"), std::string::npos);
  EXPECT_EQ(served_.post("/load_lora_adapter", {{"lora_name", "b"}, {"lora_path", "/nowhere"}}).status, 400);
  const Reply unloaded = served_.post("/unload_lora_adapter", {{"lora_name", "a"}});
  EXPECT_EQ(unloaded.status, 200);
  EXPECT_EQ(unloaded.json()["loaded_adapters"], OrderedJson::object());
  EXPECT_EQ(served_.post("/unload_lora_adapter", {{"lora_name", "a"}}).status, 400);
}

TEST_F(Adapters, SglangsUnloadWaitsForRequestsInFlight) {
  ASSERT_EQ(load("a", a_).status, 200);
  served_.serving->pause(service::PauseMode::in_place);
  auto answer = std::async(std::launch::async, [&] { return ids("a"); });
  ASSERT_TRUE(testing::eventually([&] { return !served_.serving->idle(); }, std::chrono::seconds(30)));
  auto unloaded = std::async(std::launch::async, [&] {
    return served_.post("/unload_lora_adapter", {{"lora_name", "a"}});
  });
  EXPECT_EQ(unloaded.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  served_.serving->resume();
  EXPECT_EQ(unloaded.get().status, 200);
  EXPECT_EQ(answer.get().size(), 12u);
}

TEST_F(Adapters, MixedBatchesAnswerAsAlone) {
  ASSERT_EQ(load("a", a_).status, 200);
  ASSERT_EQ(load("b", b_).status, 200);
  const std::vector<std::string> names = {"base", "a", "b", "a", "base", "b"};
  std::vector<std::future<OrderedJson>> answers;
  served_.serving->pause(service::PauseMode::in_place);
  for (const std::string& name : names)
    answers.push_back(std::async(std::launch::async, [&, name] { return ids(name); }));
  ASSERT_TRUE(testing::eventually([&] { return served_.serving->metrics().waiting == 6; }, std::chrono::seconds(30)));
  served_.serving->resume();
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(answers[i].get(), ids(names[i])) << names[i];
}

// A request that pins nothing never asks for a version that is gone, however often its adapter is reloaded meanwhile.
TEST(AdapterReloads, BatchesAreAnsweredWithOneVersion) {
  const lockstep::testing::TempDirectory dir;
  const std::string a = testing::write_adapter(dir.path() / "a", 1), b = testing::write_adapter(dir.path() / "b", 2);
  service::ServingOptions options;
  options.adapters.keep_versions = 1;
  const Served served({}, options);
  service::AdapterRegistry& adapters = served.serving->adapters();
  adapters.load({.name = "a", .path = a});
  std::atomic<bool> stop = false;
  std::thread trainer([&] {
    for (int i = 0; !stop; ++i) adapters.load({.name = "a", .path = i % 2 ? a : b, .in_place = true});
  });
  const OrderedJson completions = {{"model", "a"},
                                   {"prompt", std::vector<std::string>(64, "1+1=")},
                                   {"max_tokens", 1},
                                   {"return_token_versions", true}};
  OrderedJson generate = {{"text", std::vector<std::string>(64, "1+1=")}, {"sampling_params", {{"max_new_tokens", 1}}}};
  generate["lora_path"] = std::vector<std::string>(64, "a");
  generate["lora_path"][5] = nullptr;  // so that each prompt names its own
  const auto newest = [&] { return adapters.info("a").newest(); };
  const int64_t before = newest();
  for (int i = 0; i < 400 && (i < 20 || newest() < before + 20); ++i) {
    const Reply reply = served.post("/v1/completions", completions);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const OrderedJson answer = reply.json();
    for (const OrderedJson& choice : answer["choices"])
      EXPECT_EQ(choice["token_versions"][0], answer["adapter_version"]) << "one version for all";
    const Reply batch = served.post("/generate", generate);
    ASSERT_EQ(batch.status, 200) << batch.body;
    const OrderedJson parts = batch.json();
    for (size_t p = 0; p < parts.size(); ++p)
      if (p != 5) {
        EXPECT_EQ(parts[p]["meta_info"]["weight_version"], parts[0]["meta_info"]["weight_version"]);
      }
  }
  stop = true;
  trainer.join();
}

TEST_F(Adapters, MetricsTellVersions) {
  ASSERT_EQ(load("a", a_, {{"adapter_version", 4}}).status, 200);
  ask("a");
  const std::string idle = "vllm:num_requests_running{model_name=\"base\",engine=\"0\"} 0\n";
  EXPECT_TRUE(testing::eventually([&] { return served_.get("/metrics").body.find(idle) != std::string::npos; }));
  const Reply metrics = served_.get("/metrics");
  EXPECT_EQ(metrics.status, 200);
  for (const char* line :
       {"lockstep:adapter_version{model_name=\"base\",engine=\"0\",adapter=\"a\"} 4\n",
        "# TYPE vllm:generation_tokens_total counter\n",
        "vllm:generation_tokens_total{model_name=\"base\",engine=\"0\"} 12\n",
        "vllm:request_success_total{model_name=\"base\",engine=\"0\",finished_reason=\"length\"} 1\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"base\",engine=\"0\"} 1\n",
        "vllm:e2e_request_latency_seconds_bucket{model_name=\"base\",engine=\"0\",le=\"+Inf\"} 1\n"})
    EXPECT_NE(metrics.body.find(line), std::string::npos) << line << metrics.body;
}

TEST(AdapterRoot, PathsStayBelowIt) {
  const lockstep::testing::TempDirectory dir;
  testing::write_adapter(dir.path() / "root" / "in", 1);
  const std::string out = testing::write_adapter(dir.path() / "out", 1);
  service::ServingOptions options;
  options.adapters.lora_root = (dir.path() / "root").string();
  const Served served({.model_names = {"base"}, .lora_root = options.adapters.lora_root}, options);
  const auto status = [&](const std::string& path) {
    return served.post(kLoad, {{"lora_name", "a"}, {"lora_path", path}}).status;
  };
  for (const std::string& path : {out, std::string("../out"), std::string("in/../../out"), std::string("/etc"),
                                  std::string("../nowhere"), std::string("/nowhere")})
    EXPECT_EQ(status(path), 400) << path << ": the same whether it is there or not";
  EXPECT_EQ(status("nowhere"), 404);
  EXPECT_EQ(status("in"), 200);
}

// A link to a file is judged like one to a directory, and what lies outside is not shown.
TEST(AdapterRoot, FilesStayBelowIt) {
  namespace stdfs = std::filesystem;
  const lockstep::testing::TempDirectory dir;
  const fs::Path root = dir.path() / "root", out = testing::write_adapter(dir.path() / "out", 1);
  const fs::Path secret = dir.write("secret", "~ebra");
  service::ServingOptions options;
  options.adapters.lora_root = root.string();
  const Served served({.model_names = {"base"}, .lora_root = root.string()}, options);
  const auto load = [&](const std::string& name) {
    return served.post(kLoad, {{"lora_name", name}, {"lora_path", name}});
  };
  const auto refused = [&](const std::string& name, const Reply& reply) {
    EXPECT_EQ(reply.status, 400) << name;
    EXPECT_EQ(reply.body.find('~'), std::string::npos) << reply.body;
  };
  const std::vector<std::string> files = {"adapter_config.json", "adapter_model.safetensors",
                                          "vime_lora_metadata.json"};
  for (const std::string& file : files) {
    for (const fs::Path& target : {secret, out / file, dir.path() / "missing"}) {
      const std::string name = file + "-" + target.parent_path().filename().string() + target.filename().string();
      testing::write_adapter(root / name, 1);
      stdfs::remove(root / name / file);
      stdfs::create_symlink(target, root / name / file);
      refused(name, load(name));
    }
  }
  testing::write_adapter(root / "shared", 1);
  stdfs::create_directory(root / "linked");
  stdfs::create_symlink(root / "shared/adapter_config.json", root / "linked/adapter_config.json");
  stdfs::create_symlink("../shared/adapter_model.safetensors", root / "linked/adapter_model.safetensors");
  EXPECT_EQ(load("linked").status, 200) << "it stays below the root";
  dir.write("vime_lora_metadata.json", "~ebra");
  testing::write_adapter(root, 1);
  EXPECT_EQ(load(".").status, 200) << "what lies beside the root is not read";
}

}  // namespace
}  // namespace lockstep::server
