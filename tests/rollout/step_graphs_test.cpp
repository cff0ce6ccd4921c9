// When decode steps are recorded, and what follows from a recording that fails. No GPU is needed: graphs are empty
// here.
#include "rollout/local/step_graphs.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep::rollout {
namespace {

class StepGraphsTest : public ::testing::Test {
 protected:
  const Graph* record(const StepGraphs::Key& key) {
    return graphs_.record(key, [&] {
      ++asked_;
      if (fails_) throw DeviceError({.what = "the recording was disturbed"});
      return Graph();
    });
  }

  StepGraphs graphs_;
  bool fails_ = false;
  int64_t asked_ = 0;
};

TEST_F(StepGraphsTest, AGraphIsFoundByAllThatItNames) {
  const auto layout = std::make_shared<const lora::AdapterLayout>(),
             other = std::make_shared<const lora::AdapterLayout>();
  const StepGraphs::Key key{.shape = {.rows = 4, .spans = 1}, .adapter = {.layout = layout}};
  EXPECT_EQ(graphs_.find(key), nullptr);
  const Graph* const graph = record(key);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(graphs_.find(key), graph);
  StepGraphs::Key another = key;
  another.adapter.layout = other;
  EXPECT_EQ(graphs_.find(another), nullptr);
  StepGraphs::Key longer = key;
  longer.shape.spans = 2;
  EXPECT_EQ(graphs_.find(longer), nullptr);
  graphs_.clear();
  EXPECT_EQ(graphs_.find(key), nullptr);
}

TEST_F(StepGraphsTest, TheirNumberIsBounded) {
  for (int64_t rows = 1; rows <= 1000; ++rows) EXPECT_NE(record({.shape = {.rows = rows}}), nullptr);
  int64_t held = 0;
  for (int64_t rows = 1; rows <= 1000; ++rows) held += graphs_.find({.shape = {.rows = rows}}) != nullptr;
  EXPECT_GT(held, 0);
  EXPECT_LE(held, static_cast<int64_t>(StepGraphs::kMaxGraphs));
}

TEST_F(StepGraphsTest, AfterAFailureItIsTriedAgainLater) {
  fails_ = true;
  EXPECT_EQ(record({.shape = {.rows = 1}}), nullptr);
  EXPECT_EQ(graphs_.find({.shape = {.rows = 1}}), nullptr);
  EXPECT_EQ(graphs_.failures(), 1);
  fails_ = false;
  EXPECT_EQ(record({.shape = {.rows = 1}}), nullptr) << "not at once";
  EXPECT_EQ(asked_, 1);
  EXPECT_NE(record({.shape = {.rows = 1}}), nullptr);
  EXPECT_EQ(asked_, 2);
  EXPECT_EQ(graphs_.failures(), 1);
}

TEST_F(StepGraphsTest, PausesGrowToABoundAndASuccessEndsThem) {
  fails_ = true;
  int64_t calls = 0;
  const auto calls_until_asked = [&] {
    const int64_t before = asked_;
    for (calls = 1; record({.shape = {.rows = 1}}), asked_ == before; ++calls) {
    }
    return calls;
  };
  EXPECT_EQ(calls_until_asked(), 1);
  EXPECT_EQ(calls_until_asked(), 2);
  EXPECT_EQ(calls_until_asked(), 4);
  EXPECT_EQ(calls_until_asked(), 8);
  for (int i = 0; i < 10; ++i) calls_until_asked();
  EXPECT_EQ(calls_until_asked(), StepGraphs::kMaxPause + 1);
  fails_ = false;
  EXPECT_EQ(calls_until_asked(), StepGraphs::kMaxPause + 1);
  EXPECT_NE(record({.shape = {.rows = 2}}), nullptr) << "as if nothing had been";
  fails_ = true;
  EXPECT_EQ(calls_until_asked(), 1);
  EXPECT_EQ(calls_until_asked(), 2) << "pauses are short again";
}

// An exception that is no Error (a bug, no memory) is not taken for a disturbed recording.
TEST_F(StepGraphsTest, OtherExceptionsPass) {
  EXPECT_THROW(graphs_.record({.shape = {.rows = 1}}, []() -> Graph { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_EQ(graphs_.failures(), 0);
}

}  // namespace
}  // namespace lockstep::rollout
