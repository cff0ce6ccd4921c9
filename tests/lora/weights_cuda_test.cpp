// An adapter on a GPU: the f32 numbers as they were, and the bf16 copy that kernels read.
#include <gtest/gtest.h>

#include "lora/fixture.h"
#include "lora/init.h"
#include "lora/working_copy.h"
#include "support/gpu.h"

namespace lockstep::lora {
namespace {

class AdapterCuda : public testing::OnGpu<::testing::TestWithParam<LoraType>> {};

TEST_P(AdapterCuda, PlacedAndReadBackItIsTheSame) {
  const auto layout = resolve_layout(tiny_config(GetParam()), tiny_modules());
  const std::vector<float> wanted = [&] {
    const Buffer host = initial_weights(*layout, 7);
    return std::vector<float>(host.f32(), host.f32() + layout->num_floats);
  }();
  const Buffer weights = place_weights(initial_weights(*layout, 7), *layout, gpu());
  ASSERT_EQ(weights.bytes(), weight_bytes(*layout, Device::cuda));
  const Buffer back = host_weights(weights, *layout, gpu());
  EXPECT_EQ(std::vector<float>(back.f32(), back.f32() + layout->num_floats), wanted);

  const std::vector<float> working = testing::values_of(working_weights(weights, *layout), gpu());
  const std::vector<float> rounded = working_copy_of(*layout, wanted);
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_EQ(working[i], rounded[i]) << i;
}

// What a PEFT file holds of it is lossless.
TEST_P(AdapterCuda, ExportedAndImportedItIsTheSame) {
  const auto layout = resolve_layout(tiny_config(GetParam()), tiny_modules());
  const Buffer host = initial_weights(*layout, 7);
  const ExportedTensors exported = export_tensors(*layout, host.f32());
  const Buffer placed = place_weights(import_tensors(*layout, exported.tensors, "file"), *layout, gpu());
  const Buffer back = host_weights(placed, *layout, gpu());
  EXPECT_EQ(std::memcmp(back.data(), host.data(), host.bytes()), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, AdapterCuda, ::testing::Values(LoraType::fused, LoraType::canonical),
                         [](const auto& info) { return std::string(lora_type_name(info.param)); });

}  // namespace
}  // namespace lockstep::lora
