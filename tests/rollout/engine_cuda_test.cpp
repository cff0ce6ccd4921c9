// The Engine on a GPU, where up to 16 decode steps run without the host: what a sample is, and its log-probabilities to
// the last bit, depend on nothing but the request. (Through the Trainer, and over many tokens:
// recipes/one_forward_cuda_test.cpp.)
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "model/adapter_extras.h"
#include "rollout/tiny_model.h"
#include "support/gpu.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;
using testing::Ballast;
using testing::placed;

struct Shape {
  const char* name;
  int64_t heads, kv_heads, head_dim, window;
  bool qk_norm, qkv_bias, tied_head;
};
constexpr Shape kShapes[] = {
    {"norms_16", 4, 2, 16, 0, true, false, true},       {"window_32", 4, 4, 32, 21, false, false, false},
    {"biases_64", 4, 1, 64, 0, false, true, false},     {"norms_128", 8, 2, 128, 0, true, false, true},
    {"window_192", 4, 1, 192, 300, false, true, false}, {"norms_256", 4, 2, 256, 0, true, false, true},
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}
constexpr int64_t kVocab = 97, kContext = 700;

model::ModelSpec config_of(const Shape& shape) {
  model::ModelSpec c = qwen3_config();
  c.width = 64, c.heads = shape.heads, c.kv_heads = shape.kv_heads, c.head_dim = shape.head_dim;
  c.qk_norm = shape.qk_norm, c.qkv_bias = shape.qkv_bias, c.tied_head = shape.tied_head;
  c.max_positions = kContext;
  c.window.assign(2, shape.window);
  return c;
}

class EngineCuda : public testing::OnGpu<::testing::TestWithParam<Shape>> {
 protected:
  void make() override {
    config_ = config_of(GetParam());
    model_ = random_model(config_, gpu());
    adapter_ = placed(random_adapter(config_, 3, 1), gpu());
  }

  struct Run {
    std::vector<Sample> samples;
    EngineStats stats;
  };
  Run run(EngineOptions options = {}, const lora::PolicyId& policy = actor(3)) {
    Engine engine(model_, options, gpu());
    hold(engine, adapter_);
    Run result{sample_groups(engine, prompts_, params_, policy), engine.stats()};
    EXPECT_EQ(engine.kv_bytes_in_use(), 0);
    return result;
  }
  int64_t block_bytes() {
    return config_.layers * model_->kv_layer_elements() * dtype_bytes(kernels::activation_dtype(gpu().device()));
  }

  model::ModelSpec config_;
  std::shared_ptr<const model::Model> model_;
  lora::AdapterVersion adapter_;
  // One crosses a span of keys while it decodes, one begins beyond two.
  std::vector<Prompt> prompts_ = random_prompts({1, 16, 37, 5, 64, 245, 530}, kVocab, 2);
  GroupParams params_{.sampling = {.temperature = 0.8f,
                                   .max_tokens = 37,
                                   .seed = 9,
                                   .stop_token_ids = {5},
                                   .logprob_temperature = 0.8f},
                      .n = 3,
                      .rollout = 4};
};

TEST_P(EngineCuda, LogprobsAreTheTrainersBits) {
  for (const float temperature : {0.8f, 1.0f}) {
    params_.sampling.logprob_temperature = temperature;
    for (const lora::PolicyId& policy : {kBasePolicy, adapter_.policy}) {
      const lora::AdapterVersion* adapter = policy.is_base() ? nullptr : &adapter_;
      for (const Sample& sample : run({}, policy).samples)
        EXPECT_EQ(sample.logprobs, trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample,
                                                    adapter, temperature, gpu()))
            << "prompt " << sample.prompt << ", sample " << sample.index;
    }
  }
}

TEST_P(EngineCuda, LogprobsAreTheTrainersBitsWithAllThatAnAdapterTrains) {
  for (const bool saves_head : {false, true}) {
    adapter_ = model::with_extras(placed(whole_adapter(config_, 3, saves_head), gpu()), model_->weights(), gpu());
    const std::vector<Sample> samples = run().samples;
    for (const Sample& sample : samples)
      EXPECT_EQ(sample.logprobs, trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample,
                                                  &adapter_, 0.8f, gpu()));
    expect_same(run({.max_sequences = 4, .max_batch_tokens = 50}).samples, samples, "four at once");
  }
}

