// What lockstep diff says of two adapters and of two models.
#include <gtest/gtest.h>

#include "commands/commands_fixture.h"
#include "commands/files/commands.h"
#include "commands/files/update_norms.h"
#include "recipes/golden_case.h"

namespace lockstep::commands {
namespace {

using testing::expect_error;

struct Factors {
  std::vector<float> a, b;
  load::ModuleFactors module;

  Factors(int64_t rank, int64_t in, int64_t out, float scale, uint32_t seed)
      : a(random(rank * in, seed)), b(random(out * rank, seed + 1)) {
    module = {.name = "m", .rank = rank, .scale = scale, .a = {}, .b = {}};
    view(in, out);
  }
  void view(int64_t in, int64_t out) {
    module.a = ConstTensor(a.data(), DType::f32, {module.rank, in});
    module.b = ConstTensor(b.data(), DType::f32, {out, module.rank});
  }
  static std::vector<float> random(int64_t count, uint32_t seed) {
    std::vector<float> values;
    for (uint32_t i = 0; i < count; ++i) values.push_back(uniform01(philox(seed, {i, 0, 0, 0})[0]) - 0.5f);
    return values;
  }
  // The matrix itself.
  std::vector<double> update() const {
    std::vector<double> values;
    for (int64_t i = 0; i < module.out(); ++i)
      for (int64_t j = 0; j < module.in(); ++j) {
        double sum = 0;
        for (int64_t k = 0; k < module.rank; ++k) sum += double(module.b.row(i)[k]) * module.a.row(k)[j];
        values.push_back(sum * module.scale);
      }
    return values;
  }
};

void expect_norms(const Factors& x, const Factors& y) {
  double a = 0, b = 0, difference = 0, inner = 0;
  const std::vector<double> p = x.update(), q = y.update();
  for (size_t i = 0; i < p.size(); ++i)
    a += p[i] * p[i], b += q[i] * q[i], difference += (p[i] - q[i]) * (p[i] - q[i]), inner += p[i] * q[i];
  const UpdateNorms norms = update_norms(&x.module, &y.module);
  EXPECT_NEAR(norms.a, std::sqrt(a), 1e-12 * std::sqrt(a));
  EXPECT_NEAR(norms.b, std::sqrt(b), 1e-12 * std::sqrt(b));
  EXPECT_NEAR(norms.inner, inner, 1e-12 * std::sqrt(a * b));
  EXPECT_NEAR(norms.difference, std::sqrt(difference), 1e-7 * std::sqrt(difference));
}

TEST(UpdateNorms, AreThoseOfTheMatrices) {
  expect_norms(Factors(4, 13, 9, 2, 1), Factors(4, 13, 9, 0.5f, 7));
  expect_norms(Factors(4, 13, 9, 2, 1), Factors(7, 13, 9, 0.5f, 7));
  expect_norms(Factors(1, 1, 1, 1, 1), Factors(2, 1, 1, 1, 2));
}

// One weight in ten million moved by its last bit: the norms themselves have no room for that.
TEST(UpdateNorms, ASmallDifferenceDoesNotDrown) {
  const Factors x(8, 64, 64, 2, 1);
  Factors y = x;
  y.view(64, 64);
  y.b[77] = std::nextafter(y.b[77], 1.0f);
  expect_norms(x, y);
  EXPECT_GT(update_norms(&x.module, &y.module).difference, 0);
  EXPECT_EQ(update_norms(&x.module, &x.module).difference, 0);
}

class Diff : public Commands {
 protected:
  Json diff(const std::string& a, const std::string& b, double tolerance = 0) {
    equal_ = run_diff({.a = a, .b = b, .tolerance = tolerance, .json = true}, control_);
    const Json json = Json::parse(taken(out_));
    EXPECT_EQ(json["equal"], equal_);
    return json;
  }
  std::string table(const std::string& a, const std::string& b) {
    equal_ = run_diff({.a = a, .b = b}, control_);
    return taken(out_);
  }
  bool equal_ = false;
};

TEST_F(Diff, AnAdapterAndItself) {
  const Json same = diff(kTiny + "/adapter", kTiny + "/adapter");
  EXPECT_TRUE(equal_);
  EXPECT_EQ(same["rows"].size(), 14u);
  EXPECT_NEAR(same["total"]["cosine"].get<double>(), 1, 1e-12);
  EXPECT_EQ(same["total"]["norm_difference"], 0);
  EXPECT_NE(table(kTiny + "/adapter", kTiny + "/adapter").find("equal: 0 of 14 modules differ"), std::string::npos);
}

TEST_F(Diff, AdaptersOfOtherRanksAndModules) {
  const Json json = diff(kTiny + "/adapter", kTiny + "/adapter_layers");
  EXPECT_FALSE(equal_);
  int only_a = 0, both = 0;
  for (const Json& row : json["rows"]) (row["b"] == "" ? only_a : both) += 1;
  EXPECT_GT(only_a, 0);
  EXPECT_GT(both, 0);
  EXPECT_TRUE(json["settings"].contains("adapter_config.json: layers_to_transform"));
  const std::string text = table(kTiny + "/adapter", kTiny + "/adapter_pattern");
  EXPECT_NE(text.find("rank 4 alpha 8 | rank"), std::string::npos) << text;
}

// PEFT adds the base's weight to factors of the head or the embedding: it is no part of the update.
TEST_F(Diff, CopiesOfTheBaseDoNotCount) {
  const std::vector<float> ones(400, 1.0f);
  const auto adapter = [&](const std::string& name, bool copies) {
    const std::string prefix = "base_model.model.lm_head";
    NamedTensors tensors = {{prefix + ".lora_A.weight", ConstTensor(ones.data(), DType::f32, {1, 4})},
                            {prefix + ".lora_B.weight", ConstTensor(ones.data(), DType::f32, {9, 1})}};
    if (copies) tensors.push_back({prefix + ".base_layer.weight", ConstTensor(ones.data(), DType::f32, {9, 4})});
    checkpoint::write_peft_directory(path(name), {.rank = 1}, {"lm_head"}, "", tensors);
    return path(name);
  };
  const Json json = diff(adapter("with", true), adapter("without", false));
  EXPECT_TRUE(equal_);
  EXPECT_EQ(json["rows"].size(), 1u);
}

TEST_F(Diff, ScaleCountsAsMuchAsWeights) {
  const std::string adapter = adapter_of(kTiny, lora::LoraType::canonical);
  std::filesystem::copy(adapter, path("other"), std::filesystem::copy_options::recursive);
  change(path("other") + "/adapter_config.json", "lora_alpha", 16);
  const Json json = diff(adapter, path("other"));
  EXPECT_FALSE(equal_);
  for (const Json& row : json["rows"]) {
    EXPECT_NEAR(row["norm_b"].get<double>(), 2 * row["norm_a"].get<double>(), 1e-9);
    EXPECT_NEAR(row["cosine"].get<double>(), 1, 1e-9);
  }
}

TEST_F(Diff, Models) {
  run_merge({.base = {.hf_checkpoint = kTiny, .stream = {.threads = 1}},
             .adapter_path = kTiny + "/adapter",
             .output = path("merged")},
            control_);
  const Json json = diff(kTiny, path("merged"));
  EXPECT_FALSE(equal_);
  EXPECT_EQ(json["kind"], "model");
  EXPECT_TRUE(json["settings"].empty()) << json["settings"];
  int differing = 0;
  for (const Json& row : json["rows"]) differing += row["differs"].get<bool>();
  EXPECT_EQ(differing, 14);
  diff(kTiny, path("merged"), 1);
  EXPECT_TRUE(equal_);
  diff(kTiny, kTiny);
  EXPECT_TRUE(equal_);
  const Json other = diff(kTiny, golden::directory("llama3").string());
  EXPECT_TRUE(other["settings"].contains("config.json: model_type"));
  expect_error<ConfigError>([&] { diff(kTiny, kTiny + "/adapter"); }, {"an adapter cannot be compared with a model"});
  expect_error<ConfigError>([&] { diff(path("absent"), kTiny + "/adapter"); }, {"no adapter there"});
}

}  // namespace
}  // namespace lockstep::commands
