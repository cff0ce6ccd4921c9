// Adapters that come and go while they are served.
#include "service/adapter_registry.h"

#include <limits>

#include "service/serving_fixture.h"

namespace lockstep::service {
namespace {

using AdapterRegistryTest = ServingTest;

TEST_F(AdapterRegistryTest, WhatCannotBeLoadedChangesNothing) {
  ServingOptions options;
  options.adapters = {.base_names = {"base"}, .max_loras = 2, .max_lora_rank = 4};
  Serving& serving = serve(options);
  AdapterRegistry& adapters = serving.adapters();
  EXPECT_EQ(adapters.load({.name = "a", .path = first_}).newest(), 7) << "what its directory says";
  const std::vector<int32_t> before = ask(request(1, 8, "a"));
  EXPECT_THROW(adapters.load({.name = "a", .path = first_}), ConfigError) << "not in place";
  EXPECT_THROW(adapters.load({.name = "base", .path = first_}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "", .path = first_}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "b", .path = path("nowhere")}), Error);
  EXPECT_THROW(adapters.load({.name = "b", .path = adapter_of(kTiny, lora::LoraType::canonical, 5)}), ShapeError)
      << "rank";
  EXPECT_THROW(adapters.load({.name = "b", .path = adapter_with_a_rank_pattern(5)}), ShapeError) << "of one module";
  EXPECT_THROW(adapters.load({.name = "b", .path = adapter_of(kArith, lora::LoraType::canonical, 4)}), Error)
      << "another base";
  EXPECT_THROW(adapters.load({.name = "a", .path = second_, .in_place = true, .version = 7}), ConfigError)
      << "not newer";
  EXPECT_THROW(adapters.load({.name = "a", .path = second_, .in_place = true, .sha256 = std::string(64, '0')}),
               DataError);
  const std::string torn = adapter_of(kTiny, lora::LoraType::canonical, 4);
  std::filesystem::resize_file(fs::Path(torn) / "adapter_model.safetensors", 2000);
  EXPECT_THROW(adapters.load({.name = "a", .path = torn, .in_place = true}), FormatError);
  EXPECT_EQ(adapters.info("a").newest(), 7);
  EXPECT_EQ(ask(request(1, 8, "a")), before);
  adapters.load({.name = "b", .path = second_});
  EXPECT_THROW(adapters.load({.name = "c", .path = second_}), ConfigError) << "two names at most";
  adapters.unload("b");
  EXPECT_THROW(adapters.unload("b"), NoSuchAdapter);
  EXPECT_NO_THROW(adapters.load({.name = "c", .path = second_}));
  EXPECT_EQ(adapters.list().size(), 2u);
}

// Names, shapes and ranks are in the small files; a terabyte that does not fit is not read to see it.
TEST_F(AdapterRegistryTest, AnAdapterIsJudgedBeforeItsWeightsAreRead) {
  ServingOptions options;
  options.adapters.max_lora_rank = 8;
  AdapterRegistry& adapters = serve(options).adapters();
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj";
  const auto write = [&](int64_t rank, uint64_t columns) {
    const uint64_t a_bytes = 16 * columns, bytes = a_bytes + 16;
    const Json header = {
        {module + ".lora_A.weight", {{"dtype", "F32"}, {"shape", {4, columns}}, {"data_offsets", {0, a_bytes}}}},
        {module + ".lora_B.weight", {{"dtype", "F32"}, {"shape", {1, 4}}, {"data_offsets", {a_bytes, bytes}}}}};
    std::string text = header.dump(), size(8, '\0');
    for (size_t i = 0; i < 8; ++i) size[i] = static_cast<char>(text.size() >> (8 * i) & 255);
    const Json config = {
        {"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", 8}, {"target_modules", {module.substr(17)}}};
    dir_.write("huge/adapter_config.json", config.dump());
    const fs::Path file = dir_.write("huge/adapter_model.safetensors", size + text);
    std::filesystem::resize_file(file, 8 + text.size() + bytes);
  };
  constexpr uint64_t kColumns = uint64_t{1} << 36;
  write(4, kColumns);
  testing::expect_error<ShapeError>([&] { adapters.load({.name = "huge", .path = path("huge")}); },
                                    {"layers.0.self_attn.q_proj.lora_A.weight", "68719476736", "[4, 64]"});
  write(9, kColumns);
  testing::expect_error<ShapeError>([&] { adapters.load({.name = "huge", .path = path("huge")}); },
                                    {"LoRA rank 9 is greater than max_lora_rank 8."});
}

TEST_F(AdapterRegistryTest, TellsOfAnOlderBuildsAdapter) {
  std::vector<std::string> told;
  ServingOptions options;
  options.adapters.on_note = [&](const std::string& note) { told.push_back(note); };
  AdapterRegistry& adapters = serve(options).adapters();
  adapters.load({.name = "a", .path = first_});
  EXPECT_TRUE(told.empty());
  change(fs::Path(first_) / "vime_lora_metadata.json", "base_fingerprint", base_.weights_fingerprint);
  change(fs::Path(first_) / "vime_lora_metadata.json", "base_weights_fingerprint", nullptr);
  adapters.load({.name = "a", .path = first_, .in_place = true});
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find(first_ + " is of an older build"), std::string::npos) << told[0];
}

