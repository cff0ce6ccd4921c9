// What a recipe adds to its checkpoints is there again in the run that goes on from them.
#include <cstring>

#include "load/adapter.h"
#include "recipes/training_fixture.h"
#include "recipes/training_run.h"
#include "train/train_step.h"

namespace lockstep::recipes {
namespace {

class KeptParts : public Training {
 protected:
  KeptParts() {
    options_.save.save_interval = 1;
    base_ = load_base(options_.base, stream_, control_);
  }

  std::unique_ptr<TrainingRun> run() {
    auto made = std::make_unique<TrainingRun>(options_.adapter, options_.optimizer, options_.training, options_.save,
                                              base_, stream_, control_, OrderedJson{{"--rows", 10}});
    made->set_schedule(6);
    return made;
  }
  std::unique_ptr<TrainingRun> resumed() {
    options_.save.load = options_.save.save;
    return run();
  }
  std::unique_ptr<train::Trainer> critic(const lora::AdapterVersion& start) {
    return std::make_unique<train::Trainer>(base_.model, start.layout, start.weights, train::TrainerOptions{}, stream_);
  }
  void step(train::Trainer& trainer) {
    train::Datum datum;
    datum.tokens = {1, 2, 3, 4};
    datum.targets = {2, 3, 4, -1};
    datum.weights = {1, 1, 1, 0};
    train::train_step(trainer, std::span(&datum, 1), train::SftLoss{}, 1e-2, {});
  }
  std::string bytes(const lora::AdapterVersion& adapter) {
    const Buffer weights = lora::host_weights(*adapter.weights, *adapter.layout, stream_);
    return {static_cast<const char*>(weights.data()), weights.bytes()};
  }

  SftOptions options_ = sft("run");
  Stream stream_{StreamOptions{.threads = 2}};
  Base base_;
};

TEST(SnapshotMemory, IsUsedAgainUnlessASnapshotHasIt) {
  SnapshotMemory memory;
  auto held = memory.weights("actor");
  const HostMirror* const first = held.get();
  EXPECT_NE(memory.weights("actor").get(), first);  // held, so the next one is another
  EXPECT_NE(memory.weights("critic").get(), memory.weights("actor").get());
  const HostMirror* const second = memory.weights("actor").get();
  EXPECT_EQ(memory.weights("actor").get(), second);
  const SnapshotMemory::Moments* const moments = memory.moments("actor").get();
  EXPECT_EQ(memory.moments("actor").get(), moments);
}

TEST_F(KeptParts, JsonAndTensorsComeBack) {
  {
    const auto first = run();
    EXPECT_FALSE(first->resumed_part("queue"));
    int asked = 0;
    first->keep("queue", [&] {
      auto values = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, static_cast<float>(++asked)});
      return KeptPart{.json = {{"rows", {4, 7}}},
                      .tensors = {{"values", ConstTensor(values->data(), DType::f32, {3})}},
                      .memory = values};
    });
    first->keep(checkpoint::kPendingSamplesPart, [] { return KeptPart{.json = Json::array()}; });
    first->completed(4);
    first->save_if_due();
    first->completed(4);  // its second checkpoint is not written: the first one is on the disk now
    EXPECT_EQ(asked, 1);
  }
  const auto second = resumed();
  EXPECT_EQ(second->iteration(), 1);
  const auto part = second->resumed_part("queue");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->json, (Json{{"rows", {4, 7}}}));
  ASSERT_EQ(part->tensors.size(), 1u);
  EXPECT_EQ(part->tensors[0].tensor.f32()[2], 1.0f);
  EXPECT_EQ(second->resumed_part(checkpoint::kPendingSamplesPart)->json, Json::array());
  EXPECT_FALSE(second->resumed_part("absent"));
  EXPECT_TRUE(fs::is_file(dir_ / "run" / "iter_0000001" / "parts" / "pending_samples.json"));
}

TEST_F(KeptParts, ASecondTrainerGoesOnBitForBit) {
  const lora::AdapterVersion start = load::fresh_adapter(options_.adapter.config, base_, 7);
  const auto whole = critic(start);
  for (int i = 0; i < 4; ++i) step(*whole);
  {
    const auto first = run();
    const auto trainer = critic(start);
    first->keep_trainer("critic", *trainer);
    for (int i = 0; i < 2; ++i) step(*trainer);
    first->completed(4);
    first->save();
  }
  const auto second = resumed();
  const auto adapter = second->resumed_policy("critic");
  ASSERT_TRUE(adapter);
  EXPECT_FALSE(second->resumed_policy("reference"));
  const auto trainer = critic(*adapter);
  second->keep_trainer("critic", *trainer);
  EXPECT_EQ(trainer->steps(), 2);
  for (int i = 0; i < 2; ++i) step(*trainer);
  EXPECT_EQ(bytes(trainer->adapter()), bytes(whole->adapter()));
  EXPECT_TRUE(fs::is_file(dir_ / "run" / "iter_0000001" / "policies" / "critic" / "adapter_model.safetensors"));
}

TEST_F(KeptParts, RetentionLeavesWhatIsStillRead) {
  options_.save.total_limit = 2;
  const auto first = run();
  first->completed(4);
  first->save();
  first->still_reads("reference", 1);
  for (int i = 2; i <= 5; ++i) {
    first->completed(4);
    first->save();
  }
  EXPECT_EQ(checkpoint::saved_iterations(options_.save.save), (std::vector<int64_t>{1, 4, 5}));
  first->still_reads("reference", {});
  first->completed(4);
  first->save();
  EXPECT_EQ(checkpoint::saved_iterations(options_.save.save), (std::vector<int64_t>{5, 6}));
}

TEST_F(KeptParts, WhichCheckpointsStay) {
  const std::vector<int64_t> saved = {2, 4, 6, 8, 10};
  const auto gone = [&](std::optional<int64_t> limit, std::optional<int64_t> interval, std::set<int64_t> read) {
    return superfluous({.total_limit = limit, .retain_interval = interval}, saved, read);
  };
  using Gone = std::vector<int64_t>;
  EXPECT_EQ(gone({}, {}, {}), Gone{});
  EXPECT_EQ(gone(1, {}, {}), (Gone{2, 4, 6, 8}));
  EXPECT_EQ(gone(3, {}, {}), (Gone{2, 4}));
  EXPECT_EQ(gone(9, {}, {}), Gone{});
  EXPECT_EQ(gone({}, 4, {}), (Gone{2, 6}));
  EXPECT_EQ(gone(2, 4, {}), (Gone{2, 6}));
  EXPECT_EQ(gone(1, {}, {6, 99}), (Gone{2, 4, 8}));
}

}  // namespace
}  // namespace lockstep::recipes