TEST_P(EngineCuda, NoScheduleChangesABit) {
  const Run first = run();
  EXPECT_GT(first.stats.shared_prompt_tokens, 0);
  const std::vector<Sample>& wanted = first.samples;
  expect_same(run().samples, wanted, "again");
  expect_same(run({.max_sequences = 1}).samples, wanted, "one at a time");
  expect_same(run({.max_batch_tokens = 1}).samples, wanted, "one row per step");
  expect_same(run({.max_batch_tokens = 7}).samples, wanted, "chunks of 7");
  expect_same(run({.max_sequences = 4, .max_batch_tokens = 50}).samples, wanted, "four at once");

  std::vector<Sample> apart;
  Engine engine(model_, {}, gpu());
  hold(engine, adapter_);
  for (size_t p = 0; p < prompts_.size(); ++p)
    for (Sample& sample : sample_groups(engine, std::span(prompts_).subspan(p, 1), params_, actor(3))) {
      sample.prompt = static_cast<int64_t>(p);
      apart.push_back(std::move(sample));
    }
  expect_same(apart, wanted, "a call per prompt");

  params_.n = 1;  // no prompt is shared now
  std::vector<Sample> alone;
  for (const Sample& sample : wanted)
    if (sample.index == 0) alone.push_back(sample);
  expect_same(run().samples, alone, "n = 1");
}

// Decode reads whole spans of a prompt once for its samples; neighbours share one, two or none.
TEST_P(EngineCuda, SamplesThatReadAPromptTogetherAreThoseAlone) {
  prompts_ = random_prompts({600, 20, 256, 257, 512, 530}, kVocab, 4);
  params_.n = 9;
  const std::vector<Sample> together = run().samples;
  expect_same(run({.max_sequences = 1}).samples, together, "one at a time");
  expect_same(run({.max_sequences = 20}).samples, together, "twenty at once");
  for (const Sample& sample : together)
    EXPECT_EQ(sample.logprobs,
              trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample, &adapter_, 0.8f, gpu()))
        << "prompt " << sample.prompt << ", sample " << sample.index;
}

TEST_P(EngineCuda, NoPreemptionChangesABit) {
  prompts_ = random_prompts({1, 16, 37, 5, 64, 23}, kVocab, 2);
  const std::vector<Sample> wanted = run().samples;
  int64_t preemptions = 0;
  // 64 + 36 positions: 7 blocks is the least that works.
  for (const int64_t blocks : {7, 8, 11, 16, 23})
    for (const int64_t batch_tokens : {9, 16384}) {
      const Run tight = run({.kv_bytes = blocks * block_bytes(), .max_batch_tokens = batch_tokens});
      expect_same(tight.samples, wanted, std::to_string(blocks) + " blocks, " + std::to_string(batch_tokens) + " rows");
      preemptions += tight.stats.preemptions;
    }
  EXPECT_GT(preemptions, 5);
}

TEST_P(EngineCuda, EveryTokenIsTheCountedDraw) {
  params_.sampling.top_k = 40, params_.sampling.top_p = 0.95f;
  for (const float temperature : {0.8f, 0.0f}) {
    params_.sampling.temperature = temperature;
    for (const Sample& sample : run({.max_batch_tokens = 33}).samples) {
      const Prompt& prompt = prompts_[static_cast<size_t>(sample.prompt)];
      const Buffer logits = whole_logits(*model_, prompt, sample, &adapter_, gpu());
      const auto count = static_cast<int64_t>(sample.tokens.size()), first = static_cast<int64_t>(prompt.tokens.size());
      std::vector<kernels::SampleRow> rows;
      for (int64_t i = 0; i < count; ++i)
        rows.push_back(sample_row(params_.sampling, {params_.rollout, prompt.row, static_cast<uint32_t>(sample.index),
                                                     static_cast<uint32_t>(first + i)}));
      Arena arena(gpu().device());
      const std::span<int32_t> drawn(static_cast<int32_t*>(arena.alloc({count}, DType::i32).data),
                                     static_cast<size_t>(count));
      kernels::sample_tokens(drawn, arena.alloc({count, kVocab}),
                             ConstTensor(logits.f32() + (first - 1) * kVocab, DType::f32, {count, kVocab}),
                             upload(std::span<const kernels::SampleRow>(rows), arena, gpu()), gpu());
      std::vector<int32_t> tokens(drawn.size());
      download(tokens.data(), drawn.data(), drawn.size_bytes(), gpu());
      EXPECT_EQ(tokens, sample.tokens) << "prompt " << sample.prompt << ", sample " << sample.index;
    }
  }
}

