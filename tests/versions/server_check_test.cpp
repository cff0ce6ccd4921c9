// Servers that do not generate with the adapter that they were given are caught before a token of theirs is used.
#include "versions/server_check.h"

#include <gtest/gtest.h>

#include <random>

#include "checkpoint/peft_directory.h"
#include "lora/init.h"
#include "support/honest_engine.h"
#include "support/temp_directory.h"
#include "support/tensor_request.h"
#include "versions/adapter_sink.h"
#include "versions/patient_write.h"
#include "versions/store.h"
#include "versions/version_writer.h"

namespace lockstep::versions {
namespace {

using rollout::EngineKind, rollout::milliseconds;
using testing::FakeEngine, testing::HonestEngine;

const std::string kModel = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";

class ServerCheckTest : public ::testing::Test {
 protected:
  ServerCheckTest() {
    load::load_weights(base_, stream_, [](double) {});
    adapter_ = load::fresh_adapter({.rank = 2, .alpha = 4, .target_modules = {"q_proj", "down_proj"}}, base_, 1);
  }

  VersionWriter writer(rollout::Delivery delivery) {
    if (delivery == rollout::Delivery::weight_files) return merged_writer(base_, stream_);
    if (delivery == rollout::Delivery::adapter_tensors) return payload_writer({}, stream_);
    return adapter_writer({}, stream_);
  }

  // The adapter with another B.
  lora::AdapterVersion changed(float size, uint32_t seed) const {
    lora::AdapterVersion adapter = adapter_;
    Buffer host = lora::host_weights(*adapter_.weights, *adapter_.layout, stream_);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, size);
    for (const lora::Pair& pair : adapter_.layout->pairs)
      for (int64_t i = 0; i < pair.rank * pair.out; ++i) host.f32()[pair.b_offset + i] = normal(random);
    adapter.weights = std::make_shared<const Buffer>(std::move(host));
    return adapter;
  }

  void start(FakeEngine& server, EngineKind kind = EngineKind::vllm) {
    rollout::FleetOptions options{.kind = kind,
                                  .addresses = {server.address()},
                                  .retry_interval = milliseconds(20),
                                  .on_note = [](const std::string&) {}};
    fleet_.emplace(std::move(options));
    check_.emplace(*fleet_,
                   ServerCheckOptions{.prompts = {{5, 9, 100, 7}, {20, 3}},
                                      .sampling = {.temperature = 0.8F, .max_tokens = 12},
                                      .tokens = 8,
                                      .directory = dir_.path(),
                                      .write = writer(delivery_),
                                      .delivery = delivery_,
                                      .equal_weights = equal_weights_,
                                      .any_logprobs = any_logprobs_},
                   base_.model, stream_);
    fleet_->set_on_arrival([this](size_t index) { check_->at_arrival(index, adapter_); });
    fleet_->connect();
    sink_.emplace(*fleet_,
                  AdapterSinkOptions{.directory = dir_.path(), .write = writer(delivery_), .delivery = delivery_},
                  [this](const Version& version) { check_->at_sync(version); });
    store_.emplace();
    store_->add(*sink_);
  }

  // A directory with what `edit` made of the config and the tensors of another.
  template <class Edit>
  std::function<std::string(const std::string&)> edited(const Edit& edit) {
    return [this, edit](const std::string& directory) {
      const checkpoint::PeftDirectory from(directory);
      const checkpoint::AdapterWeights weights = from.read_weights();
      lora::LoraConfig config = from.config();
      NamedTensors tensors = weights.tensors();
      edit(config, tensors);
      const fs::Path to = directory + "-edited";
      checkpoint::write_peft_directory(to, config, config.target_modules, "", tensors);
      return to.string();
    };
  }

