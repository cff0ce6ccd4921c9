// Each method of training with each thing that could tie its numbers to the ranks: a run over any number of ranks, and
// one that goes on with another number, is the run of one.
#include "recipes/ranks_fixture.h"

namespace lockstep::recipes {
namespace {

enum class Method { sft, dpo, grpo, ppo };
enum class Feature { dropout, clipping, per_token, odd_batch, several_steps, sixteen_lanes };

constexpr const char* kMethods[] = {"Sft", "Dpo", "Grpo", "Ppo"};
constexpr const char* kFeatures[] = {"Dropout",  "ClippingThatBites", "PerTokenLoss",
                                     "OddBatch", "SeveralSteps",      "SixteenLanes"};

class Methods : public RanksOfThreads {
 protected:
  static constexpr int64_t kIterations = 3;

  SftOptions supervised(Method method, const std::string& save) {
    SftOptions options = method == Method::dpo ? dpo(save) : sft(save);  // batches of 4, and what is left
    options.eval_sets = {};
    options.eval_interval = 0;
    options.num_steps = kIterations;
    options.optimizer.schedule = {.lr = 1e-2};
    return options;
  }
  // One step of 8 samples a rollout.
  RlOptions reinforced(Method method, const std::string& save) {
    RlOptions options = rl(save);
    options.optimizer.schedule.lr = 1e-2;
    options.num_rollout = kIterations;
    options.rollout_batch_size = 2;
    options.sampling.max_tokens = 6;
    options.use_kl_loss = true;
    options.loss.kl_coef = 0.1f;
    if (method != Method::ppo) return options;
    options.advantage = {.estimator = rl::Estimator::ppo, .lambda = 0.95};
    options.critic.lr = 1e-2;
    options.critic.warmup_steps = 1;
    options.kl_reward_coef = 0.05;
    return options;
  }

  static void add(Feature feature, SftOptions& options) {
    add_to_all(feature, options);
    if (feature == Feature::per_token) options.training.per_token_loss = true;
    if (feature == Feature::odd_batch) options.training.global_batch_size = 7;
    if (feature == Feature::several_steps) {
      options.rollout_batch_size = 6;
      options.training.global_batch_size = 2;
      options.num_steps = 2 * kIterations;
    }
  }
  static void add(Feature feature, RlOptions& options) {
    add_to_all(feature, options);
    if (feature == Feature::per_token) options.reduction = {.kind = train::ReductionKind::token_mean};
    if (feature == Feature::odd_batch) {
      options.rollout_batch_size = options.n_samples = 3;
      options.training.global_batch_size = 9;
    }
    // The first step of a rollout is on policy: only later ones have ratios to clip.
    if (feature == Feature::several_steps || feature == Feature::clipping) options.training.global_batch_size = 4;
    if (feature == Feature::clipping) {
      options.loss.clip_low = options.loss.clip_high = 1e-4f;
      options.critic.value_clip = 1e-4f;
    }
  }

  void run(Method method, std::optional<Feature> feature, const std::string& save, int size = 0) {
    const auto start = [&](auto options, auto recipe) {
      if (feature) add(*feature, options);
      if (size == 0)
        recipe(options, control_);
      else
        run_well_on(size, options, recipe);
    };
    if (is_supervised(method))
      start(supervised(method, save), run_sft);
    else
      start(reinforced(method, save), run_rl);
  }

  static bool is_supervised(Method method) { return method == Method::sft || method == Method::dpo; }

  // Adapter, moments of its optimizer, critic and what else the last checkpoint holds as numbers; metrics, among them
  // the count of tokens; samples with their tokens and log-probs.
  void expect_equal_runs(Method method, const std::string& save, const std::string& wanted) const {
    const int64_t last = checkpoint::latest_iteration(dir_.path() / wanted).value();
    expect_same(save, wanted, last);
    EXPECT_EQ(tensors(save, last), tensors(wanted, last)) << save;
    if (!is_supervised(method)) {
      EXPECT_EQ(samples(save), samples(wanted)) << save;
    }
  }

  std::map<std::string, std::string> tensors(const std::string& save, int64_t iteration) const {
    std::map<std::string, std::string> files;
    const fs::Path directory = dir_.path() / save / checkpoint::iteration_directory_name(iteration);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      if (entry.path().extension() == ".safetensors")
        files[std::filesystem::relative(entry.path(), directory).string()] = fs::read_file(entry.path());
    return files;
  }

  double largest(const std::string& save, const char* metric) const {
    double value = 0;
    for (const Json& line : metrics(save)) value = std::max(value, line.at(metric).get<double>());
    return value;
  }