// A length that is no multiple of a burst, and a stop token inside one: the sample is the beginning of the longer one.
TEST_P(EngineCuda, LengthsAndStopsCutTheSameTokens) {
  params_.sampling.stop_token_ids.clear();
  const std::vector<Sample> longest = run().samples;
  const auto cut = [&](const Sample& sample, size_t count) {
    return std::vector<int32_t>(sample.tokens.begin(), sample.tokens.begin() + static_cast<std::ptrdiff_t>(count));
  };
  for (const int64_t max_tokens : {1, 2, 15, 16, 17, 18, 33}) {
    params_.sampling.max_tokens = max_tokens;
    const std::vector<Sample> shorter = run().samples;
    for (size_t i = 0; i < shorter.size(); ++i) {
      EXPECT_EQ(shorter[i].tokens, cut(longest[i], static_cast<size_t>(max_tokens))) << max_tokens << ", " << i;
      EXPECT_EQ(shorter[i].finish, FinishReason::length);
    }
  }
  params_.sampling.max_tokens = 37;
  for (const size_t at : {0, 1, 7, 15, 16, 17, 30}) {
    params_.sampling.stop_token_ids = {longest[2].tokens[at], longest[10].tokens[at]};
    const std::vector<Sample> stopped = run().samples;
    for (size_t i = 0; i < stopped.size(); ++i) {
      const auto& stops = params_.sampling.stop_token_ids;
      const auto end =
          std::find_first_of(longest[i].tokens.begin(), longest[i].tokens.end(), stops.begin(), stops.end());
      const bool early = end != longest[i].tokens.end();
      EXPECT_EQ(stopped[i].tokens, std::vector<int32_t>(longest[i].tokens.begin(), early ? end + 1 : end)) << at;
      EXPECT_EQ(stopped[i].finish, early ? FinishReason::stop : FinishReason::length);
    }
  }
}

TEST_P(EngineCuda, TheContextsEndIsTheEnd) {
  params_.sampling.stop_token_ids.clear();
  params_.sampling.max_tokens = 64;
  prompts_ = random_prompts({kContext - 1, kContext - 10, kContext - 40, 3}, kVocab, 3);
  const std::vector<Sample> samples = run().samples;
  const size_t lengths[] = {1, 10, 40, 64};
  for (const Sample& sample : samples) {
    EXPECT_EQ(sample.tokens.size(), lengths[sample.prompt]);
    EXPECT_EQ(sample.finish, FinishReason::length);
    EXPECT_EQ(sample.logprobs,
              trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample, &adapter_, 0.8f, gpu()));
  }
}

// Adapters that follow one another in the same memory, of one layout and of another.
TEST_P(EngineCuda, AVersionIsReadWithItsOwnLayout) {
  Engine reused(model_, {}, gpu());
  int64_t version = 0;
  for (const auto& [rank, alpha] : {std::pair{3, 6.0}, {3, 12.0}, {5, 6.0}, {3, 6.0}, {16, 8.0}}) {
    lora::AdapterVersion adapter =
        placed(random_adapter(config_, version, static_cast<uint32_t>(version), rank, alpha), gpu());
    Engine fresh(model_, {}, gpu());
    hold(fresh, adapter);
    hold(reused, adapter);
    const std::vector<Sample> samples = sample_groups(reused, prompts_, params_, actor(version));
    expect_same(samples, sample_groups(fresh, prompts_, params_, actor(version)), "rank " + std::to_string(rank));
    for (const Sample& sample : samples)
      ASSERT_EQ(sample.logprobs,
                trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample, &adapter, 0.8f, gpu()));
    reused.versions().drop(actor(version++));
    reused.release_memory();
  }
}

