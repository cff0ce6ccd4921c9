// What begins with values of the base, and copies of the base in adapters' files.
#include <cmath>

#include "checkpoint/safetensors.h"
#include "core/half.h"
#include "load/base_copies.h"
#include "loading.h"

namespace lockstep {
namespace {

using testing::expect_error;

const std::string kUntied = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen2_untied";

class FreshAdapter : public testing::Loading {
 protected:
  lora::LoraConfig config(std::vector<std::string> targets = {"all-linear"}) const {
    return {.rank = 4, .alpha = 12, .type = lora::LoraType::canonical, .target_modules = std::move(targets)};
  }
  static double norm(const float* row, int64_t count) {
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(row[i]) * row[i];
    return std::sqrt(squares);
  }

  // A tensor of the base's file.
  struct Values {
    std::vector<float> all;
    int64_t rows = 0, cols = 0;
    const float* row(int64_t i) const { return all.data() + i * cols; }
  };
  Values values(const std::string& name) const {
    const ConstTensor& tensor = *file_.find(name);
    Values values{.all = {}, .rows = tensor[0], .cols = tensor.row_elements()};
    for (int64_t i = 0; i < tensor.elements(); ++i)
      values.all.push_back(to_f32(static_cast<const Float16*>(tensor.data)[i]));
    return values;
  }

