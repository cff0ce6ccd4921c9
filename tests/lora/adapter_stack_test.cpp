#include "lora/adapter_stack.h"

#include <gtest/gtest.h>

#include "kernels/lora.h"
#include "lora/fixture.h"

namespace lockstep::lora {
namespace {

TEST(AdapterStack, TakesPlainAdaptersOfFewRanksTogether) {
  EXPECT_EQ(AdapterStack::places_for(2), 2);
  EXPECT_EQ(AdapterStack::places_for(3), 4);
  const auto layout = [](int64_t rank) {
    AdapterLayout layout;
    layout.pairs.push_back({.rank = rank, .in = 8, .out = 8, .modules = {{.name = "q_proj", .leaf = "q_proj"}}});
    layout.num_floats = layout.num_trained = 16 * rank;
    return layout;
  };
  EXPECT_TRUE(AdapterStack::fits(layout(16), 4));
  EXPECT_TRUE(AdapterStack::fits(layout(3), 4)) << "padded to groups of 16";
  EXPECT_FALSE(AdapterStack::fits(layout(17), 4));
  EXPECT_TRUE(AdapterStack::fits(layout(32), 2));
  EXPECT_FALSE(AdapterStack::fits(layout(33), 2));
  AdapterLayout dora = layout(4);
  dora.own.push_back({.module = {.name = "q_proj"}, .magnitude = 64});
  EXPECT_FALSE(AdapterStack::fits(dora, 2));
}

}  // namespace
}  // namespace lockstep::lora