 private:
  template <class Options>
  static void add_to_all(Feature feature, Options& options) {
    if (feature == Feature::dropout) options.adapter.config.dropout = 0.25;
    if (feature == Feature::clipping) options.optimizer.clip_grad = 1e-3;
    if (feature == Feature::sixteen_lanes) {
      options.training.gradient_lanes = 16;
      options.training.global_batch_size = 8;
    }
  }
};

using Case = std::tuple<Method, Feature>;

class MethodsWithFeatures : public Methods, public ::testing::WithParamInterface<Case> {};

TEST_P(MethodsWithFeatures, HaveTheSameBitsOnAnyNumberOfRanks) {
  const auto [method, feature] = GetParam();
  run(method, std::nullopt, "plain");
  run(method, feature, "alone");
  const int64_t last = checkpoint::latest_iteration(dir_.path() / "alone").value();
  const int64_t plain = checkpoint::latest_iteration(dir_.path() / "plain").value();
  EXPECT_GT(largest("alone", "grad_norm"), 2e-3);  // above what clipping leaves
  // few samples of so small a model: both trees may add up to the same
  if (feature != Feature::sixteen_lanes) {
    EXPECT_NE(adapter_bytes("alone", last), adapter_bytes("plain", plain)) << "the feature changes nothing";
  }
  if (feature == Feature::clipping && !is_supervised(method)) {
    EXPECT_GT(largest("alone", "pg_clipfrac"), 0);
  }
  if (feature == Feature::clipping && method == Method::ppo) {
    EXPECT_GT(largest("alone", "value_clipfrac"), 0);
  }
  const std::vector<int> sizes = feature == Feature::sixteen_lanes ? std::vector{1, 2, 16} : std::vector{1, 2, 4, 8};
  for (const int size : sizes) {
    const std::string save = fmt::format("ranks{}", size);
    run(method, feature, save, size);
    expect_equal_runs(method, save, "alone");
  }
}

// Preference losses are means over pairs and refuse to be means over tokens (tests/train/loss_test.cpp).
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Method method : {Method::sft, Method::dpo, Method::grpo, Method::ppo})
    for (const Feature feature : {Feature::dropout, Feature::clipping, Feature::per_token, Feature::odd_batch,
                                  Feature::several_steps, Feature::sixteen_lanes})
      if (method != Method::dpo || feature != Feature::per_token) all.emplace_back(method, feature);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, MethodsWithFeatures, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(kMethods[static_cast<size_t>(std::get<0>(info.param))]) +
         kFeatures[static_cast<size_t>(std::get<1>(info.param))];
});

class MethodsThatGoOn : public Methods, public ::testing::WithParamInterface<Method> {
 protected:
  template <class Options>
  Options interrupted_each_time(Options options) const {
    options.adapter.config.dropout = 0.25;
    options.save.save_interval = 1;
    return options;
  }
};

TEST_P(MethodsThatGoOn, WithEightRanksThenTwoThenOneAreTheRunOfOne) {
  const Method method = GetParam();
  const auto in_parts = [&](const auto& made, auto recipe, auto end, int64_t each) {
    recipe(interrupted_each_time(made("alone")), control_);
    auto part = interrupted_each_time(made("part"));
    part.save.load = part.save.save;
    int64_t done = 0;
    for (const int size : {8, 2, 1}) {
      end(part) = done += each;
      run_well_on(size, part, recipe);
    }
    ASSERT_EQ(checkpoint::latest_iteration(dir_.path() / "part"), 3 * each);
    expect_equal_runs(method, "part", "alone");
  };
  if (is_supervised(method))
    in_parts(
        [&](const std::string& save) {
          SftOptions options = supervised(method, save);
          options.num_steps = 6;
          options.training.global_batch_size = 3;
          options.optimizer.decay_steps = 6;
          return options;
        },
        run_sft, [](SftOptions & options) -> auto& { return options.num_steps; }, 2);
  else
    in_parts(
        [&](const std::string& save) {
          RlOptions options = reinforced(method, save);
          options.training.global_batch_size = 4;  // two steps a rollout
          return options;
        },
        run_rl, [](RlOptions & options) -> auto& { return options.num_rollout; }, 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, MethodsThatGoOn, ::testing::Values(Method::sft, Method::dpo, Method::grpo, Method::ppo),
                         [](const auto& info) { return std::string(kMethods[static_cast<size_t>(info.param)]); });

}  // namespace
}  // namespace lockstep::recipes