  testing::TempDirectory dir_;
  rollout::Delivery delivery_ = rollout::Delivery::adapter_files;
  bool equal_weights_ = false, any_logprobs_ = false;
  mutable Stream stream_{{.threads = 1}};
  load::Base base_ = load::read_base_config(kModel);
  lora::AdapterVersion adapter_;
  std::optional<ServerCheck> check_;  // before the fleet, whose threads use it
  std::optional<rollout::Fleet> fleet_;
  std::optional<AdapterSink> sink_;
  std::optional<Store> store_;
};

TEST_F(ServerCheckTest, AnHonestServerIsBelieved) {
  for (const EngineKind kind : testing::engine_kinds()) {
    FakeEngine server(kind, HonestEngine::of(kModel));
    start(server, kind);
    for (uint32_t i = 0; i < 3; ++i) store_->publish("actor", changed(0.3F, i));
    EXPECT_LT(check_->report().noise, 1e-5) << "the same forward";
    EXPECT_EQ(check_->report().conclusive, 3) << "the first is compared with the base";
    EXPECT_EQ(check_->report().inconclusive, 0);
    store_->publish("actor", changed(0.3F, 2));
    EXPECT_EQ(check_->report().inconclusive, 1) << "two versions that are one";
    store_.reset(), sink_.reset();
  }
}

TEST_F(ServerCheckTest, AnHonestServerIsBelievedHoweverItGetsTheVersions) {
  delivery_ = rollout::Delivery::weight_files;
  for (const EngineKind kind : testing::engine_kinds()) {
    if (!rollout::engine_facts(kind).takes_weights) continue;
    FakeEngine server(kind, HonestEngine::of(kModel));
    start(server, kind);
    EXPECT_EQ(server.weight_loads, 1) << "the probe with all modules";
    for (uint32_t i = 0; i < 3; ++i) store_->publish("actor", changed(0.3F, i));
    EXPECT_EQ(server.weight_loads, 4);
    EXPECT_EQ(server.cache_resets, 4);
    EXPECT_EQ(check_->report().conclusive, 2);
    EXPECT_LT(check_->report().noise, 0.05) << "merged weights are rounded to the base's bf16";
    server.kill();
    server.start();
    fleet_->lost(0, "it was killed");
    while (fleet_->num_up() == 0) fleet_->look();
    EXPECT_EQ(server.weight_loads, 5) << "a server that was away gets the merged base before a prompt";
    EXPECT_EQ(dir_.entries(), 1) << "of models, the newest alone";
    store_.reset(), sink_.reset();
    EXPECT_EQ(dir_.entries(), 0);
  }
  delivery_ = rollout::Delivery::adapter_tensors;
  FakeEngine server(EngineKind::sglang, HonestEngine::of(kModel));
  server.read_tensors = testing::write_sent_tensors;
  start(server, EngineKind::sglang);
  for (uint32_t i = 0; i < 3; ++i) store_->publish("actor", changed(0.3F, i));
  EXPECT_EQ(check_->report().conclusive, 3);
  EXPECT_LT(check_->report().noise, 1e-5);
}

// A merge of a large base takes minutes.
TEST_F(ServerCheckTest, AMergeEndsWithAnInterrupt) {
  bool interrupted = false;
  const VersionWriter write = merged_writer(base_, stream_, [&] { return interrupted; });
  write(dir_ / "whole", changed(0.3F, 1));
  EXPECT_TRUE(fs::exists(dir_ / "whole" / "config.json"));
  interrupted = true;
  EXPECT_THROW(write(dir_ / "stopped", changed(0.3F, 1)), Cancelled);
  EXPECT_FALSE(
      write_patiently({.stopping = [&] { return interrupted; }}, [&] { write(dir_ / "stopped", changed(0.3F, 1)); }));
  EXPECT_EQ(dir_.entries(), 1);
}

TEST_F(ServerCheckTest, WeightsThatDoNotArriveAreCaught) {
  delivery_ = rollout::Delivery::weight_files;
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.loads_nothing = true;
  testing::expect_error<ServerFault>([&] { start(server); }, {"ignores the adapter", "all modules"});
}

TEST_F(ServerCheckTest, WeightsOfAFailedSyncGiveWayToThoseBefore) {
  delivery_ = rollout::Delivery::weight_files;
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  start(server);
  store_->publish("actor", changed(0.3F, 1));
  server.keeps_old = true;
  testing::expect_error<ServerFault>([&] { store_->publish("actor", changed(0.3F, 2)); },
                                     {"goes on with an older adapter"});
  server.keeps_old = false;
  while (fleet_->num_up() == 0) fleet_->look();
  EXPECT_EQ(store_->find("actor")->newest(), 0);
  ASSERT_NE(fleet_->find({lora::kActor, 0}), nullptr);
  EXPECT_EQ(server.weights(), fleet_->find({lora::kActor, 0})->directory);
}

TEST_F(ServerCheckTest, ChecksumsOfServersAreCompared) {
  equal_weights_ = true;
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  start(server);
  for (uint32_t i = 0; i < 2; ++i) store_->publish("actor", changed(0.3F, i));
  EXPECT_EQ(check_->report().checksums, 3);
  EXPECT_EQ(check_->report().blind_checksums, 1) << "of a tensor whose bytes the server does not have any more";
  server.base_sum = "b";
  testing::expect_error<ServerFault>([&] { store_->publish("actor", changed(0.3F, 3)); },
                                     {"by its own checksums", "base"});

  FakeEngine another(EngineKind::sglang, HonestEngine::of(kModel));
  start(another, EngineKind::sglang);
  store_->publish("actor", changed(0.3F, 1));
  EXPECT_EQ(check_->report().checksums, 2);
  another.base_sum = "b";
  testing::expect_error<ServerFault>([&] { store_->publish("actor", changed(0.3F, 3)); },
                                     {"by its own checksums", "0:base"});
}

TEST_F(ServerCheckTest, AServerThatIgnoresAdaptersIsCaught) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.change = [](const std::string&) { return std::string(); };
  testing::expect_error<ServerFault>([&] { start(server); }, {"ignores the adapter of a module", "down_proj"});
}

