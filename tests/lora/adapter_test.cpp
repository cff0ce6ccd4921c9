#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/random.h"
#include "lora/fixture.h"
#include "lora/init.h"
#include "lora/tensor_reader.h"

namespace lockstep::lora {
namespace {

// Every tensor random, gaps zero.
Buffer random_flat(const AdapterLayout& layout, uint64_t seed) {
  Buffer flat(static_cast<size_t>(layout.num_floats) * sizeof(float));
  uint32_t next = 0;
  const auto fill = [&](int64_t offset, int64_t count) {
    for (int64_t i = 0; i < count; ++i) flat.f32()[offset + i] = uniform01(philox(seed, {next++, 0, 0, 0})[0]) - 0.5f;
  };
  for (const Pair& pair : layout.pairs) {
    fill(pair.a_offset, pair.in * pair.rank);
    fill(pair.b_offset, pair.rank * pair.out);
    if (pair.a0_offset == kAbsent) continue;
    fill(pair.a0_offset, pair.in * pair.rank);
    fill(pair.b0_offset, pair.rank * pair.out);
  }
  for (const OwnTensors& own : layout.own) {
    if (own.magnitude != kAbsent) fill(own.magnitude, own.module.out);
    if (own.bias != kAbsent) fill(own.bias, own.module.out);
    if (own.weight != kAbsent) fill(own.weight, own.module.in * own.module.out);
  }
  return flat;
}

const ConstTensor& find(const NamedTensors& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors)
    if (tensor.name == name) return tensor.tensor;
  throw std::runtime_error("no tensor " + name);
}

template <class E>
std::string error_of(const AdapterLayout& layout, const NamedTensors& tensors) {
  try {
    import_tensors(layout, tensors, "some/adapter");
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

TEST(InitialWeights, AUniformBZeroCounted) {
  const auto layout = resolve_layout(tiny_config(LoraType::fused), tiny_modules());
  const Buffer one = initial_weights(*layout, 7), again = initial_weights(*layout, 7),
               other = initial_weights(*layout, 8);
  EXPECT_EQ(std::memcmp(one.data(), again.data(), one.bytes()), 0);
  EXPECT_NE(std::memcmp(one.data(), other.data(), one.bytes()), 0);
  for (const Pair& pair : layout->pairs) {
    const float bound = 1 / std::sqrt(static_cast<float>(pair.in));
    double sum = 0, squares = 0;
    const int64_t count = pair.in * pair.rank;
    for (int64_t i = 0; i < count; ++i) {
      const float value = one.f32()[pair.a_offset + i];
      ASSERT_LE(std::fabs(value), bound);
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(sum / count, 0, bound * 0.3);
    EXPECT_NEAR(squares / count, bound * bound / 3, bound * bound * 0.12);  // variance of the uniform distribution
    for (int64_t i = 0; i < pair.rank * pair.out; ++i) ASSERT_EQ(one.f32()[pair.b_offset + i], 0.0f);
  }
  EXPECT_NE(one.f32()[layout->pairs[0].a_offset], one.f32()[layout->pairs[4].a_offset]);
}

TEST(Export, NamesShapesAndOrder) {
  const auto layout = resolve_layout(tiny_config(LoraType::fused), tiny_modules());
  const Buffer flat = random_flat(*layout, 1);
  const ExportedTensors exported = export_tensors(*layout, flat.f32());
  EXPECT_EQ(exported.tensors.size(), 28u);
  const std::string prefix = "base_model.model.model.layers.1.self_attn.";
  const ConstTensor& a_q = find(exported.tensors, prefix + "q_proj.lora_A.weight");
  const ConstTensor& a_v = find(exported.tensors, prefix + "v_proj.lora_A.weight");
  const ConstTensor& b_v = find(exported.tensors, prefix + "v_proj.lora_B.weight");
  EXPECT_EQ(shape_text(a_q), "f32 [4, 24]");
  EXPECT_EQ(shape_text(b_v), "f32 [16, 4]");
  EXPECT_EQ(std::memcmp(a_q.data, a_v.data, 4 * 24 * sizeof(float)), 0);
  const Pair& qkv = layout->pairs[static_cast<size_t>(layout->pairs_at(qkv_site(1))[0])];
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 24; ++i) ASSERT_EQ(a_q.row(r)[i], flat.f32()[qkv.a_offset + i * 4 + r]);
    for (int64_t o = 0; o < 16; ++o) ASSERT_EQ(b_v.row(o)[r], flat.f32()[qkv.b_offset + r * 64 + 48 + o]);
  }
}

TEST(Import, UndoesExport) {
  for (const auto& [type, rank] :
       {std::pair(LoraType::fused, 3), {LoraType::canonical, 3}, {LoraType::fused, 16}, {LoraType::canonical, 21}}) {
    LoraConfig config = tiny_config(type);
    config.rank = rank;
    const auto layout = resolve_layout(config, tiny_modules());
    const Buffer flat = random_flat(*layout, 2);
    const ExportedTensors exported = export_tensors(*layout, flat.f32());
    const Buffer back = import_tensors(*layout, exported.tensors, "here");
    ASSERT_EQ(back.bytes(), flat.bytes());
    EXPECT_EQ(std::memcmp(back.data(), flat.data(), flat.bytes()), 0);
  }
}

// All that an adapter may have: magnitudes and biases of two modules, factors of the embedding, a head of its own,
// first values that are kept.
LoraConfig full_config(LoraType type) {
  LoraConfig config = tiny_config(type, {"q_proj", "down_proj", "embed_tokens"});
  config.bias = TrainedBiases::all;
  config.modules_to_save = {"lm_head"};
  return config;
}

TEST(Export, NamesOfEverythingBesideFactorsOfTheBlocks) {
  LoraConfig config = full_config(LoraType::canonical);
  const auto layout = resolve_layout(config, whole_modules());
  const Buffer flat = random_flat(*layout, 1);
  const ExportedTensors exported = export_tensors(*layout, flat.f32());
  const NamedTensors& tensors = exported.tensors;
  const auto shape = [&](const std::string& name) { return shape_text(find(tensors, "base_model.model." + name)); };
  EXPECT_EQ(shape("model.embed_tokens.lora_embedding_A"), "f32 [4, 50]");
  EXPECT_EQ(shape("model.embed_tokens.lora_embedding_B"), "f32 [24, 4]");
  EXPECT_EQ(shape("lm_head.weight"), "f32 [50, 24]");
  EXPECT_EQ(shape("model.layers.1.self_attn.q_proj.base_layer.bias"), "f32 [32]");  // a target, which PEFT wraps
  EXPECT_EQ(shape("model.layers.1.self_attn.k_proj.bias"), "f32 [16]");
  EXPECT_EQ(tensors.size(), 5 * 2u + 2 * 3u + 1u);
  config = tiny_config(LoraType::fused, {"v_proj", "lm_head"});
  config.use_dora = true;
  config.bias = TrainedBiases::lora_only;
  const auto dora = resolve_layout(config, whole_modules());
  const Buffer values = random_flat(*dora, 2);
  const ExportedTensors exported_dora = export_tensors(*dora, values.f32());
  const NamedTensors& of_dora = exported_dora.tensors;
  EXPECT_EQ(shape_text(find(of_dora, "base_model.model.lm_head.lora_magnitude_vector")), "f32 [50]");
  const OwnTensors& k = dora->own[2];  // behind the head and layer 0's q
  ASSERT_EQ(k.module.name, "model.layers.0.self_attn.k_proj");
  const ConstTensor& m = find(of_dora, "base_model.model." + k.module.name + ".lora_magnitude_vector");
  EXPECT_EQ(std::memcmp(m.data, values.f32() + k.magnitude, 16 * sizeof(float)), 0);
  EXPECT_EQ(dora->num_trained, dora->num_floats);
}

TEST(Export, OneByOneAsAllAtOnce) {
  LoraConfig subtracting = tiny_config(LoraType::fused, {"v_proj", "lm_head"});
  subtracting.subtracts_initial = true;
  for (const LoraConfig& config : {full_config(LoraType::canonical), full_config(LoraType::fused), subtracting}) {
    const auto layout = resolve_layout(config, whole_modules());
    const Buffer flat = random_flat(*layout, 3);
    const ExportedTensors wanted = export_tensors(*layout, flat.f32());
    TensorReader reader(*layout, flat.f32());
    ASSERT_EQ(reader.tensors().size(), wanted.tensors.size());
    for (size_t i = wanted.tensors.size(); i-- > 0;) {
      const ConstTensor &got = reader.read(i), &tensor = wanted.tensors[i].tensor;
      EXPECT_EQ(reader.tensors()[i].name, wanted.tensors[i].name);
      EXPECT_EQ(shape_text(reader.tensors()[i].tensor), shape_text(tensor));
      ASSERT_EQ(shape_text(got), shape_text(tensor));
      ASSERT_EQ(std::memcmp(got.data, tensor.data, wanted.tensors[i].bytes()), 0) << wanted.tensors[i].name;
    }
  }
}

TEST(Export, OfAnAdapterThatSubtractsItsFirstValuesIsAPlainOneOfTwiceTheRank) {
  LoraConfig config = tiny_config(LoraType::fused);
  config.subtracts_initial = true;
  config.rank_pattern = {{"down_proj", 3}};
  config.alpha_pattern = {{"up_proj", 5}, {"gate_proj", 5}};
  const auto layout = resolve_layout(config, tiny_modules());
  EXPECT_EQ(layout->num_trained, layout->pairs.front().a0_offset);
  const Buffer flat = random_flat(*layout, 1);
  const ExportedTensors exported = export_tensors(*layout, flat.f32());
  const auto plain = resolve_layout(saved_config(*layout), tiny_modules());
  const Buffer read = import_tensors(*plain, exported.tensors, "here");
  for (size_t p = 0; p < layout->pairs.size(); ++p) {
    const Pair &pair = layout->pairs[p], &twice = plain->pairs[p];
    ASSERT_EQ(twice.rank, 2 * pair.rank);
    EXPECT_FLOAT_EQ(twice.scale, pair.scale);
    for (int64_t i = 0; i < pair.in; i += 5)
      for (int64_t o = 0; o < pair.out; o += 3) {
        double wanted = 0, got = 0;
        const auto term = [&](const Buffer& all, int64_t a, int64_t b, int64_t rank, int64_t out) {
          double sum = 0;
          for (int64_t r = 0; r < rank; ++r)
            sum += static_cast<double>(all.f32()[a + i * rank + r]) * static_cast<double>(all.f32()[b + r * out + o]);
          return sum;
        };
        wanted = term(flat, pair.a_offset, pair.b_offset, pair.rank, pair.out) -
                 term(flat, pair.a0_offset, pair.b0_offset, pair.rank, pair.out);
        got = term(read, twice.a_offset, twice.b_offset, twice.rank, twice.out);
        ASSERT_NEAR(got, wanted, 1e-6);
      }
  }
  config.use_rslora = true;
  const auto root = resolve_layout(config, tiny_modules());
  EXPECT_FLOAT_EQ(resolve_layout(saved_config(*root), tiny_modules())->pairs[0].scale, root->pairs[0].scale);
}

TEST(Import, UndoesExportOfEverything) {
  for (const LoraType type : {LoraType::fused, LoraType::canonical})
    for (const bool subtracts : {false, true}) {
      LoraConfig config = full_config(type);
      config.subtracts_initial = subtracts;
      config.use_dora = false;
      const auto layout = resolve_layout(config, whole_modules());
      const Buffer flat = random_flat(*layout, 2);
      const ExportedTensors exported = export_tensors(*layout, flat.f32());
      const Buffer back = import_tensors(*layout, exported.tensors, "here");
      ASSERT_EQ(back.bytes(), flat.bytes());
      EXPECT_EQ(std::memcmp(back.data(), flat.data(), flat.bytes()), 0);
      EXPECT_EQ(resolve_layout(full_config(type), modules_of(exported.tensors))->num_parameters,
                layout->num_parameters);
    }
}

TEST(InitialWeights, OfTheEmbeddingAreAZeroBNormal) {
  LoraConfig config = tiny_config(LoraType::canonical, {"embed_tokens", "q_proj"});
  config.rank = 64;
  const auto layout = resolve_layout(config, whole_modules());
  const Buffer flat = initial_weights(*layout, 3);
  const Pair& pair = layout->pairs.front();
  ASSERT_TRUE(pair.of_embedding());
  for (int64_t i = 0; i < pair.in * pair.rank; ++i) ASSERT_EQ(flat.f32()[pair.a_offset + i], 0.0f);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  const int64_t count = pair.rank * pair.out;
  const float* const b = flat.f32() + pair.b_offset;
  for (int64_t i = 0; i < count; ++i) {
    sum += b[i], squares += b[i] * b[i], fourth += std::pow(b[i], 4);
    if (i % 2 == 1) neighbours += b[i] * b[i - 1];
  }
  EXPECT_NEAR(sum / count, 0, 0.1);
  EXPECT_NEAR(squares / count, 1, 0.12);
  EXPECT_NEAR(fourth / count, 3, 1);
  EXPECT_NEAR(2 * neighbours / count, 0, 0.12);
}

TEST(Modules, AreReadOffTheTensors) {
  for (const LoraType type : {LoraType::fused, LoraType::canonical}) {
    const auto layout = resolve_layout(tiny_config(type), tiny_modules());
    const Buffer flat = random_flat(*layout, 2);
    const ExportedTensors exported = export_tensors(*layout, flat.f32());
    const std::vector<Module> modules = modules_of(exported.tensors), known = tiny_modules();
    ASSERT_EQ(modules.size(), known.size());
    for (size_t i = 0; i < modules.size(); ++i) {
      EXPECT_EQ(modules[i].name, known[i].name);
      EXPECT_EQ(modules[i].leaf, known[i].leaf);
      EXPECT_EQ(modules[i].layer, known[i].layer);
      EXPECT_EQ(modules[i].site, known[i].site);
      EXPECT_EQ(modules[i].in, known[i].in);
      EXPECT_EQ(modules[i].out, known[i].out);
      EXPECT_EQ(modules[i].out_begin, known[i].out_begin);
    }
    EXPECT_EQ(resolve_layout(tiny_config(type), modules)->num_parameters, layout->num_parameters);
  }
  const float values[8] = {};
  const std::string prefix = "base_model.model.transformer.h.c_attn.lora_";
  const auto foreign = modules_of(
      {{prefix + "A.weight", ConstTensor(values, DType::f32, {2, 3})},
       {prefix + "B.weight", ConstTensor(values, DType::f32, {4, 2})},
       {"base_model.model.layers.99999999999999999999.x.lora_A.weight", ConstTensor(values, DType::f32, {8})}});
  ASSERT_EQ(foreign.size(), 2u);
  EXPECT_EQ(foreign[0].layer, 0);
  EXPECT_EQ(foreign[1].name, "transformer.h.c_attn");
  EXPECT_EQ(foreign[1].in, 3);
  EXPECT_EQ(foreign[1].out, 4);
}

TEST(Import, HalfTypes) {
  const auto layout = resolve_layout(tiny_config(LoraType::canonical, {"o_proj"}), tiny_modules(1));
  const std::string prefix = "base_model.model.model.layers.0.self_attn.o_proj.";
  std::vector<uint16_t> a(4 * 32, 0x3f80), b(24 * 4, 0x3c00);  // 1 in bf16, 1 in f16
  a[5] = 0xc000;                                               // -2 in bf16
  b[3] = 0x0001;                                               // the smallest f16
  const NamedTensors tensors = {{prefix + "lora_A.weight", ConstTensor(a.data(), DType::bf16, {4, 32})},
                                {prefix + "lora_B.weight", ConstTensor(b.data(), DType::f16, {24, 4})}};
  const Buffer flat = import_tensors(*layout, tensors, "here");
  const Pair& pair = layout->pairs[0];
  EXPECT_EQ(flat.f32()[pair.a_offset + 5 * 4], -2.0f);
  EXPECT_EQ(flat.f32()[pair.a_offset], 1.0f);
  EXPECT_EQ(flat.f32()[pair.b_offset + 3 * 24], 0x1p-24f);
  EXPECT_EQ(flat.f32()[pair.b_offset + 1], 1.0f);
}

TEST(Import, RefusesWhatDoesNotFit) {
  const auto layout = resolve_layout(tiny_config(LoraType::fused), tiny_modules());
  const Buffer flat = random_flat(*layout, 3);
  const ExportedTensors exported = export_tensors(*layout, flat.f32());
  const std::string a_k = "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight";

  NamedTensors tensors = exported.tensors;
  std::erase_if(tensors, [&](const NamedTensor& tensor) { return tensor.name == a_k; });
  EXPECT_NE(error_of<FormatError>(*layout, tensors).find(a_k), std::string::npos);

  tensors = exported.tensors;
  tensors.push_back({"base_model.model.lm_head.lora_A.weight", tensors[0].tensor});
  EXPECT_NE(error_of<FormatError>(*layout, tensors).find("lm_head"), std::string::npos);

  tensors = exported.tensors;
  tensors.push_back(tensors[0]);
  EXPECT_NE(error_of<FormatError>(*layout, tensors).find("twice"), std::string::npos);

  tensors = exported.tensors;
  for (NamedTensor& tensor : tensors)
    if (tensor.name == a_k) tensor.tensor.shape[0] = 3;
  const std::string shape_error = error_of<ShapeError>(*layout, tensors);
  EXPECT_NE(shape_error.find(a_k), std::string::npos);
  EXPECT_NE(shape_error.find("some/adapter"), std::string::npos);

  tensors = exported.tensors;
  for (NamedTensor& tensor : tensors)
    if (tensor.name == a_k) tensor.tensor.dtype = DType::i32;
  EXPECT_NE(error_of<FormatError>(*layout, tensors).find("wrong type"), std::string::npos);

  std::vector<float> changed(4 * 24);
  tensors = exported.tensors;
  for (NamedTensor& tensor : tensors) {
    if (tensor.name != a_k) continue;
    std::memcpy(changed.data(), tensor.tensor.data, changed.size() * sizeof(float));
    changed[17] += 1;
    tensor.tensor.data = changed.data();
  }
  EXPECT_NE(error_of<FormatError>(*layout, tensors).find("shared A"), std::string::npos);
}

TEST(Import, CopiesOfASharedAMayHaveAnotherType) {
  const auto layout = resolve_layout(tiny_config(LoraType::fused), tiny_modules());
  const Buffer flat = random_flat(*layout, 3);
  const ExportedTensors exported = export_tensors(*layout, flat.f32());
  NamedTensors tensors = exported.tensors;
  std::vector<std::vector<BFloat16>> halves;
  std::vector<std::vector<float>> rounded;
  for (NamedTensor& tensor : tensors) {
    if (!tensor.name.ends_with("lora_A.weight")) continue;
    halves.emplace_back();
    rounded.emplace_back();
    for (int64_t i = 0; i < tensor.tensor.elements(); ++i) {
      halves.back().push_back(to_bf16(tensor.tensor.f32()[i]));
      rounded.back().push_back(to_f32(halves.back().back()));
    }
    const bool half = tensor.name.find("k_proj") != std::string::npos || tensor.name.find("gate") != std::string::npos;
    tensor.tensor.data = rounded.back().data();
    if (half) tensor.tensor.data = halves.back().data(), tensor.tensor.dtype = DType::bf16;
  }
  EXPECT_NO_THROW(import_tensors(*layout, tensors, "here"));
  halves[1][17].bits ^= 1;  // k_proj of the first layer
  EXPECT_NE(error_of<FormatError>(*layout, tensors).find("shared A"), std::string::npos);
}

TEST(AdapterLayout, AValueHeadLiesBehindTheFactors) {
  LoraConfig config{.rank = 2, .alpha = 4, .target_modules = {"all-linear"}};
  const auto plain = resolve_layout(config, tiny_modules());
  config.value_width = 24;
  const auto critic = resolve_layout(config, tiny_modules());
  EXPECT_FALSE(plain->value_head);
  ASSERT_TRUE(critic->value_head);
  EXPECT_EQ(critic->value_head->weight, plain->num_trained);
  EXPECT_GE(critic->value_head->bias, critic->value_head->weight + 24);
  EXPECT_EQ(critic->num_trained, critic->num_floats);
  EXPECT_EQ(critic->num_parameters, plain->num_parameters + 25);
  Buffer flat = initial_weights(*critic, 5);
  double squares = 0;
  for (int64_t i = 0; i < 24; ++i) squares += std::pow(flat.f32()[critic->value_head->weight + i], 2);
  EXPECT_NEAR(std::sqrt(squares / 24), 0.02, 0.01);
  EXPECT_EQ(flat.f32()[critic->value_head->bias], 0);
  flat.f32()[critic->value_head->bias] = 3;
  const ExportedTensors exported = export_tensors(*critic, flat.f32());
  EXPECT_EQ(find(exported.tensors, "base_model.model.score.weight").shape[0], 1);
  EXPECT_EQ(find(exported.tensors, "base_model.model.score.bias").f32()[0], 3);
  const Buffer back = import_tensors(*critic, exported.tensors, "critic");
  EXPECT_EQ(std::memcmp(back.data(), flat.data(), flat.bytes()), 0);
  EXPECT_EQ(modules_of(exported.tensors).size(), modules_of(export_tensors(*plain, flat.f32()).tensors).size());
  EXPECT_THROW(import_tensors(*plain, exported.tensors, "critic"), FormatError);
}

}  // namespace
}  // namespace lockstep::lora