TEST_F(AdapterRegistryTest, AdaptersAreReadBelowTheRootOnly) {
  ServingOptions options;
  options.adapters.lora_root = fs::Path(first_).parent_path().string();
  AdapterRegistry& adapters = serve(options).adapters();
  const std::string name = fs::Path(first_).filename().string();
  EXPECT_NO_THROW(adapters.load({.name = "absolute", .path = first_}));
  EXPECT_NO_THROW(adapters.load({.name = "relative", .path = name}));
  EXPECT_THROW(adapters.load({.name = "b", .path = second_}), ConfigError);
  EXPECT_THROW(
      adapters.load(
          {.name = "b", .path = first_ + "/../../" + fs::Path(second_).parent_path().filename().string() + "/" + name}),
      ConfigError);
  std::filesystem::create_directory_symlink(second_, fs::Path(first_).parent_path() / "link");
  EXPECT_THROW(adapters.load({.name = "b", .path = "link"}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "b", .path = "/"}), ConfigError);
}

TEST_F(AdapterRegistryTest, WithoutTheRootNothingIsRead) {
  ServingOptions options;
  options.adapters.lora_root = path("gone");
  AdapterRegistry& adapters = serve(options).adapters();
  EXPECT_THROW(adapters.load({.name = "a", .path = first_}), ConfigError);
  EXPECT_THROW(adapters.load({.name = "a", .path = "relative"}), ConfigError);
}

TEST_F(AdapterRegistryTest, EveryVersionHasANextOne) {
  AdapterRegistry& adapters = serve().adapters();
  for (const int64_t version : {int64_t{-1}, (int64_t{1} << 53) - 1, std::numeric_limits<int64_t>::max()})
    EXPECT_THROW(adapters.load({.name = "a", .path = first_, .version = version}), ConfigError) << version;
  EXPECT_EQ(adapters.load({.name = "a", .path = first_, .version = (int64_t{1} << 53) - 2}).newest(),
            (int64_t{1} << 53) - 2);
}

TEST_F(AdapterRegistryTest, UnloadedAdaptersServeWhatIsInFlight) {
  Serving& serving = serve();
  serving.adapters().load({.name = "a", .path = first_});
  const std::vector<int32_t> wanted = ask(request(1, 60, "a"));
  serving.pause(PauseMode::in_place);
  Answer answer;
  serving.submit(request(1, 60, "a"), answer.sink());
  serving.adapters().unload("a");
  EXPECT_THROW(serving.submit(request(1, 8, "a"), [](GenerationUpdate) {}), NoSuchAdapter);
  EXPECT_FALSE(serving.adapters().wait_unused("a", std::chrono::milliseconds(20)));
  serving.resume();
  EXPECT_EQ(answer.ids(), wanted);
  EXPECT_TRUE(serving.adapters().wait_unused("a", std::chrono::seconds(10)));
  EXPECT_TRUE(serving.adapters().wait_unused("never there", std::chrono::milliseconds(1)));
}

TEST_F(AdapterRegistryTest, UnloadingWaitsForEveryVersionInFlight) {
  ServingOptions options;
  options.adapters.keep_versions = 1;
  Serving& serving = serve(options);
  serving.adapters().load({.name = "a", .path = first_});
  serving.pause(PauseMode::in_place);
  Answer answer;
  serving.submit(request(1, 60, "a"), answer.sink());
  serving.adapters().load({.name = "a", .path = second_, .in_place = true});
  serving.adapters().unload("a");
  EXPECT_FALSE(serving.adapters().wait_unused("a", std::chrono::milliseconds(20)));
  serving.resume();
  EXPECT_EQ(answer.ids().size(), 60u);
  EXPECT_TRUE(serving.adapters().wait_unused("a", std::chrono::seconds(10)));
}

TEST_F(AdapterRegistryTest, ReloadingDoesNotGrow) {
  AdapterRegistry& adapters = serve().adapters();
  adapters.load({.name = "a", .path = first_});
  // The pool's first slab and the step's scratch memory stay.
  for (int i = 0; i < 3; ++i) {
    adapters.load({.name = "a", .path = first_, .in_place = true});
    ask(request(i, 2, "a"));
  }
  wait_until_idle();
  serving_->flush_cache();
  const int64_t before = live_bytes(Device::cpu);
  for (int i = 0; i < 50; ++i) {
    adapters.load({.name = "a", .path = i % 2 ? first_ : second_, .in_place = true});
    if (i % 5 == 0) ask(request(i, 2, "a"));
  }
  for (int i = 0; i < 2; ++i) adapters.load({.name = "a", .path = first_, .in_place = true});
  wait_until_idle();
  serving_->flush_cache();
  EXPECT_LE(live_bytes(Device::cpu), before + (int64_t{1} << 16));
}

}  // namespace
}  // namespace lockstep::service