TEST_F(ServerCheckTest, AModuleThatIsDroppedIsNamed) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  // As a server whose names for q_proj are others: what it does not find is zero.
  const Buffer zeros(size_t{1} << 16, Buffer::Fill::zero);
  server.change = edited([&](lora::LoraConfig&, NamedTensors& tensors) {
    for (NamedTensor& named : tensors)
      if (named.name.find("q_proj.lora_B") != std::string::npos) named.tensor.data = zeros.data();
  });
  testing::expect_error<ServerFault>([&] { start(server); }, {"ignores the adapter of a module", "q_proj"});
}

TEST_F(ServerCheckTest, AnotherAlphaIsCaught) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.change = edited([](lora::LoraConfig& config, NamedTensors&) { config.alpha *= 2; });
  testing::expect_error<ServerFault>([&] { start(server); }, {"another adapter than it was given"});
}

TEST_F(ServerCheckTest, AServerThatGoesOnWithAnOlderAdapterIsCaughtAtTheSync) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  start(server);
  const lora::PolicyId first = store_->publish("actor", changed(0.3F, 1)).policy;
  server.keeps_old = true;
  testing::expect_error<ServerFault>([&] { store_->publish("actor", changed(0.3F, 2)); },
                                     {"goes on with an older adapter", "actor version 0"});
  EXPECT_EQ(store_->find("actor")->newest(), first.version) << "nobody can ask for the new one";
  EXPECT_EQ(fleet_->held().size(), 1);
}

// As a run that goes on publishes it: there is no version before it to compare with.
TEST_F(ServerCheckTest, TheFirstVersionIsComparedWithTheBase) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.change = [](const std::string& directory) {
    return directory.find("probe") == std::string::npos ? std::string() : directory;
  };
  start(server);
  testing::expect_error<ServerFault>([&] { store_->publish("actor", changed(0.3F, 1)); },
                                     {"does not use the adapter that it loaded", "the base"});
  FakeEngine another(EngineKind::vllm, HonestEngine::of(kModel));
  start(another);
  store_->publish("actor", adapter_);  // nothing learned: the base itself
  EXPECT_EQ(check_->report().conclusive + check_->report().inconclusive, 0);
}

// It stumbles where it would have been compared, and keeps an older adapter under the new name.
TEST_F(ServerCheckTest, AServerThatIsLostInTheMiddleOfASyncIsComparedWhenItIsBack) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  start(server);
  const lora::PolicyId first = store_->publish("actor", changed(0.3F, 1)).policy;
  const std::string old = fleet_->find(first)->directory;
  server.change = [old](const std::string& directory) { return directory.ends_with("-v1") ? old : directory; };
  server.fail_at = server.generated + 1;
  store_->publish("actor", changed(0.36F, 1));  // the old one is nearer to it than the base is
  EXPECT_EQ(fleet_->num_up(), 0u);
  EXPECT_EQ(check_->report().conclusive, 1) << "nobody was compared";
  testing::expect_error<ServerFault>(
      [&] {
        while (fleet_->num_up() == 0) fleet_->look();
      },
      {"does not compute the version that it was given", "actor version 1", "actor version 0"});
}

