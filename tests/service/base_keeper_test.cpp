// Base weights that arrive while requests are answered: who gets which, and what becomes of adapters and memory.
#include "service/base_keeper.h"

#include <cstring>

#include "checkpoint/peft_directory.h"
#include "core/half.h"
#include "service/serving_fixture.h"

namespace lockstep::service {
namespace {

// A tensor of the base with other values.
struct Changed {
  Buffer memory;
  NamedTensor tensor;
};

class BaseKeeperTest : public ServingTest {
 protected:
  BaseKeeper& keep(const std::string& weights_root = "") {
    serve();
    keeper_ = std::make_unique<BaseKeeper>(*serving_, weights_root);
    return *keeper_;
  }
  Changed changed(const std::string& name, float factor = -1.5f) {
    model::HostTensor old = model::read_weight(base_.config, base_.model->weights(), name, 1 << 20, stream_);
    Changed made{.memory = Buffer(old.tensor.bytes()), .tensor = old.tensor};
    EXPECT_EQ(old.tensor.tensor.dtype, DType::bf16) << "the tiny model's type";
    for (int64_t i = 0; i < old.tensor.tensor.elements(); ++i)
      static_cast<BFloat16*>(made.memory.data())[i] =
          to_bf16(factor * to_f32(static_cast<const BFloat16*>(old.tensor.tensor.data)[i]));
    made.tensor.tensor.data = made.memory.data();
    return made;
  }
  // What a server answers that began with these weights.
  std::vector<int32_t> fresh_answer(const NamedTensors& tensors, const GenerationRequest& r,
                                    const std::string& adapter = "") {
    Serving other(load::updated_base(base_, {1}, tensors, stream_, "test"), {});
    if (!adapter.empty()) other.adapters().load({.name = r.adapter, .path = adapter});
    Answer answer;
    other.submit(r, answer.sink());
    return answer.ids();
  }
  void TearDown() override {
    keeper_.reset();
    serving_.reset();
  }