  Stream stream_{{.threads = 1}};
  load::Base base_ = testing::loaded(kUntied, stream_);
  checkpoint::SafetensorsFile file_{kUntied + "/model.safetensors"};  // f16
};

TEST_F(FreshAdapter, MagnitudesAreTheNormsOfTheBasesRows) {
  lora::LoraConfig asked = config({"q_proj", "v_proj", "down_proj", "lm_head"});
  asked.use_dora = true;
  const lora::AdapterVersion adapter = load::fresh_adapter(asked, base_, 3);
  ASSERT_EQ(adapter.layout->own.size(), 7u);
  for (const lora::OwnTensors& own : adapter.layout->own) {
    const Values w = values(own.module.name + ".weight");
    for (int64_t row = 0; row < own.module.out; ++row)
      ASSERT_NEAR(adapter.weights->f32()[own.magnitude + row], norm(w.row(row), w.cols), 1e-5) << own.module.name;
  }
}

// With factors that matter from the start, the magnitudes are those of the sum.
TEST_F(FreshAdapter, MagnitudesOfRandomFactorsAreThoseOfTheSum) {
  lora::LoraConfig asked = config({"k_proj"});
  asked.use_dora = true;
  asked.init = {.method = lora::InitMethod::random};
  const lora::AdapterVersion adapter = load::fresh_adapter(asked, base_, 3);
  const lora::Pair& pair = adapter.layout->pairs[0];
  const lora::OwnTensors& own = adapter.layout->own[0];
  const Values w = values(own.module.name + ".weight");
  const float* const flat = adapter.weights->f32();
  for (int64_t row = 0; row < own.module.out; ++row) {
    std::vector<float> sum(static_cast<size_t>(w.cols));
    for (int64_t j = 0; j < w.cols; ++j) {
      double update = 0;
      for (int64_t k = 0; k < 4; ++k)
        update += flat[pair.a_offset + j * 4 + k] * flat[pair.b_offset + k * pair.out + row];
      sum[static_cast<size_t>(j)] = w.row(row)[j] + static_cast<float>(3 * update);
    }
    ASSERT_NEAR(flat[own.magnitude + row], norm(sum.data(), w.cols), 1e-5);
    ASSERT_GT(std::fabs(norm(sum.data(), w.cols) - norm(w.row(row), w.cols)), 1e-4);
  }
}

TEST_F(FreshAdapter, BiasesAndSavedWeightsAreTheBases) {
  lora::LoraConfig asked = config();
  asked.bias = lora::TrainedBiases::all;
  asked.modules_to_save = {"embed_tokens", "lm_head"};
  const lora::AdapterVersion adapter = load::fresh_adapter(asked, base_, 3);
  int biases = 0, weights = 0;
  for (const lora::OwnTensors& own : adapter.layout->own) {
    const auto same = [&](const char* suffix, int64_t offset) {
      const Values of = values(own.module.name + suffix);
      return std::equal(of.all.begin(), of.all.end(), adapter.weights->f32() + offset);
    };
    const bool has_bias = own.bias != lora::kAbsent, has_weight = own.weight != lora::kAbsent;
    biases += has_bias, weights += has_weight;
    EXPECT_TRUE(!has_bias || same(".bias", own.bias)) << own.module.name;
    EXPECT_TRUE(!has_weight || same(".weight", own.weight)) << own.module.name;
  }
  EXPECT_EQ(biases, 6);
  EXPECT_EQ(weights, 2);
}

TEST_F(FreshAdapter, ATiedHeadBeginsAsTheEmbedding) {
  const load::Base tied = testing::loaded(LOCKSTEP_SOURCE_DIR "/tests/golden/qwen2", stream_);
  lora::LoraConfig asked = config();
  asked.modules_to_save = {"lm_head"};
  const lora::AdapterVersion adapter = load::fresh_adapter(asked, tied, 3);
  const checkpoint::SafetensorsFile file(fs::Path(LOCKSTEP_SOURCE_DIR "/tests/golden/qwen2/model.safetensors"));
  const ConstTensor& embedding = *file.find("model.embed_tokens.weight");
  EXPECT_TRUE(std::equal(embedding.f32(), embedding.f32() + embedding.elements(),
                         adapter.weights->f32() + adapter.layout->own[0].weight));
}

// Shared factors are of the stacked weight; each weight is reported.
TEST_F(FreshAdapter, PissaOfSharedFactorsIsTheLargestPartOfTheStack) {
  lora::LoraConfig asked = config({"q_proj", "o_proj"});
  asked.type = lora::LoraType::fused;
  asked.rank = 8;
  asked.init = {.method = lora::InitMethod::pissa};
  asked.subtracts_initial = true;
  int reported = 0;
  const lora::AdapterVersion adapter = load::fresh_adapter(asked, base_, 3, [&](const lora::Pair&, double seconds) {
    ++reported;
    EXPECT_GE(seconds, 0);
  });
  EXPECT_EQ(reported, 4);
  for (const lora::Pair& pair : adapter.layout->pairs) {
    const float* const flat = adapter.weights->f32();
    double part = 0, left = 0, whole = 0;
    for (const lora::Module& module : pair.modules) {
      const Values w = values(module.name + ".weight");
      for (int64_t i = 0; i < module.out; ++i)
        for (int64_t j = 0; j < module.in; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < pair.rank; ++k)
            sum += flat[pair.a_offset + j * pair.rank + k] *
                   flat[pair.b_offset + k * pair.out + module.out_begin - pair.out_begin + i];
          sum *= pair.scale;
          part += sum * sum, left += std::pow(w.row(i)[j] - sum, 2), whole += std::pow(w.row(i)[j], 2);
        }
    }
    EXPECT_NEAR((part + left) / whole, 1, 1e-4) << "a projection: what is left is orthogonal to it";
    EXPECT_LT(left, whole * 0.95);
  }
}

class BaseCopies : public FreshAdapter {
 protected:
  void check(DType dtype, float change) const {
    Values head = values("lm_head.weight");
    head.all[77] += change;
    std::vector<BFloat16> halves;
    for (const float value : head.all) halves.push_back(to_bf16(value));
    const void* const data = dtype == DType::f32 ? static_cast<const void*>(head.all.data()) : halves.data();
    const std::string name = "base_model.model.lm_head.base_layer.weight";
    lora::LoraConfig asked = config({"lm_head"});
    const auto copies = lora::base_copies(asked, {{name, ConstTensor(data, dtype, {head.rows, head.cols})}});
    ASSERT_EQ(copies.size(), 1u);
    load::check_base_copies(copies, load::rows_of(base_), "some/file");
  }
};

TEST_F(BaseCopies, AreTheBasesWeightAsFarAsTheirTypeTells) {
  EXPECT_NO_THROW(check(DType::f32, 0));
  EXPECT_NO_THROW(check(DType::bf16, 0));
  const std::string row = "other values in row " + std::to_string(77 / values("lm_head.weight").cols) + "\n";
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_error<FormatError>([&] { check(dtype, 0.5f); },
                              {"some/file", "lm_head.base_layer.weight", row.c_str(), "modules_to_save"});
}

TEST_F(BaseCopies, OfAnotherShapeOrModule) {
  const std::vector<float> values(12);
  const auto copies = lora::base_copies(config({"lm_head"}), {{"base_model.model.lm_head.base_layer.weight",
                                                               ConstTensor(values.data(), DType::f32, {3, 4})}});
  expect_error<FormatError>([&] { load::check_base_copies(copies, load::rows_of(base_), "x"); }, {"f32 [3, 4]"});
  lora::LoraConfig saved = config();
  saved.modules_to_save = {"lm_head"};
  const ConstTensor tensor(values.data(), DType::f32, {3, 4});
  EXPECT_TRUE(lora::base_copies(saved, {{"base_model.model.lm_head.weight", tensor}}).empty()) << "it is the adapter's";
  EXPECT_TRUE(lora::base_copies(saved, {{"base_model.model.model.layers.0.mlp.up_proj.weight", tensor}}).empty());
}

}  // namespace
}  // namespace lockstep