TEST_F(ServerCheckTest, AProbeThatFailsIsNotLeftAtTheServer) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.fail_at = 3;  // the first probe's first answer
  start(server);
  EXPECT_TRUE(server.adapters().empty());
}

TEST_F(ServerCheckTest, AServerThatComesBackWithAnotherAdapterIsCaught) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  start(server);
  store_->publish("actor", changed(0.3F, 1));
  server.kill();
  // Probes are honest; what has the run's name is not loaded as it is.
  server.change = [](const std::string& directory) {
    return directory.find("probe") == std::string::npos ? std::string() : directory;
  };
  server.start();
  fleet_->lost(0, "it was killed");
  testing::expect_error<ServerFault>(
      [&] {
        while (fleet_->num_up() == 0) fleet_->look();
      },
      {"does not compute the version that it was given", "actor version 0"});
}

TEST_F(ServerCheckTest, AServerThatFailsInTheMiddleOfItsChecksIsCheckedAgain) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.change = [](const std::string&) { return std::string(); };
  server.fail_at = 3;  // the base's two prompts are answered, the first probe's is not
  testing::expect_error<ServerFault>([&] { start(server); }, {"ignores the adapter of a module"});
}

TEST_F(ServerCheckTest, LogprobsBeforeTheTemperatureAreCaught) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.logprobs_mode = "raw_logprobs";
  testing::expect_error<ServerFault>([&] { start(server); }, {"log-probs of the base", "processed_logprobs"});
}

TEST_F(ServerCheckTest, LogprobsThatNothingElseReadsMayBeThoseBeforeTheTemperature) {
  any_logprobs_ = true;
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  server.logprobs_mode = "raw_logprobs";
  start(server);
  for (uint32_t i = 0; i < 2; ++i) store_->publish("actor", changed(0.3F, i));
  EXPECT_LT(check_->report().noise, 1e-5);
  EXPECT_EQ(check_->report().conclusive, 2);
  server.keeps_old = true;
  testing::expect_error<ServerFault>([&] { store_->publish("actor", changed(0.3F, 2)); },
                                     {"goes on with an older adapter"});
}

TEST_F(ServerCheckTest, WhichLogprobsAServerReportsIsMeasured) {
  const auto measured = [&](FakeEngine& server) {
    fleet_.emplace(rollout::FleetOptions{.kind = EngineKind::vllm, .addresses = {server.address()}});
    fleet_->connect();
    check_.emplace(
        *fleet_, ServerCheckOptions{.prompts = {{5, 9, 100, 7}}, .directory = dir_.path(), .write = writer(delivery_)},
        base_.model, stream_);
    return check_->measured_logprobs(0);
  };
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  EXPECT_EQ(measured(server), rollout::LogprobKind::tempered);
  server.logprobs_mode = "raw_logprobs";
  EXPECT_EQ(measured(server), rollout::LogprobKind::raw);

  // A server that computes in few bits: the noise is as large as what the temperature does.
  FakeEngine coarse(EngineKind::vllm, [exact = HonestEngine::of(kModel)](auto&&... request) {
    FakeEngine::Drawn drawn = exact(request...);
    for (float& logprob : drawn.logprobs) logprob -= 0.2F;
    return drawn;
  });
  EXPECT_EQ(measured(coarse), std::nullopt);
}

TEST_F(ServerCheckTest, AnotherModelIsCaught) {
  FakeEngine server(EngineKind::vllm, HonestEngine::of(kModel));
  base_ = load::read_base_config(kModel);
  load::fill_weights(base_, stream_);
  testing::expect_error<ServerFault>([&] { start(server); }, {"are not the trainer's", "the same model on both sides"});
}

}  // namespace
}  // namespace lockstep::versions