TEST_P(EngineCuda, SeveralAdaptersOnOneBase) {
  const lora::AdapterVersion other = placed(random_adapter(config_, 4, 8), gpu());
  Engine engine(model_, {}, gpu());
  hold(engine, adapter_);
  hold(engine, other);
  const auto first = sample_groups(engine, prompts_, params_, actor(3)),
             second = sample_groups(engine, prompts_, params_, actor(4));
  const auto base = sample_groups(engine, prompts_, params_, kBasePolicy);
  expect_same(sample_groups(engine, prompts_, params_, actor(3)), first, "after another adapter");
  for (size_t i = 0; i < first.size(); ++i) {
    const Prompt& prompt = prompts_[static_cast<size_t>(first[i].prompt)];
    EXPECT_EQ(second[i].logprobs, trainer_logprobs(*model_, prompt, second[i], &other, 0.8f, gpu()));
    EXPECT_EQ(base[i].logprobs, trainer_logprobs(*model_, prompt, base[i], nullptr, 0.8f, gpu()));
    EXPECT_NE(first[i].logprobs, second[i].logprobs);
    EXPECT_NE(first[i].logprobs, base[i].logprobs);
  }
}

// Versions of a policy share their layout: their rows are decoded as those of one adapter (lora::AdapterStack). What
// each gives is what it gives alone, whoever comes and goes meanwhile, and however little the stack has room for.
TEST_P(EngineCuda, SeveralVersionsInOneBatch) {
  for (const int64_t rank : {3, 16, 40}) {
    std::vector<lora::AdapterVersion> versions;
    for (int64_t v = 0; v < 5; ++v) {
      versions.push_back(placed(random_adapter(config_, v, static_cast<uint32_t>(50 + v), rank), gpu()));
      versions.back().layout = versions.front().layout;
    }
    Engine together(model_, {}, gpu());
    std::vector<std::vector<Sample>> alone;
    for (const lora::AdapterVersion& version : versions) {
      Engine engine(model_, {}, gpu());
      hold(engine, version);
      hold(together, version);
      alone.push_back(sample_groups(engine, prompts_, params_, version.policy));
    }
    const auto submit = [&](size_t v) { return submit_groups(together, prompts_, params_, versions[v].policy); };
    for (const std::vector<size_t>& batch : {std::vector<size_t>{0, 1}, {1, 2, 3}, {0, 4}, {0, 1, 2, 3, 4}}) {
      std::vector<GroupTickets> tickets;
      for (const size_t v : batch) tickets.push_back(submit(v));
      for (size_t i = 0; i < batch.size(); ++i)
        expect_same(collect_groups(together, tickets[i]), alone[batch[i]],
                    "version " + std::to_string(batch[i]) + " of " + std::to_string(batch.size()));
    }
  }
}

// Published twice, a version has two names and one buffer.
TEST_P(EngineCuda, TwoVersionsOfOneBuffer) {
  lora::AdapterVersion twin = adapter_;
  twin.policy = actor(9);
  Engine alone(model_, {}, gpu()), engine(model_, {}, gpu());
  hold(alone, adapter_);
  hold(engine, adapter_);
  hold(engine, twin);
  const std::vector<Sample> wanted = sample_groups(alone, prompts_, params_, adapter_.policy);
  const GroupTickets first = submit_groups(engine, prompts_, params_, adapter_.policy);
  const GroupTickets second = submit_groups(engine, prompts_, params_, twin.policy);
  std::vector<Sample> of_twin = collect_groups(engine, second);
  expect_same(collect_groups(engine, first), wanted, "the first");
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(of_twin[i].logprobs, wanted[i].logprobs) << "of the twin";
}

