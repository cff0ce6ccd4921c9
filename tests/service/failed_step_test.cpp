// A step that fails while clients are served: those in it are told, all others are served. Only a GPU that is lost ends
// that.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "rollout/tiny_model.h"
#include "service/serving_fixture.h"
#include "support/gpu.h"

namespace lockstep::service {
namespace {

class FailedStep : public ::testing::Test {
 protected:
  FailedStep() {
    base_.config = rollout::testing_models::qwen3_config();
    base_.model = rollout::testing_models::model_without_last_token(base_.config, stream_);
    base_.stream = &stream_;
    serving_ = std::make_unique<Serving>(base_, ServingOptions{.engine = {.prefix_cache = true}});
  }
  int32_t last_token() const { return static_cast<int32_t>(base_.config.vocab_size) - 1; }
  GenerationRequest request(int32_t first, int64_t n = 1) const {
    GenerationRequest r{.tokens = {first, 2, 3, 4}, .n = n};
    r.sampling.max_tokens = 12;
    r.sampling.stop_token_ids = {last_token()};
    return r;
  }
  std::vector<int32_t> ask(const GenerationRequest& r) {
    Answer answer;
    serving_->submit(r, answer.sink());
    return answer.ids();
  }

  Stream stream_{{.threads = 1}};
  load::Base base_;
  std::unique_ptr<Serving> serving_;
};

TEST_F(FailedStep, EndsTheRequestsInItAndNoOthers) {
  const std::vector<int32_t> wanted = ask(request(1));
  for (int64_t failures = 1; failures <= 3; ++failures) {
    std::deque<Answer> together(4);
    Answer later;
    serving_->pause(PauseMode::in_place);
    for (size_t i = 0; i < together.size(); ++i)
      serving_->submit(request(i == 2 ? last_token() : static_cast<int32_t>(i), 2), together[i].sink());
    serving_->resume();
    for (Answer& answer : together) {
      const GenerationUpdate& last = answer.wait();
      ASSERT_TRUE(last.error.has_value());
      EXPECT_EQ(last.error->what, "token outside the vocabulary");
      EXPECT_FALSE(last.aborted);
    }
    EXPECT_TRUE(serving_->healthy());
    EXPECT_EQ(ask(request(1)), wanted);
    while (!serving_->idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(serving_->metrics().finished.at("error"), 8 * failures);
    // Written when the engine has no work.
    for (int tries = 0; serving_->metrics().failed_steps != failures && tries < 10'000; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(serving_->metrics().failed_steps, failures);
  }
}

using LostGpuCudaDeathTest = testing::OnGpu<::testing::Test>;

// Loses the GPU in this process; what was not as it should be.
std::string lose_the_gpu(Stream& stream) {
  const load::Base base = testing::loaded(kTiny, stream);
  Serving& serving = *new Serving(base, ServingOptions{.engine = {.kv_bytes = int64_t{64} << 20}});
  GenerationRequest request{.tokens = {1, 2, 3}};
  request.sampling.max_tokens = 8;
  Answer before, after;
  serving.submit(request, before.sink());
  if (before.wait().error || !serving.healthy()) return "nothing had happened yet";

  Stream other({.threads = 1, .device = Device::cuda});
  const Buffer rows(size_t{1} << 20, Buffer::Fill::zero, Device::cuda);
  const std::vector<int32_t> far_away(64, 1 << 30);
  const Buffer index = device_copy(far_away.data(), far_away.size() * sizeof(int32_t), other);
  const auto matrix = [](void* data) { return Tensor(data, DType::f32, {64, 64}); };
  kernels::gather_rows(matrix(rows.data()), matrix(static_cast<std::byte*>(rows.data()) + (size_t{1} << 19)),
                       {static_cast<const int32_t*>(index.data()), far_away.size()}, other);
  if (other.recover()) return "rows far outside were read";
  serving.submit(request, after.sink());
  if (!after.wait().error) return "answered without a GPU";
  if (serving.healthy()) return "healthy without a GPU";
  try {
    serving.submit(request, [](GenerationUpdate) {});
    return "taken without a GPU";
  } catch (const DeviceError& error) {
    if (error.fault().attempt != "restart the server") return error.what();
  }
  return "";
}

TEST_F(LostGpuCudaDeathTest, EndsTheServing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own
  const auto lose = [&] {
    const std::string wrong = lose_the_gpu(gpu());
    std::fprintf(stderr, "%s\n", wrong.empty() ? "as it should be" : wrong.c_str());
    std::_Exit(wrong.empty() ? 0 : 1);  // nothing can be taken down in order
  };
  EXPECT_EXIT(lose(), ::testing::ExitedWithCode(0), "as it should be");
}

}  // namespace
}  // namespace lockstep::service