  std::unique_ptr<BaseKeeper> keeper_;
};

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* kNorm = "model.norm.weight";

// One of q, k, v, which are packed as one matrix; and a vector.
TEST_F(BaseKeeperTest, SomeTensorsTakeThePlaceOfTheirOwnAlone) {
  BaseKeeper& keeper = keep();
  const std::vector<int32_t> before = ask(request(1));
  const Changed query = changed(kQuery), norm = changed(kNorm, 2.0f);
  const NamedTensors tensors = {query.tensor, norm.tensor};
  const BaseKeeper::Report report = keeper.load_tensors(tensors, "", "test");
  EXPECT_EQ(report.base_version, 1);
  EXPECT_EQ(keeper.label(), "1");
  const std::vector<int32_t> after = ask(request(1));
  EXPECT_NE(after, before);
  EXPECT_EQ(after, fresh_answer(tensors, request(1)));
  EXPECT_NE(serving_->base()->fingerprint, base_.fingerprint);
  const std::vector<load::TensorHash> old = load::tensor_hashes(base_, stream_), now = keeper.checksums();
  ASSERT_EQ(old.size(), now.size());
  for (size_t i = 0; i < old.size(); ++i)
    EXPECT_EQ(old[i] == now[i], old[i].name != kQuery && old[i].name != kNorm) << old[i].name;
  const model::HostTensor read = keeper.read(kQuery, 1 << 20);
  EXPECT_EQ(std::memcmp(read.memory.data(), query.memory.data(), read.memory.bytes()), 0);
}

// A trainer that sends a few tensors does not need memory for two bases.
TEST_F(BaseKeeperTest, WhatDidNotComeIsSharedWithTheBaseBefore) {
  BaseKeeper& keeper = keep();
  const Changed query = changed(kQuery), norm = changed(kNorm, 2.0f);
  const NamedTensors tensors = {query.tensor, norm.tensor};
  const auto weights = [&]() -> const model::Weights& { return serving_->base()->model->weights(); };
  const int64_t wanted = model::updated_bytes(base_.config, base_.model->weights(), tensors);
  EXPECT_EQ(wanted,
            static_cast<int64_t>(weights().layers[0].qkv.weight.panels.bytes() + weights().final_norm.values.bytes()));
  EXPECT_LT(wanted, base_.model->weights().bytes() / 2);
  {
    const int64_t before = live_bytes();
    const auto updated = model::updated_weights(base_.config, base_.model->weights(), tensors, stream_);
    EXPECT_EQ(live_bytes() - before, wanted);
  }
  keeper.load_tensors(tensors, "", "test");
  const model::LayerWeights &old = base_.model->weights().layers[0], &now = weights().layers[0];
  EXPECT_EQ(now.down.weight.panels.data(), old.down.weight.panels.data());
  EXPECT_EQ(now.input_norm.values.data(), old.input_norm.values.data());
  EXPECT_EQ(weights().embedding.weight.panels.data(), base_.model->weights().embedding.weight.panels.data());
  EXPECT_NE(now.qkv.weight.panels.data(), old.qkv.weight.panels.data()) << "packed again, with its siblings";
  const std::vector<int32_t> after = ask(request(1));
  base_.model.reset();  // the first base's last owner but for what is shared
  keeper.load_tensors({norm.tensor}, "", "test");
  EXPECT_EQ(ask(request(1)), after);
}

TEST_F(BaseKeeperTest, TheSameTensorsGiveTheSameFingerprintAndTheBaseItsOwn) {
  BaseKeeper& keeper = keep();
  keeper.load_tensors({changed(kNorm, 2.0f).tensor}, "two", "test");
  const std::string two = serving_->base()->fingerprint;
  EXPECT_EQ(keeper.label(), "two");
  keeper.load_tensors({changed(kNorm, 1.0f).tensor}, "", "test");
  EXPECT_EQ(serving_->base()->fingerprint, base_.fingerprint) << "the bytes decide, not the way";
  keeper.load_tensors({changed(kNorm, 2.0f).tensor}, "", "test");
  EXPECT_EQ(serving_->base()->fingerprint, two);
  EXPECT_EQ(serving_->base()->model->version().number, 3);
}

// Both bases have rows in one step.
TEST_F(BaseKeeperTest, RequestsInFlightFinishOnTheBaseTheyBeganWith) {
  BaseKeeper& keeper = keep();
  const int64_t tokens = 40;
  const std::vector<int32_t> before = ask(request(1, tokens));
  Answer begun, later;
  serving_->pause(PauseMode::in_place);
  serving_->submit(request(1, tokens), begun.sink());
  const Changed norm = changed(kNorm);
  keeper.load_tensors({norm.tensor}, "", "test");
  serving_->submit(request(1, tokens), later.sink());
  serving_->resume();
  EXPECT_EQ(begun.ids(), before);
  const std::vector<int32_t> after = later.ids();
  EXPECT_EQ(after, fresh_answer({norm.tensor}, request(1, tokens)));
  EXPECT_EQ(later.cached(), 0) << "the cache holds these tokens, of the other base";
}

TEST_F(BaseKeeperTest, AnOldBaseIsLetGoWithItsLastRequest) {
  BaseKeeper& keeper = keep();
  keeper.load_tensors({changed(kNorm).tensor}, "", "test");
  const std::weak_ptr<const model::Model> first = serving_->base()->model;
  Answer begun;
  serving_->pause(PauseMode::in_place);
  serving_->submit(request(1, 4), begun.sink());
  keeper.load_tensors({changed(kNorm, 3.0f).tensor}, "", "test");
  serving_->resume();
  begun.wait();
  wait_until_idle();
  ask(request(2, 2));
  EXPECT_TRUE(first.expired());
}

TEST_F(BaseKeeperTest, AdaptersAreReadAgainOnTheNewBase) {
  BaseKeeper& keeper = keep();
  forget_version(first_);  // and with it the fingerprint of its base
  AdapterRegistry& adapters = serving_->adapters();
  const int64_t version = adapters.load({.name = "a", .path = first_}).newest();
  const std::vector<int32_t> before = ask(request(1, 8, "a"));
  const Changed norm = changed(kNorm);
  const AdapterRegistry::Pinned pinned = adapters.get("a", {});
  EXPECT_TRUE(keeper.load_tensors({norm.tensor}, "", "test").outdated.empty());
  EXPECT_GT(adapters.info("a").newest(), version);
  EXPECT_EQ(adapters.info("a").versions.size(), 1u) << "those on the old base can no longer be asked for";
  const std::vector<int32_t> after = ask(request(1, 8, "a"));
  EXPECT_NE(after, before);
  EXPECT_EQ(after, fresh_answer({norm.tensor}, request(1, 8, "a"), first_));
  GenerationRequest old = request(1, 8);
  old.pinned_adapter = pinned;
  EXPECT_EQ(ask(old), before) << "who has pinned the old version gets the old base with it";
}

TEST_F(BaseKeeperTest, AdaptersOfTheOldBaseAreRefusedByName) {
  BaseKeeper& keeper = keep();
  AdapterRegistry& adapters = serving_->adapters();
  adapters.load({.name = "mine", .path = first_});  // says which base it is for
  const BaseKeeper::Report report = keeper.load_tensors({changed(kNorm).tensor}, "", "test");
  ASSERT_EQ(report.outdated.size(), 1u);
  EXPECT_EQ(report.outdated[0].name, "mine");
  EXPECT_THROW(serving_->submit(request(1, 8, "mine"), [](const GenerationUpdate&) {}), OutdatedAdapter);
  EXPECT_TRUE(adapters.list().empty());
  forget_version(first_);
  EXPECT_NO_THROW(adapters.load({.name = "mine", .path = first_}));
  EXPECT_EQ(ask(request(1, 8, "mine")).size(), 8u);
}

TEST_F(BaseKeeperTest, WhatIsWrongChangesNothing) {
  BaseKeeper& keeper = keep();
  const std::vector<int32_t> before = ask(request(1));
  Changed norm = changed(kNorm);
  NamedTensor unknown = norm.tensor, narrow = norm.tensor, typed = changed(kQuery).tensor;
  unknown.name = "model.nothing.weight";
  narrow.tensor.shape[0] /= 2;
  const std::vector<float> floats(static_cast<size_t>(typed.tensor.elements()));
  typed.tensor.data = floats.data();
  typed.tensor.dtype = DType::f32;  // k and v stay bf16
  for (const NamedTensors& wrong : {NamedTensors{unknown}, NamedTensors{narrow}, NamedTensors{norm.tensor, norm.tensor},
                                    NamedTensors{typed}, NamedTensors{}})
    EXPECT_THROW(keeper.load_tensors(wrong, "", "test"), FormatError);
  EXPECT_THROW(keeper.load_directory(kTiny, ""), ConfigError) << "no root is given";
  EXPECT_EQ(serving_->base()->fingerprint, base_.fingerprint);
  EXPECT_EQ(keeper.label(), "default");
  EXPECT_EQ(ask(request(1)), before);
}

TEST_F(BaseKeeperTest, ADirectoryIsReadBelowTheRootAlone) {
  BaseKeeper& keeper = keep(LOCKSTEP_SOURCE_DIR "/tests/golden");
  EXPECT_THROW(keeper.load_directory(LOCKSTEP_SOURCE_DIR "/models/arith", ""), ConfigError);
  EXPECT_THROW(keeper.load_directory("llama3", ""), FormatError) << "another model";
  EXPECT_THROW(keeper.load_directory("nowhere", ""), FormatError);
  const std::vector<int32_t> before = ask(request(1));
  EXPECT_EQ(keeper.load_directory("qwen3", "again").base_version, 1);
  EXPECT_EQ(serving_->base()->fingerprint, base_.fingerprint);
  EXPECT_EQ(ask(request(1)), before);
}

TEST_F(BaseKeeperTest, WithoutWeightsThereIsNoAnswerUntilAllHaveCome) {
  BaseKeeper& keeper = keep();
  const std::vector<int32_t> before = ask(request(1));
  keeper.release(BaseKeeper::Part::weights, true);
  EXPECT_TRUE(keeper.is_released(BaseKeeper::Part::weights));
  EXPECT_THROW(ask(request(1)), NoBase);
  EXPECT_THROW(keeper.checksums(), NoBase);
  EXPECT_THROW(serving_->adapters().load({.name = "a", .path = first_}), ResourceError);
  keeper.resume(BaseKeeper::Part::weights);
  EXPECT_THROW(ask(request(1)), NoBase) << "gone for good";
  std::vector<model::HostTensor> all;
  for (const load::TensorHash& hash : load::tensor_hashes(base_, stream_))
    all.push_back(model::read_weight(base_.config, base_.model->weights(), hash.name, 1 << 20, stream_));
  NamedTensors first, second;
  for (size_t i = 0; i < all.size(); ++i) (i % 2 ? first : second).push_back(all[i].tensor);
  EXPECT_EQ(keeper.load_tensors(first, "", "test").missing, static_cast<int64_t>(second.size()));
  EXPECT_THROW(ask(request(1)), NoBase);
  EXPECT_EQ(keeper.load_tensors(second, "", "test").missing, 0);
  EXPECT_EQ(ask(request(1)), before);
  EXPECT_EQ(serving_->base()->fingerprint, base_.fingerprint);
}

TEST_F(BaseKeeperTest, AdaptersAsTensorsAreTheBytesOfTheirFiles) {
  Serving& serving = serve();
  forget_version(first_);
  AdapterRegistry& adapters = serving.adapters();
  adapters.load({.name = "file", .path = first_});
  const checkpoint::PeftDirectory directory(first_);
  const checkpoint::AdapterWeights weights = directory.read_weights();
  const std::string config = fs::read_file(fs::Path(first_) / "adapter_config.json");
  adapters.load({.name = "tensor", .path = "body"}, {.config = config, .tensors = weights.tensors()});
  const auto version = [&](const std::string& name) { return adapters.get(name, {})->version(); };
  const Buffer &a = *version("file")->weights, &b = *version("tensor")->weights;
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  EXPECT_EQ(ask(request(1, 8, "file")), ask(request(1, 8, "tensor")));
  NamedTensors missing = weights.tensors();
  missing.pop_back();
  EXPECT_THROW(adapters.load({.name = "c", .path = "body"}, {.config = config, .tensors = missing}), FormatError);
}

}  // namespace
}  // namespace lockstep::service