// The weights of one adapter are multiplied with the zeros of the others' rows: those that are not finite may not be.
TEST_P(EngineCuda, AVersionThatDivergedSpoilsNoOther) {
  lora::AdapterVersion good = placed(random_adapter(config_, 0, 7), gpu()), broken = random_adapter(config_, 1, 8);
  for (const lora::Pair& pair : broken.layout->pairs)
    std::const_pointer_cast<Buffer>(broken.weights)->f32()[pair.b_offset] = std::numeric_limits<float>::infinity();
  broken = placed(broken, gpu());
  broken.layout = good.layout;
  Engine alone(model_, {}, gpu()), engine(model_, {}, gpu());
  hold(alone, good);
  hold(engine, good);
  hold(engine, broken);
  const GroupTickets spoiled = submit_groups(engine, prompts_, params_, actor(1));
  const GroupTickets fine = submit_groups(engine, prompts_, params_, actor(0));
  EXPECT_THROW(collect_groups(engine, spoiled), DataError);
  expect_same(collect_groups(engine, fine), sample_groups(alone, prompts_, params_, actor(0)),
              "beside one that diverged");
}

TEST_P(EngineCuda, CancelAndReleaseLeaveTheEngineUsable) {
  Engine engine(model_, {}, gpu());
  hold(engine, adapter_);
  const auto wanted = sample_groups(engine, prompts_, params_, actor(3));
  int calls = 0;
  EXPECT_THROW(sample_groups(engine, prompts_, params_, actor(3),
                             [&](int64_t, int64_t) {
                               if (++calls == 3) throw Cancelled({.what = "enough"});
                             }),
               Cancelled);
  EXPECT_EQ(engine.kv_bytes_in_use(), 0);
  expect_same(sample_groups(engine, prompts_, params_, actor(3)), wanted, "after a cancelled call");
  engine.release_memory();
  const int64_t before = live_bytes(gpu().device());
  expect_same(sample_groups(engine, prompts_, params_, actor(3)), wanted, "after its memory was released");
  const int64_t warm = live_bytes(gpu().device());
  for (int i = 0; i < 3; ++i) sample_groups(engine, prompts_, params_, actor(3));
  EXPECT_EQ(live_bytes(gpu().device()), warm) << "a rollout of the same size needs nothing new";
  engine.release_memory();
  EXPECT_EQ(live_bytes(gpu().device()), before);
}

// ---- errors

TEST_P(EngineCuda, AnAdapterThatDivergedIsADataError) {
  const auto wanted = run().samples;
  for (const float value : {1e30f, std::numeric_limits<float>::infinity()}) {
    lora::AdapterVersion broken = random_adapter(config_, 0, 1);
    auto weights = std::make_shared<Buffer>(broken.weights->bytes());
    std::fill_n(weights->f32(), weights->bytes() / sizeof(float), value);
    broken.weights = weights;
    Engine engine(model_, {}, gpu());
    hold(engine, placed(broken, gpu()));
    hold(engine, adapter_);
    EXPECT_THROW(sample_groups(engine, prompts_, params_, actor(0)), DataError);
    EXPECT_EQ(engine.kv_bytes_in_use(), 0);
    expect_same(sample_groups(engine, prompts_, params_, actor(3)), wanted, "after it");
  }
}

TEST_P(EngineCuda, AnAdapterInHostMemoryIsRefused) {
  if (gpu().device() == Device::cpu) GTEST_SKIP() << "the same memory";
  Engine engine(model_, {}, gpu());
  EXPECT_THROW(hold(engine, random_adapter(config_, 0, 1)), DeviceError);
  EXPECT_TRUE(engine.versions().ids().empty());
}

