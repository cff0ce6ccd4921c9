// A hundred steps of transformers + PEFT + torch.optim.AdamW with TRL's losses, taken again by the Trainer.
// The goldens are those of tools/golden/make_curves.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "recipes/golden_case.h"
#include "train/schedule.h"
#include "train/trainer.h"

namespace lockstep {
namespace {

constexpr double kLossTolerance = 1e-5, kAdapterTolerance = 1e-4;  // absolute; Frobenius, relative
constexpr double kLr = 1e-3;
constexpr int64_t kSteps = 100, kBatch = 4;

class Curves : public ::testing::TestWithParam<const char*> {
 protected:
  Curves()
      : base_(GetParam(), stream_),
        expected_(golden::directory("curves") / (std::string(GetParam()) + ".safetensors")) {
    const int32_t *tokens = integers("tokens"), *begin = integers("begin");
    const float* mask = want("mask").f32();
    for (int64_t i = 0; i + 1 < want("begin").elements(); ++i)
      rows_.push_back(
          train::make_datum({tokens + begin[i], tokens + begin[i + 1]}, {mask + begin[i], mask + begin[i + 1]}));
  }

  const ConstTensor& want(const std::string& key) const {
    const ConstTensor* found = expected_.find(key);
    if (found == nullptr) throw std::runtime_error("no golden tensor " + key);
    return *found;
  }
  const int32_t* integers(const std::string& key) const { return static_cast<const int32_t*>(want(key).data); }

  train::Trainer trainer(const train::TrainerOptions& options) {
    const lora::AdapterVersion start = base_.adapter();
    return {std::shared_ptr<const model::Model>(base_.model.get(), [](const model::Model*) {}), start.layout,
            start.weights, options, stream_};
  }

  // Runs the curve of this name and compares every loss and, at the end, every tensor.
  template <class BatchOf>
  void expect_curve(const std::string& name, train::Trainer& trainer, const train::Loss& loss, bool per_token,
                    const train::Schedule& schedule, const BatchOf& batch_of) {
    double worst_loss = 0, worst_margin = 0, worst_tensor = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const std::vector<train::Datum> batch = batch_of(step);
      train::StepPlan plan{.num_samples = static_cast<int64_t>(batch.size()),
                           .weight_total = 0,
                           .per_token = per_token,
                           .datums_per_term = train::datums_per_term(loss)};
      for (const train::Datum& datum : batch) plan.weight_total += datum.weight_sum();
      trainer.begin_step(plan);
      trainer.forward_backward(batch, loss);
      const train::StepReport report = trainer.optim_step(schedule.at(step));
      worst_loss = std::max(worst_loss, std::abs(report.loss - want(name + ".loss").f32()[step]));
      if (plan.datums_per_term == 2) {
        const double margin = report.metrics.reward_chosen - report.metrics.reward_rejected;
        worst_margin = std::max(worst_margin, std::abs(margin - want(name + ".margin").f32()[step]));
      }
    }
    EXPECT_LE(worst_loss, kLossTolerance);
    EXPECT_LE(worst_margin, kLossTolerance);
    const lora::AdapterVersion last = trainer.adapter();
    for (const auto& [key, got, file, place] : lora::export_tensors(*last.layout, last.weights->f32()).tensors) {
      const ConstTensor& wanted = want(name + ".final." + key);
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < wanted.elements(); ++i) {
        difference += std::pow(static_cast<double>(got.f32()[i]) - wanted.f32()[i], 2);
        norm += std::pow(static_cast<double>(wanted.f32()[i]), 2);
      }
      EXPECT_LE(std::sqrt(difference / norm), kAdapterTolerance) << key;
      worst_tensor = std::max(worst_tensor, std::sqrt(difference / norm));
    }
    std::printf("  %s %s: largest difference of a loss %.2g, of a tensor (Frobenius) %.2g\n", GetParam(), name.c_str(),
                worst_loss, worst_tensor);
  }

  std::vector<train::Datum> rows_of_step(int64_t step) const {
    std::vector<train::Datum> batch;
    for (int64_t i = 0; i < kBatch; ++i)
      batch.push_back(rows_[static_cast<size_t>(integers("rows")[step * kBatch + i])]);
    return batch;
  }

  Stream stream_{{.threads = 1}};
  golden::Case base_;
  checkpoint::SafetensorsFile expected_;
  std::vector<train::Datum> rows_;
};

TEST_P(Curves, SftOfSampleMeans) {
  train::Trainer trainer = this->trainer({});
  expect_curve("sft", trainer, train::SftLoss{}, false, {.lr = kLr}, [&](int64_t step) { return rows_of_step(step); });
}

TEST_P(Curves, SftPerTokenWithScheduleAndLoraPlus) {
  train::Trainer trainer = this->trainer({.lr_ratio = 4});
  expect_curve("per_token", trainer, train::SftLoss{}, true,
               {.lr = kLr, .style = train::DecayStyle::cosine, .warmup_steps = 10, .decay_steps = kSteps},
               [&](int64_t step) { return rows_of_step(step); });
}

// The reference is the model with its adapter off, as TRL takes it for a PEFT model.
TEST_P(Curves, Dpo) {
  train::Trainer trainer = this->trainer({});
  expect_curve("dpo", trainer, train::DpoLoss{.beta = 0.25f}, false, {.lr = kLr}, [&](int64_t step) {
    std::vector<train::Datum> batch;
    for (int64_t i = 0; i < kBatch; ++i)
      for (int64_t side : {0, 1})
        batch.push_back(rows_[static_cast<size_t>(2 * integers("pairs")[step * kBatch + i] + side)]);
    auto reference = trainer.logprobs(batch, nullptr);
    for (size_t i = 0; i < batch.size(); ++i) batch[i].ref_logprobs = std::move(reference[i]);
    return batch;
  });
}

INSTANTIATE_TEST_SUITE_P(Golden, Curves, ::testing::Values("llama3", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep
