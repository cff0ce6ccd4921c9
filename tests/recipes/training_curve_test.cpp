// Twenty steps of transformers + PEFT + torch.optim.AdamW, taken again by the Trainer.
// The goldens are those of tools/golden/make_goldens.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/hf_directory.h"
#include "checkpoint/peft_directory.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"
#include "recipes/golden_case.h"
#include "train/trainer.h"

namespace lockstep {
namespace {

constexpr double kLossTolerance = 1e-5, kAdapterTolerance = 1e-4;
constexpr int kSamples = 3, kSteps = 20;

const ConstTensor& find(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const ConstTensor* tensor = file.find(name);
  if (tensor == nullptr) throw std::runtime_error("the golden file has no tensor " + name);
  return *tensor;
}

struct Golden {
  fs::Path path;
  checkpoint::SafetensorsFile expected;
  checkpoint::PeftDirectory peft;
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const lora::AdapterLayout> layout;
  std::shared_ptr<const Buffer> adapter;
  std::vector<train::Datum> batch;

  Golden(const std::string& name, Stream& stream)
      : path(fs::Path(LOCKSTEP_SOURCE_DIR) / "tests" / "golden" / name),
        expected(path / "expected.safetensors"),
        peft(path / "adapter") {
    checkpoint::HfDirectory directory(path);
    directory.open_weights();
    const model::ModelSpec config = model::parse_config(directory.config(), (path / "config.json").string());
    model = std::make_shared<const model::Model>(config, model::Weights::load(config, directory.tensors(), stream));
    layout = lora::resolve_layout(peft.config(), model::linear_modules(config));
    adapter = std::make_shared<const Buffer>(
        lora::import_tensors(*layout, peft.read_weights().tensors(), peft.path().string()));
    for (int i = 0; i < kSamples; ++i) {
      const ConstTensor& tokens = find(expected, "tokens." + std::to_string(i));
      const auto* first = static_cast<const int32_t*>(tokens.data);
      std::vector<float> mask(static_cast<size_t>(tokens.elements()), 1);
      mask[0] = 0;
      batch.push_back(train::make_datum({first, first + tokens.elements()}, mask));
    }
  }

  // Compares losses and norms on the way; returns the trainer's last weights.
  lora::AdapterVersion train(const std::string& curve, bool per_token, Stream& stream) const {
    train::Trainer trainer(model, layout, adapter, {}, stream);
    train::StepPlan plan{.num_samples = kSamples, .weight_total = 0, .per_token = per_token};
    for (const train::Datum& datum : batch) plan.weight_total += datum.weight_sum();
    const ConstTensor &loss = find(expected, curve + ".loss"), &norm = find(expected, curve + ".grad_norm");
    EXPECT_EQ(loss.elements(), kSteps);
    double worst_loss = 0, worst_norm = 0;
    for (int step = 0; step < kSteps; ++step) {
      trainer.begin_step(plan);
      trainer.forward_backward(batch, train::SftLoss{});
      const train::StepReport report = trainer.optim_step(1e-3);
      EXPECT_NEAR(report.loss, loss.f32()[step], kLossTolerance) << curve << ", step " << step;
      EXPECT_NEAR(report.grad_norm, norm.f32()[step], 1e-4 * norm.f32()[step]) << curve << ", step " << step;
      worst_loss = std::max(worst_loss, std::abs(report.loss - loss.f32()[step]));
      worst_norm = std::max(worst_norm, std::abs(report.grad_norm - norm.f32()[step]) / norm.f32()[step]);
    }
    EXPECT_LT(loss.f32()[kSteps - 1], loss.f32()[0]);
    std::printf("  %s: largest difference of a loss %.2g, of a norm (relative) %.2g\n", curve.c_str(), worst_loss,
                worst_norm);
    return trainer.adapter();
  }
};

class TrainingCurve : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingCurve, IsThatOfTransformersAndPeft) {
  Stream stream({.threads = 1});
  const Golden golden(GetParam(), stream);
  const lora::AdapterVersion last = golden.train("curve", false, stream);
  const lora::ExportedTensors got = lora::export_tensors(*golden.layout, last.weights->f32());
  ASSERT_EQ(got.tensors.size(), golden.peft.header().size());
  double worst = 0;
  for (const auto& [name, tensor, file, place] : got.tensors) {
    const ConstTensor& wanted = find(golden.expected, "final." + name);
    ASSERT_EQ(shape_text(tensor), shape_text(wanted)) << name;
    double difference = 0, largest = 0;
    for (int64_t i = 0; i < wanted.elements(); ++i) {
      difference = std::max(difference, std::abs(static_cast<double>(tensor.f32()[i]) - wanted.f32()[i]));
      largest = std::max(largest, std::abs(static_cast<double>(wanted.f32()[i])));
    }
    EXPECT_LE(difference, kAdapterTolerance * largest) << name;
    worst = std::max(worst, difference / largest);
  }
  std::printf("  final adapter: largest relative difference %.2g\n", worst);
}

INSTANTIATE_TEST_SUITE_P(Golden, TrainingCurve, ::testing::ValuesIn(golden::families()),
                         [](const auto& info) { return info.param; });

TEST(TrainingCurve, LossPerToken) {
  Stream stream({.threads = 1});
  Golden("llama3", stream).train("curve_pertoken", true, stream);
}

}  // namespace
}  // namespace lockstep
