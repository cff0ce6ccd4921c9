#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "core/half.h"
#include "kernels/pack.h"
#include "model/fixture.h"
#include "model/tensor_places.h"

namespace lockstep::model {
namespace {

class Loading : public ::testing::Test {
 protected:
  std::string load_error(const ModelSpec& config, const NamedTensors& tensors, const std::string& where = "") {
    try {
      Weights::load(config, tensors, stream_, {}, where);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "";
  }

  // Every tensor of `tensors` comes back from memory, in order of names.
  void expect_visit(const ModelSpec& config, NamedTensors tensors) {
    const auto weights = Weights::load(config, tensors, stream_);
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    size_t next = 0;
    weights->visit(
        config,
        [&](const NamedTensor& tensor) {
          ASSERT_LT(next, tensors.size());
          const NamedTensor& wanted = tensors[next++];
          ASSERT_EQ(tensor.name, wanted.name);
          ASSERT_EQ(shape_text(tensor.tensor), shape_text(wanted.tensor));
          const size_t bytes = static_cast<size_t>(wanted.tensor.elements() * dtype_bytes(wanted.tensor.dtype));
          EXPECT_EQ(std::memcmp(tensor.tensor.data, wanted.tensor.data, bytes), 0) << tensor.name;
        },
        stream_);
    EXPECT_EQ(next, tensors.size());
  }

  Stream stream_{StreamOptions{.threads = 2}};
};

TEST_F(Loading, VisitGivesTheBytesBack) {
  for (const std::string& family : family_names())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const ModelSpec config = tiny_config(family);
      const ModelFile file(config, dtype);
      expect_visit(config, file.tensors);
    }
}

// What a plan of memory counts before anything is loaded.
TEST_F(Loading, TheBytesOfWeightsAreKnownBefore) {
  for (const std::string& family : family_names())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const ModelSpec config = tiny_config(family);
      const auto stored = [&](const std::string&) { return dtype; };
      EXPECT_EQ(weight_bytes(config, stored, Device::cpu), tiny_weights(config, stream_, dtype)->bytes()) << family;
      EXPECT_EQ(weight_bytes(config, stored, Device::cpu), Weights::random(config, dtype, 1, stream_)->bytes());
    }
}

TEST_F(Loading, VisitGivesEveryF16Back) {
  const ModelSpec config = tiny_config("qwen2");
  ModelFile file(config, DType::bf16);
  uint16_t bits = 0;  // any pattern is a value: subnormal, infinite, NaN
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    file.tensors[i].tensor.dtype = DType::f16;
    auto* values = static_cast<uint16_t*>(file.memory[i].data());
    for (int64_t j = 0; j < file.tensors[i].tensor.elements(); ++j) values[j] = bits = static_cast<uint16_t>(bits + 37);
  }
  expect_visit(config, file.tensors);
}

TEST_F(Loading, TiedCopyAndFrequencyBuffersBelongToTheFile) {
  const ModelSpec config = tiny_config("qwen3");
  ModelFile file(config);
  NamedTensors tensors = file.tensors;
  tensors.push_back({"lm_head.weight", file.find("model.embed_tokens.weight").tensor});
  const std::vector<float> frequencies = {1, 2, 3};
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", ConstTensor(frequencies.data(), DType::f32, {3})});
  expect_visit(config, tensors);

  std::vector<float> other(53 * 32);
  std::memcpy(other.data(), file.find("model.embed_tokens.weight").tensor.data, other.size() * sizeof(float));
  other.back() += 1;
  tensors = file.tensors;
  tensors.push_back({"lm_head.weight", ConstTensor(other.data(), DType::f32, {53, 32})});
  EXPECT_NE(load_error(config, tensors).find("lm_head.weight"), std::string::npos);
}

TEST_F(Loading, RefusalsNameTheTensor) {
  const ModelSpec config = tiny_config("qwen2");
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  ModelFile file(config);

  NamedTensors tensors = file.tensors;
  std::erase_if(tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
  EXPECT_NE(load_error(config, tensors).find(name), std::string::npos);
  EXPECT_NE(load_error(config, tensors, "DIR").find("DIR: " + name), std::string::npos);

  tensors = file.tensors;
  tensors.push_back({"model.layers.3.mlp.up_proj.weight", tensors[0].tensor});
  EXPECT_NE(load_error(config, tensors).find("model.layers.3.mlp.up_proj.weight"), std::string::npos);

  file.find(name).tensor.shape[0] = 8;
  std::string text = load_error(config, file.tensors);
  EXPECT_NE(text.find(name), std::string::npos);
  EXPECT_NE(text.find("f32 [8, 32]"), std::string::npos);
  EXPECT_NE(text.find("[16, 32]"), std::string::npos);

  file.find(name).tensor.shape[0] = 16;
  file.find(name).tensor.dtype = DType::i32;
  EXPECT_NE(load_error(config, file.tensors).find("wrong type"), std::string::npos);

  file.find(name).tensor.dtype = DType::bf16;
  text = load_error(config, file.tensors);
  EXPECT_NE(text.find(name), std::string::npos);
  EXPECT_NE(text.find("different types"), std::string::npos);
}

TEST_F(Loading, ProgressEndsAtOne) {
  const ModelSpec config = tiny_config("llama");
  const ModelFile file(config);
  std::vector<double> fractions;
  Weights::load(config, file.tensors, stream_, [&](double fraction) { fractions.push_back(fraction); });
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1.0);
}

TEST_F(Loading, RandomWeightsAreSeeded) {
  const ModelSpec config = tiny_config("llama");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto one = Weights::random(config, dtype, 1, stream_), again = Weights::random(config, dtype, 1, stream_);
    EXPECT_EQ(std::memcmp(one->embedding.weight.panels.data(), again->embedding.weight.panels.data(),
                          one->embedding.weight.panels.bytes()),
              0);
    EXPECT_NE(std::memcmp(one->layers[0].gate_up.weight.panels.data(), one->layers[1].gate_up.weight.panels.data(),
                          one->layers[0].gate_up.weight.panels.bytes()),
              0);
    double sum = 0, squares = 0;
    const int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    std::vector<float> rows(16 * 32);
    kernels::embedding_gather(Tensor(rows.data(), DType::f32, {16, 32}), one->embedding.weight, ids, stream_);
    for (const float value : rows) sum += value, squares += value * value;
    EXPECT_NEAR(sum / rows.size(), 0, 0.004);
    EXPECT_NEAR(std::sqrt(squares / rows.size()), 0.02, 0.003);
    EXPECT_EQ(one->final_norm.values.f32()[3], 1.0f);
    EXPECT_GT(one->bytes(), num_parameters(config) * dtype_bytes(dtype));
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(1.0f).bits, 0x3c00);
  EXPECT_EQ(to_f16(-2.0f).bits, 0xc000);
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0x0000);  // halfway: to even
  EXPECT_EQ(to_f16(0x1.8p-24f).bits, 0x0002);
  EXPECT_EQ(to_f16(1.0f + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(to_f16(1.0f + 0x1.8p-10f).bits, 0x3c02);
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    ASSERT_EQ(to_f16(to_f32(Float16{static_cast<uint16_t>(bits)})).bits, bits);
}

}  // namespace
}  // namespace lockstep::model
