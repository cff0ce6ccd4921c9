// On a GPU: a base is swapped while requests are answered, shares what did not change, and sleeps in host memory.
#include <cstring>

#include "core/half.h"
#include "load/loading.h"
#include "service/base_keeper.h"
#include "service/serving_fixture.h"
#include "support/gpu.h"

namespace lockstep::service {
namespace {

class BaseKeeperCuda : public testing::OnGpu<testing::Loading> {
 protected:
  void make() override {
    base_ = testing::loaded(kTiny, gpu());
    adapter_ = adapter_of(kTiny, lora::LoraType::canonical, 4);
    std::filesystem::remove(fs::Path(adapter_) / "vime_lora_metadata.json");  // and its base's fingerprint
    ServingOptions options;
    options.engine.prefix_cache = true;
    serving_ = std::make_unique<Serving>(base_, options);
    keeper_ = std::make_unique<BaseKeeper>(*serving_, "");
  }
  void TearDown() override {
    keeper_.reset();
    serving_.reset();
  }
  GenerationRequest request(int64_t max_tokens = 8, const std::string& adapter = "") const {
    GenerationRequest r{.tokens = {1, 2, 3, 4, 5}, .adapter = adapter};
    r.sampling.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    return r;
  }
  std::vector<int32_t> ask(const GenerationRequest& r) {
    Answer answer;
    serving_->submit(r, answer.sink());
    return answer.ids();
  }
  // A tensor with its values times `factor`.
  model::HostTensor scaled(const std::string& name, float factor) {
    model::HostTensor tensor = model::read_weight(base_.config, base_.model->weights(), name, 1 << 20, gpu());
    EXPECT_EQ(tensor.tensor.tensor.dtype, DType::bf16);
    auto* const values = static_cast<BFloat16*>(tensor.memory.data());
    for (int64_t i = 0; i < tensor.tensor.tensor.elements(); ++i) values[i] = to_bf16(factor * to_f32(values[i]));
    return tensor;
  }

  load::Base base_;
  std::string adapter_;
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<BaseKeeper> keeper_;
};

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* kNorm = "model.norm.weight";

TEST_F(BaseKeeperCuda, RequestsInFlightFinishOnTheBaseTheyBeganWith) {
  serving_->adapters().load({.name = "a", .path = adapter_});
  const std::vector<int32_t> before = ask(request(40)), adapted = ask(request(8, "a"));
  Answer begun, later;
  serving_->pause(PauseMode::in_place);
  serving_->submit(request(40), begun.sink());
  const model::HostTensor query = scaled(kQuery, -1.5f), norm = scaled(kNorm, 2.0f);
  keeper_->load_tensors({query.tensor, norm.tensor}, "", "test");
  serving_->submit(request(40), later.sink());
  serving_->resume();
  EXPECT_EQ(begun.ids(), before);
  EXPECT_NE(later.ids(), before);
  EXPECT_NE(ask(request(8, "a")), adapted) << "on the new base";
  const model::HostTensor old_query = scaled(kQuery, 1), old_norm = scaled(kNorm, 1);
  keeper_->load_tensors({old_query.tensor, old_norm.tensor}, "", "test");
  EXPECT_EQ(serving_->base()->fingerprint, base_.fingerprint);
  EXPECT_EQ(ask(request(40)), before);
  EXPECT_EQ(ask(request(8, "a")), adapted);
}

TEST_F(BaseKeeperCuda, WhatDidNotComeIsSharedOnTheGpu) {
  ask(request());
  const model::HostTensor query = scaled(kQuery, -1.5f);
  const NamedTensors tensors = {query.tensor};
  const int64_t wanted = model::updated_bytes(base_.config, base_.model->weights(), tensors);
  {
    const int64_t before = live_bytes(Device::cuda);
    const auto updated = model::updated_weights(base_.config, base_.model->weights(), tensors, gpu());
    EXPECT_EQ(live_bytes(Device::cuda) - before, wanted);
  }
  keeper_->load_tensors(tensors, "", "test");
  EXPECT_EQ(serving_->base()->model->weights().layers[0].down.weight.panels.data(),
            base_.model->weights().layers[0].down.weight.panels.data());
  const model::HostTensor read = keeper_->read(kQuery, 1 << 20);
  EXPECT_EQ(std::memcmp(read.memory.data(), query.memory.data(), read.memory.bytes()), 0);
}

TEST_F(BaseKeeperCuda, Level1SleepsInHostMemoryAndLevel2ForGood) {
  const std::vector<int32_t> before = ask(request());
  const int64_t weights = base_.model->weights().bytes();
  base_.model.reset();
  const int64_t awake = live_bytes(Device::cuda), on_host = live_bytes();
  keeper_->release(BaseKeeper::Part::keys);
  keeper_->release(BaseKeeper::Part::weights);
  EXPECT_LE(live_bytes(Device::cuda), awake - weights);
  EXPECT_GE(live_bytes(), on_host + weights);
  EXPECT_THROW(ask(request()), NoBase);
  keeper_->resume(BaseKeeper::Part::weights);
  keeper_->resume(BaseKeeper::Part::keys);
  EXPECT_LT(live_bytes(), on_host + weights);
  serving_->resume();
  EXPECT_EQ(ask(request()), before);

  std::vector<model::HostTensor> all;
  for (const load::TensorHash& hash : keeper_->checksums()) all.push_back(keeper_->read(hash.name, 1 << 20));
  keeper_->release(BaseKeeper::Part::weights, true);
  EXPECT_LE(live_bytes(Device::cuda), awake - weights);
  EXPECT_THROW(ask(request()), NoBase);
  NamedTensors tensors;
  for (const model::HostTensor& one : all) tensors.push_back(one.tensor);
  EXPECT_EQ(keeper_->load_tensors(tensors, "", "test").missing, 0);
  serving_->resume();
  EXPECT_EQ(ask(request()), before);
  EXPECT_EQ(serving_->base()->fingerprint, base_.fingerprint);
}

}  // namespace
}  // namespace lockstep::service