TEST_P(EngineCuda, OutOfDeviceMemoryIsAResourceErrorAndLosesNothing) {
  if (gpu().device() == Device::cpu) GTEST_SKIP() << "the host's memory is not ours to take";
  Engine engine(model_, {}, gpu());
  hold(engine, adapter_);
  const auto wanted = sample_groups(engine, prompts_, params_, actor(3));
  engine.release_memory();
  {
    const Ballast ballast(int64_t{96} << 20);  // a slab of KV memory is 256 MiB
    EXPECT_THROW(sample_groups(engine, prompts_, params_, actor(3)), ResourceError);
    EXPECT_EQ(engine.kv_bytes_in_use(), 0);
    EXPECT_EQ(engine.versions().ids(), std::vector{actor(3)});
  }
  expect_same(sample_groups(engine, prompts_, params_, actor(3)), wanted, "with the memory back");
  Engine small(model_, {.kv_bytes = 30 * block_bytes()}, gpu());
  EXPECT_THROW(sample_groups(small, prompts_, params_, kBasePolicy), ResourceError) << "one sequence does not fit";
}

INSTANTIATE_TEST_SUITE_P(Shapes, EngineCuda, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- a model that breaks at some tokens

constexpr int32_t kFirstBroken = 90;

class BrokenTokensCuda : public testing::OnGpu<> {
 protected:
  void make() override {
    config_ = config_of(kShapes[1]);
    sound_ = random_model(config_, gpu());
    broken_ = broken_model();
    params_.sampling.max_tokens = 37;
    params_.sampling.seed = 5;
  }

  // The embeddings of the last tokens are not numbers; the head is another matrix and is sound.
  std::shared_ptr<const model::Model> broken_model() {
    std::vector<Buffer> memory;
    NamedTensors tensors;
    sound_->weights().visit(
        config_,
        [&](const NamedTensor& named) {
          const size_t bytes = static_cast<size_t>(named.tensor.elements() * dtype_bytes(named.tensor.dtype));
          Buffer& copy = memory.emplace_back(bytes);
          std::memcpy(copy.data(), named.tensor.data, bytes);
          tensors.push_back(named);
          tensors.back().tensor.data = copy.data();
          if (named.name != "model.embed_tokens.weight") return;
          const size_t sound = bytes * kFirstBroken / kVocab;
          std::memset(static_cast<std::byte*>(copy.data()) + sound, 0xff, bytes - sound);
        },
        gpu());
    return std::make_shared<model::Model>(config_, model::Weights::load(config_, tensors, gpu()));
  }

  model::ModelSpec config_;
  std::shared_ptr<const model::Model> sound_, broken_;
  std::vector<Prompt> prompts_ = random_prompts({1, 16, 37, 64, 245}, kFirstBroken, 2);
  GroupParams params_{.n = 4};
};

// Within a burst a sequence runs on after its stop token, here with an input that makes NaN of its row and of its keys:
// nobody else may notice, now or when its blocks are used again.
TEST_F(BrokenTokensCuda, WhatARowDoesAfterItsEndTouchesNobody) {
  for (int32_t token = kFirstBroken; token < kVocab; ++token) params_.sampling.stop_token_ids.push_back(token);
  Engine sound(sound_, {}, gpu());
  const auto wanted = sample_groups(sound, prompts_, params_, kBasePolicy);
  EXPECT_TRUE(
      std::any_of(wanted.begin(), wanted.end(), [](const Sample& s) { return s.finish == FinishReason::stop; }));
  for (const int64_t sequences : {256, 5, 1}) {
    Engine engine(broken_, {.max_sequences = sequences}, gpu());
    for (int i = 0; i < 3; ++i)
      expect_same(sample_groups(engine, prompts_, params_, kBasePolicy), wanted,
                  std::to_string(sequences) + " at once");
  }
}

TEST_F(BrokenTokensCuda, LogitsThatAreNotFiniteInABurstAreADataError) {
  Engine engine(broken_, {}, gpu());
  EXPECT_THROW(sample_groups(engine, prompts_, params_, kBasePolicy), DataError);
  EXPECT_EQ(engine.kv_bytes_in_use(), 0);
  params_.sampling.max_tokens = 1;
  EXPECT_EQ(sample_groups(engine, prompts_, params_, kBasePolicy).size(), 20u) << "still usable";
}

}  // namespace
}  // namespace lockstep::rollout
