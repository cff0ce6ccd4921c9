// lockstep train: defaults and the rules between flags.
#include <gtest/gtest.h>

#include <algorithm>

#include "app/arguments.h"
#include "cli/parse.h"
#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::cli {
namespace {

using testing::expect_error;

bool notes_contain(const std::string& more, const std::string& text) {
  const auto notes = parse_train(train_args(more)).notes;
  return std::ranges::any_of(notes, [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(Train, DefaultsAreThoseOfTheScripts) {
  const recipes::RlOptions o = train("");
  EXPECT_EQ(o.input_key, "input");
  EXPECT_EQ(o.optimizer.schedule.lr, 1e-6);
  EXPECT_EQ(o.optimizer.beta1, 0.9);
  EXPECT_EQ(o.optimizer.beta2, 0.999);
  EXPECT_EQ(o.optimizer.eps, 1e-8);
  EXPECT_EQ(o.optimizer.weight_decay, 0.01);
  EXPECT_EQ(o.optimizer.clip_grad, 1);
  EXPECT_EQ(o.adapter.config.alpha, 16);
  EXPECT_EQ(o.adapter.config.type, lora::LoraType::fused);
  EXPECT_EQ(o.loss.clip_low, 0.2f);
  EXPECT_EQ(o.loss.clip_high, 0.2f);
  EXPECT_EQ(o.loss.clip_c, 0);
  EXPECT_EQ(o.loss.kl_type, train::KlType::k1);
  EXPECT_EQ(o.training.seed, 1234u);
  EXPECT_EQ(o.sampling.seed, 42u);
  EXPECT_EQ(o.sampling.temperature, 1);
  EXPECT_EQ(o.sampling.top_k, -1);
  EXPECT_EQ(o.eval_samples, 1);
  EXPECT_EQ(o.eval_interval, 0);
  EXPECT_EQ(o.save.save_interval, 0);
  EXPECT_TRUE(o.eval_before_train);
  EXPECT_FALSE(o.shuffle);
  EXPECT_EQ(o.training.recompute, std::nullopt);
}

TEST(Train, EveryFlagReachesItsOption) {
  const recipes::RlOptions o = train(
      "--num-epoch 2 --rollout-max-prompt-len 77 --rollout-temperature 0.8 --rollout-top-p 0.9 --rollout-top-k 5 "
      "--rollout-seed 9 "
      "--seed 7 --eps-clip 0.1 --eps-clip-c 3 --entropy-coef 0.01 --use-kl-loss --kl-loss-coef 0.02 --kl-loss-type k3 "
      "--n-samples-per-prompt 4 --disable-grpo-std-normalization --disable-rewards-normalization --lora-alpha 64 "
      "--use-rslora "
      "--lora-type canonical_lora --target-modules q_proj,v_proj --exclude-modules v_proj --lora-adapter-path A "
      "--min-lr 1e-7 "
      "--lr-decay-style cosine --lr-decay-iters 50 --lr-warmup-iters 5 --adam-eps 1e-9 --clip-grad 0 --save s "
      "--save-interval 2 "
      "--load l --skip-eval-before-train --threads 2 --cpu-isa avx2 --kv-cache-bytes 1000000 --max-num-seqs 16 "
      "--max-tokens-per-gpu 512 --gradient-checkpointing --eval-input-key q --eval-label-key a --rm-type exact");
  EXPECT_EQ(o.num_epoch, 2);
  EXPECT_EQ(o.max_prompt_len, 77);
  EXPECT_EQ(o.sampling.temperature, 0.8f);
  EXPECT_EQ(o.sampling.logprob_temperature, 0.8f);
  EXPECT_EQ(o.sampling.top_p, 0.9f);
  EXPECT_EQ(o.sampling.top_k, 5);
  EXPECT_EQ(o.sampling.seed, 9u);
  EXPECT_EQ(o.training.seed, 7u);
  EXPECT_EQ(o.loss.clip_low, 0.1f);
  EXPECT_EQ(o.loss.clip_high, 0.1f);
  EXPECT_EQ(o.loss.clip_c, 3);
  EXPECT_EQ(o.loss.entropy_coef, 0.01f);
  EXPECT_TRUE(o.use_kl_loss);
  EXPECT_EQ(o.loss.kl_coef, 0.02f);
  EXPECT_EQ(o.loss.kl_type, train::KlType::k3);
  EXPECT_FALSE(o.normalize_std);
  EXPECT_FALSE(o.normalize_rewards);
  EXPECT_EQ(o.adapter.config.alpha, 64);
  EXPECT_TRUE(o.adapter.config.use_rslora);
  EXPECT_EQ(o.adapter.config.type, lora::LoraType::canonical);
  EXPECT_EQ(o.adapter.config.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(o.adapter.config.exclude_modules, std::vector<std::string>{"v_proj"});
  EXPECT_EQ(o.adapter.adapter_path, "A");
  EXPECT_EQ(o.optimizer.schedule.min_lr, 1e-7);
  EXPECT_EQ(o.optimizer.schedule.style, train::DecayStyle::cosine);
  EXPECT_EQ(o.optimizer.decay_steps, 50);
  EXPECT_EQ(o.optimizer.schedule.warmup_steps, 5);
  EXPECT_EQ(o.optimizer.eps, 1e-9);
  EXPECT_EQ(o.optimizer.clip_grad, 0);
  EXPECT_EQ(o.save.save, "s");
  EXPECT_EQ(o.save.save_interval, 2);
  EXPECT_EQ(o.save.load, "l");
  EXPECT_FALSE(o.eval_before_train);
  EXPECT_EQ(o.base.stream.threads, 2);
  EXPECT_EQ(o.base.stream.isa, CpuIsa::avx2);
  EXPECT_EQ(o.kv_bytes, 1000000);
  EXPECT_EQ(o.max_sequences, 16);
  EXPECT_EQ(o.training.max_tokens, 512);
  EXPECT_EQ(o.training.recompute, model::Recompute::full);
  EXPECT_EQ(o.eval_input_key, "q");
  EXPECT_EQ(o.eval_label_key, "a");
  EXPECT_EQ(o.reward.choices.at(0).rule.type, rl::RewardType::exact);
}

TEST(Train, OneErrorNamesWhatIsMissing) {
  expect_error<ConfigError>([] { parse_train({}); },
                            {"missing: --hf-checkpoint, --prompt-data, --label-key, --rm-type, --rollout-batch-size, "
                             "--num-rollout or --num-epoch"});
  expect_error<ConfigError>(
      [] {
        parse_train(words("--hf-checkpoint M --prompt-data d --label-key l --rm-type math --rollout-batch-size 8"));
      },
      {"--num-rollout or --num-epoch"});
}

TEST(Train, AdapterRules) {
  const std::string base =
      "--hf-checkpoint M --prompt-data d --label-key l --rm-type math --rollout-batch-size 8 --num-rollout 1 ";
  expect_error<ConfigError>([&] { parse_train(words(base)); }, {"this program trains adapters: give --lora-rank"});
  expect_error<ConfigError>([&] { parse_train(words(base + "--lora-rank 0 --target-modules all-linear")); },
                            {"give --lora-rank"});
  expect_error<ConfigError>([&] { parse_train(words(base + "--lora-rank 8")); },
                            {"--lora-rank needs --target-modules", "all-linear"});
  EXPECT_NO_THROW(parse_train(words(base + "--lora-adapter-path A")));  // the directory says rank and modules
  EXPECT_DOUBLE_EQ(train("--lora-dropout 0.05").adapter.config.dropout, 0.05);
  rejects("--lora-type dora", {"--lora-type", "dora"});
  rejects("--target-modules ,", {"--target-modules names no module"});
}

TEST(Train, FirstValuesByPeftsNames) {
  const auto parsed = [&](const std::string& name) {
    return parse_train(words("--hf-checkpoint M --prompt-data d --label-key l --rm-type math --rollout-batch-size 8 "
                             "--num-rollout 1 --lora-rank 8 --target-modules all-linear --init-lora-weights " +
                             name))
        .options.adapter.config;
  };
  for (const char* name : {"true", "false", "gaussian", "orthogonal", "pissa", "pissa_niter_4", "olora"}) {
    EXPECT_EQ(lora::lora_init_name(parsed(name).init), name);
    EXPECT_EQ(parsed(name).subtracts_initial, parsed(name).init.changes_base()) << name;
  }
  for (const char* name : {"eva", "loftq", "pissa_niter_", "pissa_niter_-1", "PiSSA"})
    expect_error<ConfigError>([&] { parsed(name); }, {"--init-lora-weights", name, "gaussian", "--lora-adapter-path"});
}

TEST(Train, AnAdapterToStartFromSaysWhatIsLeftOut) {
  const std::string base =
      "--hf-checkpoint M --prompt-data d --label-key l --rm-type math --rollout-batch-size 8 --num-rollout 1 "
      "--lora-adapter-path A ";
  const auto parsed = [&](const std::string& more) { return parse_train(words(base + more)).options.adapter; };
  EXPECT_FALSE(parsed("").asked_alpha || parsed("").asked_rslora || parsed("").asked_type);
  EXPECT_TRUE(parsed("--lora-alpha 16").asked_alpha);
  EXPECT_TRUE(parsed("--use-rslora").asked_rslora);
  EXPECT_TRUE(parsed("--lora-type lora").asked_type);
  EXPECT_FALSE(parsed("").asked_init || parsed("").asked_dora || parsed("").asked_bias);
  EXPECT_TRUE(parsed("--use-dora").asked_dora && parsed("--use-dora").config.use_dora);
  EXPECT_TRUE(parsed("--lora-bias lora_only").asked_bias);
  EXPECT_EQ(parsed("--lora-bias lora_only").config.bias, lora::TrainedBiases::lora_only);
  EXPECT_TRUE(parsed("--modules-to-save lm_head").asked_modules_to_save);
  EXPECT_EQ(parsed("--modules-to-save lm_head,embed_tokens").config.modules_to_save,
            (std::vector<std::string>{"lm_head", "embed_tokens"}));
  EXPECT_TRUE(parsed("--init-lora-weights gaussian").asked_init);
  EXPECT_EQ(parsed("--lora-rank 8").config.rank, 8);  // the directory says the modules
  EXPECT_EQ(parsed("--target-modules q_proj").config.rank, 0);
}

TEST(Train, Checks) {
  const auto none = train("").checks;
  EXPECT_FALSE(none.logprob_diff || none.equal_logprobs || none.equal_reference || none.equal_adapter ||
               none.equal_base);
  const auto ci = train("--ci-test").checks;
  EXPECT_EQ(ci.logprob_diff, 0.1);
  EXPECT_TRUE(ci.equal_reference);
  EXPECT_TRUE(notes_contain("--ci-test", "slime's bounds"));
  const auto strict =
      train("--ci-test --ci-train-rollout-logprob-abs-diff-threshold 1e-6 --ci-disable-kl-checker").checks;
  EXPECT_EQ(strict.logprob_diff, 1e-6);
  EXPECT_FALSE(strict.equal_reference);
  EXPECT_EQ(train("--ci-train-rollout-logprob-abs-diff-threshold 0.5").checks.logprob_diff, 0.5);
  EXPECT_TRUE(train("--true-on-policy-mode").checks.equal_logprobs);
  EXPECT_TRUE(train("--check-lora-weight-equal").checks.equal_adapter);
  EXPECT_FALSE(train("--check-lora-weight-equal").checks.equal_base);
  const auto weights = train("--check-weight-update-equal").checks;
  EXPECT_TRUE(weights.equal_adapter && weights.equal_base);
  rejects("--ci-save-grad-norm f", {"not available yet: --ci-save-grad-norm"});
}

TEST(Train, ReferenceAndMetadata) {
  EXPECT_EQ(parse_train(train_args("--ref-load R")).ref_load, "R");
  EXPECT_FALSE(parse_train(train_args("--ref-load R")).uses_reference);
  EXPECT_TRUE(parse_train(train_args("--ref-load R --use-kl-loss")).uses_reference);
  EXPECT_TRUE(parse_train(train_args("--ref-load R --kl-coef 0.1")).uses_reference);
  EXPECT_FALSE(parse_sft(sft_args("--ref-load R")).uses_reference);
  EXPECT_TRUE(parse_dpo(sft_args("--ref-load R")).uses_reference);
  EXPECT_EQ(train("").metadata_key, "metadata");
  EXPECT_EQ(train("--metadata-key meta").metadata_key, "meta");
}

TEST(Train, KlRules) {
  rejects("--kl-coef 0.1 --use-kl-loss --kl-loss-coef 0.1", {"--kl-coef and --kl-loss-coef"});
  EXPECT_EQ(train("--kl-coef 0.1 --kl-loss-coef 0.0").kl_reward_coef, 0.1);
  EXPECT_TRUE(notes_contain("--kl-coef 0.1", "slime computes it and does not use it"));
  EXPECT_FALSE(notes_contain("--kl-coef 0.0", "slime computes it"));
  EXPECT_TRUE(notes_contain("--kl-loss-coef 0.1", "not used without --use-kl-loss"));
  EXPECT_TRUE(notes_contain("--rm-type math", "differ from slime's and miles'"));
  EXPECT_FALSE(notes_contain("--rm-type number", "--rm-type"));
  EXPECT_EQ(train("--rm-type math --math-tolerance 1e-3").reward.choices.at(0).rule.math_tolerance, 1e-3);
  rejects("--math-tolerance 1e-3", {"--math-tolerance needs --rm-type math"});
  rejects("--eps-clip-c 1", {"--eps-clip-c", "above 1"});
}

TEST(Train, EstimatorsAndLosses) {
  using train::PolicyObjective;
  const std::string groups = "--n-samples-per-prompt 4 ";
  EXPECT_EQ(train(groups + "--advantage-estimator rloo").advantage.estimator, rl::Estimator::rloo);
  EXPECT_EQ(train(groups + "--advantage-estimator grpo_passk").advantage.estimator, rl::Estimator::pass_at_k);
  EXPECT_EQ(train(groups + "--advantage-estimator gspo").loss.ratio_level, train::RatioLevel::sequence);
  EXPECT_EQ(train(groups + "--advantage-estimator cispo").loss.objective, PolicyObjective::cispo);
  EXPECT_EQ(train(groups + "--policy-loss geo_mean").loss.objective, PolicyObjective::gmpo);
  EXPECT_EQ(train(groups + "--pg-loss-type reinforce").loss.objective, PolicyObjective::reinforce);
  const auto kl_cov = train(groups + "--policy-loss kl_cov --kl-cov-ratio 0.02");
  EXPECT_EQ(kl_cov.row_choice.kind, train::RowChoiceKind::kl_cov);
  EXPECT_EQ(kl_cov.row_choice.share, 0.02);
  EXPECT_EQ(train("--kl-loss-type k3+").loss.kl_type, train::KlType::k3_plus);
  EXPECT_EQ(train(groups + "--advantage-estimator reinforce_plus_plus --gamma 0.5").advantage.gamma, 0.5);
  EXPECT_TRUE(notes_contain(groups + "--advantage-estimator reinforce_plus_plus", "whitened over the rollout"));
  EXPECT_TRUE(notes_contain(groups + "--gamma 0.5", "grpo does not discount"));
  EXPECT_TRUE(notes_contain(groups + "--policy-loss cispo", "bounded from below, at 0.8"));
  rejects("--advantage-estimator grpo_passk", {"--n-samples-per-prompt", "at least 2"});
  rejects("--advantage-estimator gspo --policy-loss cispo", {"a loss of its own", "gspo, cispo"});
  rejects("--policy-loss sapo --pg-loss-type ppo", {"two flags name the loss"});
  rejects("--clip-cov-ratio 0.1", {"--clip-cov-ratio needs --policy-loss clip_cov"});
  rejects("--cispo-absolute-bounds", {"needs the loss cispo"});
  rejects("--policy-loss cispo --cispo-absolute-bounds --eps-clip 0.5 --eps-clip-high 0.1",
          {"not in order", "0.5, 0.1"});
}

TEST(Train, PpoAndItsCritic) {
  const std::string ppo = "--advantage-estimator ppo ";
  const auto usual = train(ppo);
  EXPECT_EQ(usual.advantage.estimator, rl::Estimator::ppo);
  EXPECT_EQ(usual.advantage.gamma, 1);
  EXPECT_EQ(usual.advantage.lambda, 1);
  EXPECT_FALSE(usual.advantage.whiten);
  EXPECT_EQ(usual.critic.value_clip, 0.2f);
  EXPECT_FALSE(usual.critic.lr);
  EXPECT_EQ(usual.critic.only_rollouts, 0);
  // miles' examples/ppo and its test of PPO.
  const auto given = train(ppo +
                           "--gamma 0.99 --lambd 0.95 --value-clip 0.3 --critic-lr 1e-5 --critic-lr-warmup-iters 1 "
                           "--num-critic-only-steps 1 --critic-load a --critic-save b --critic-lora-rank 4 "
                           "--normalize-advantages --use-kl-loss --kl-loss-coef 0 --critic-num-nodes 1");
  EXPECT_EQ(given.advantage.gamma, 0.99);
  EXPECT_EQ(given.advantage.lambda, 0.95);
  EXPECT_TRUE(given.advantage.whiten);
  EXPECT_EQ(given.critic.value_clip, 0.3f);
  EXPECT_EQ(given.critic.lr, 1e-5);
  EXPECT_EQ(given.critic.warmup_steps, 1);
  EXPECT_EQ(given.critic.only_rollouts, 1);
  EXPECT_EQ(given.critic.rank, 4);
  EXPECT_EQ(given.critic.load, "a");
  EXPECT_EQ(given.critic.save, "b");
  EXPECT_FALSE(notes_contain(ppo + "--gamma 0.9 --lambd 0.9", "--gamma"));
  EXPECT_FALSE(notes_contain(ppo + "--kl-coef 0.1", "slime computes it"));
  EXPECT_TRUE(notes_contain("--lambd 0.9", "--lambd: grpo has no critic"));
  EXPECT_TRUE(notes_contain("--critic-lr 1e-5", "--critic-lr: grpo has no critic"));
  EXPECT_TRUE(notes_contain(ppo + "--num-rollout 3 --num-critic-only-steps 3", "the actor never learns"));
  rejects(ppo + "--lambd 1.5", {"--lambd"});
  rejects(ppo + "--value-clip -1", {"--value-clip"});
  rejects(ppo + "--save run --critic-save ./run", {"one directory", "run_critic"});
  rejects(ppo + "--critic-train-only", {"not available yet: --critic-train-only"});
}

TEST(Train, Reductions) {
  using train::ReductionKind;
  EXPECT_EQ(train("").reduction.kind, ReductionKind::sample_mean);
  EXPECT_EQ(train("--calculate-per-token-loss").reduction.kind, ReductionKind::token_mean);
  EXPECT_EQ(train("--loss-agg-mode token-sum").reduction.kind, ReductionKind::token_sum);
  const auto fixed = train("--advantage-estimator dr_grpo --rollout-max-response-len 99");
  EXPECT_EQ(fixed.reduction.kind, ReductionKind::fixed_length);
  EXPECT_EQ(fixed.reduction.length, 99);
  EXPECT_EQ(train("--loss-agg-mode dr_grpo --loss-scale-factor 7").reduction.length, 7);
  EXPECT_EQ(train("--advantage-estimator dr_grpo --loss-agg-mode token-mean").reduction.kind,
            ReductionKind::token_mean);
  rejects("--loss-scale-factor 7", {"--loss-scale-factor needs"});
  rejects("--calculate-per-token-loss --loss-agg-mode token-sum", {"--loss-agg-mode", "token-sum"});
}

TEST(Train, Corrections) {
  const auto rules = [](const std::string& more) { return train(more).correction.rules; };
  const auto tis = rules("--use-tis --tis-clip 3 --tis-clip-low 0.5");
  ASSERT_EQ(tis.size(), 1u);
  EXPECT_EQ(tis[0].action, rl::CorrectionAction::truncate);
  EXPECT_EQ(tis[0].low, 0.5);
  EXPECT_EQ(tis[0].high, 3);
  const auto trl = rules("--importance-sampling-mode sequence_mask");
  EXPECT_EQ(trl[0].level, rl::MeasureLevel::seq_sum);
  EXPECT_EQ(trl[0].action, rl::CorrectionAction::mask);
  const auto verl = rules(
      "--rollout-is token --rollout-is-threshold 0.5_5.0 --rollout-rs seq_mean_k1 token_k3 "
      "--rollout-rs-threshold 2 0.01");
  ASSERT_EQ(verl.size(), 3u);
  EXPECT_EQ(verl[0].action, rl::CorrectionAction::mask);
  EXPECT_EQ(verl[1].measure, rl::Measure::ratio);
  EXPECT_EQ(verl[1].low, 0.5);
  EXPECT_EQ(verl[2].measure, rl::Measure::k3);
  EXPECT_EQ(verl[2].high, 0.01);
  const auto areal = rules("--rejection-sampling level=sequence,agg=max,action=clamp,metric=ratio,upper=4");
  EXPECT_EQ(areal[0].level, rl::MeasureLevel::seq_max);
  EXPECT_EQ(areal[0].action, rl::CorrectionAction::truncate);
  EXPECT_EQ(rules("--correction k2:token:reject:0:1 ratio:token:mask:0.5:2").size(), 2u);
  EXPECT_TRUE(notes_contain("--use-tis", "every weight is exactly 1"));
  EXPECT_TRUE(train("--use-opsm --opsm-delta 0.5").loss.sequence_mask.on);
  EXPECT_TRUE(train("--off-policy-mask-threshold 0.5").loss.sequence_mask.from_sampler);
  rejects("--use-tis --rollout-is token", {"corrections of two systems"});
  rejects("--rollout-rs token_k1", {"needs its threshold"});
  rejects("--rollout-rs seq_max_k1 --rollout-rs-threshold 2", {"no seq_max_k1"});
  rejects("--rollout-rs token_k4 --rollout-rs-threshold 2", {"--rollout-rs", "k4"});
  rejects("--correction ratio:token", {"MEASURE:LEVEL:ACTION:LO:HI"});
  rejects("--correction k2:token:truncate:0:1", {"only ratios can be truncated"});
  rejects("--correction ratio:token:mask:1.5:2", {"leave equal log-probs alone", "1.5 to 2"});
  rejects("--rejection-sampling metric=kl_k2", {"--rejection-sampling", "metric=kl_k2", "--correction has the KL"});
  rejects("--use-opsm --off-policy-mask-threshold 1", {"two masks"});
}

TEST(Train, Distillation) {
  const auto o = train("--use-opd --opd-type megatron --opd-teacher-load T --opd-kl-coef 0.5");
  EXPECT_TRUE(o.distill);
  EXPECT_EQ(o.teacher, "T");
  EXPECT_EQ(o.distillation.coef, 0.5);
  EXPECT_TRUE(train("--advantage-estimator on_policy_distillation --opd-teacher-load T").distill);
  rejects("--use-opd", {"distillation needs a teacher", "--opd-teacher-load"});
  rejects("--opd-teacher-load T", {"--opd-teacher-load needs --use-opd"});
  rejects("--opd-log-prob-top-k 4", {"--opd-log-prob-top-k needs --use-opd"});
  rejects("--use-opd --opd-type sglang", {"distillation needs a teacher"});
  rejects("--use-opd --opd-type sglang --opd-teacher-load T", {"--opd-type", "--opd-teacher-urls"});
  rejects("--use-opd --opd-type megatron --opd-teacher-urls h:1", {"--opd-type", "--opd-teacher-load"});
}

TEST(Train, GatesAndAdaptiveCoefficients) {
  const std::string groups = "--n-samples-per-prompt 4 ";
  const auto dapo = train(groups +
                          "--dynamic-sampling-filter-path a.b.check_reward_nonzero_std "
                          "--over-sampling-batch-size 16 --max-filter-rounds 3");
  EXPECT_TRUE(dapo.need_spread);
  EXPECT_EQ(dapo.over_sampling, 16);
  EXPECT_EQ(dapo.max_filter_rounds, 3);
  EXPECT_TRUE(notes_contain(groups + "--over-sampling-batch-size 16", "nothing is over-sampled"));
  EXPECT_EQ(train(groups + "--over-sampling-batch-size 16").over_sampling, 0);
  rejects(groups + "--dynamic-sampling-filter-path my.filter", {"a filter in Python", "my.filter"});
  rejects(groups + "--over-sampling-batch-size 4", {"--over-sampling-batch-size", "at least 8"});
  rejects("--dynamic-sampling-filter-path check_reward_nonzero_std", {"--n-samples-per-prompt", "at least 2"});
  EXPECT_EQ(train("--kl-coef 0.1 --use-adaptive-kl").kl_control.target, 0.1);
  EXPECT_EQ(train("--kl-coef 0.1 --use-adaptive-kl --kl-target 0.5 --kl-horizon 99").kl_control.horizon, 99);
  EXPECT_EQ(train("--kl-coef 0.1").kl_control.target, 0);
  rejects("--use-adaptive-kl", {"needs --kl-coef"});
  rejects("--kl-coef 0.1 --kl-target 0.5", {"--kl-target needs --use-adaptive-kl"});
  EXPECT_TRUE(train("--use-adaptive-entropy --entropy-target 0.5").entropy_control.on);
  rejects("--entropy-coef-min 0.5 --entropy-coef-max 0.1", {"not in order"});
  EXPECT_EQ(train("--use-kl-loss --ref-update-interval 4").ref_update_interval, 4);
  rejects("--ref-update-interval 4", {"--ref-update-interval needs a KL"});
  EXPECT_TRUE(train("--log-passrate --mask-truncated-completions").mask_truncated);
}

TEST(Train, BatchArithmetic) {
  const auto whole = train("--n-samples-per-prompt 4");
  EXPECT_EQ(whole.training.global_batch_size, 32);
  EXPECT_EQ(whole.num_steps_per_rollout, 1);
  const auto batch = train("--n-samples-per-prompt 4 --global-batch-size 8");
  EXPECT_EQ(batch.num_steps_per_rollout, 4);
  const auto steps = train("--n-samples-per-prompt 4 --num-steps-per-rollout 2");
  EXPECT_EQ(steps.training.global_batch_size, 16);
  EXPECT_NO_THROW(train("--n-samples-per-prompt 4 --global-batch-size 16 --num-steps-per-rollout 2"));
  rejects("--n-samples-per-prompt 4 --global-batch-size 16 --num-steps-per-rollout 4", {"disagree", "8"});
  rejects("--n-samples-per-prompt 4 --global-batch-size 12", {"--global-batch-size", "12", "a divisor of 32 samples"});
  rejects("--n-samples-per-prompt 4 --global-batch-size 64", {"--global-batch-size", "64"});
  rejects("--n-samples-per-prompt 4 --num-steps-per-rollout 5", {"--num-steps-per-rollout", "5"});
}

TEST(Train, AGroupOfOneHasNoSpread) {
  EXPECT_FALSE(train("").normalize_std);
  EXPECT_TRUE(notes_contain("", "no spread"));
  EXPECT_TRUE(train("--n-samples-per-prompt 2").normalize_std);
}

TEST(Train, EvaluationRules) {
  rejects("--eval-interval 5", {"--eval-interval needs --eval-prompt-data"});
  rejects("--eval-interval 5 --eval-prompt-data a b c", {"pairs of a name and a path", "3 values"});
  rejects("--eval-interval 5 --eval-prompt-data a x.jsonl a y.jsonl", {"two evaluation sets of one name"});
  EXPECT_TRUE(notes_contain("--eval-prompt-data x.jsonl", "without --eval-interval"));
  const auto one = train("--eval-interval 5 --eval-prompt-data x.jsonl");
  ASSERT_EQ(one.eval_sets.size(), 1u);
  EXPECT_EQ(one.eval_sets[0].name, "eval");
  const auto two = train("--eval-interval 5 --eval-prompt-data a x.jsonl b y.jsonl");
  ASSERT_EQ(two.eval_sets.size(), 2u);
  EXPECT_EQ(two.eval_sets[1].name, "b");
  EXPECT_EQ(two.eval_sets[1].path, "y.jsonl");
}

TEST(Train, EvaluationSamplesAsRolloutsUnlessTold) {
  const std::string rollout =
      "--rollout-temperature 0.7 --rollout-top-p 0.9 --rollout-top-k 20 --rollout-max-response-len 99 --rollout-stop "
      "x ";
  const auto same = train(rollout).eval_sampling;
  EXPECT_EQ(same.temperature, 0.7f);
  EXPECT_EQ(same.top_p, 0.9f);
  EXPECT_EQ(same.top_k, 20);
  EXPECT_EQ(same.max_tokens, 99);
  EXPECT_EQ(same.stop, std::vector<std::string>{"x"});
  const auto told =
      train(rollout + "--eval-temperature 0 --eval-top-p 1 --eval-top-k -1 --eval-max-response-len 5").eval_sampling;
  EXPECT_EQ(told.temperature, 0);
  EXPECT_EQ(told.top_p, 1);
  EXPECT_EQ(told.top_k, -1);
  EXPECT_EQ(told.max_tokens, 5);
}

TEST(Train, SamplingRules) {
  rejects("--rollout-temperature 0", {"--rollout-temperature", "above 0"});
  rejects("--rollout-temperature -1", {"--rollout-temperature"});
  rejects("--rollout-top-p 0", {"--rollout-top-p"});
  rejects("--rollout-top-k -2", {"--rollout-top-k"});
}

TEST(Train, ScheduleAndSaveRules) {
  rejects("--lr 1e-5 --min-lr 1e-4", {"--min-lr is above --lr"});
  rejects("--lr-warmup-iters 5 --lr-warmup-fraction 0.1", {"exclude each other"});
  rejects("--lr-warmup-iters 5 --lr-decay-iters 5", {"--lr-warmup-iters", "--lr-decay-iters 5"});
  rejects("--lr-warmup-iters 4", {"longer than the run", "--lr-warmup-iters", "at most 3"});
  rejects("--lr-warmup-iters 13 --n-samples-per-prompt 4 --num-steps-per-rollout 4",
          {"--lr-warmup-iters", "at most 12"});
  EXPECT_EQ(train("--lr-warmup-iters 3").optimizer.schedule.warmup_steps, 3);
  EXPECT_EQ(train("--lr-warmup-fraction 0.1").optimizer.warmup_fraction, 0.1);
  rejects("--save-interval 5", {"--save-interval needs --save"});
  rejects("--save s --save-interval 0", {"--save-interval"});
  EXPECT_FALSE(notes_contain("", "no --save"));  // the run and the dry run say it themselves
  EXPECT_TRUE(notes_contain("--exclude-modules q_proj", "--exclude-modules q_proj: trained all the same"));
  EXPECT_FALSE(notes_contain("--exclude-modules q_proj --lora-type canonical_lora", "--exclude-modules"));
  EXPECT_FALSE(notes_contain("--exclude-modules linear_qkv,lm_head", "--exclude-modules"));
  EXPECT_TRUE(notes_contain("--target-modules q_proj,v_proj", "--target-modules: also trained is k_proj"));
  EXPECT_FALSE(notes_contain("--target-modules q_proj,v_proj --lora-type canonical_lora", "--target-modules"));
}

TEST(Train, RecomputationAndDryRun) {
  using model::Recompute;
  const auto recompute = [](const std::string& flags) { return train(flags).training.recompute; };
  EXPECT_EQ(recompute("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
            Recompute::full);
  EXPECT_EQ(recompute("--gradient-checkpointing"), Recompute::full);
  EXPECT_EQ(recompute("--recompute full"), Recompute::full);
  EXPECT_EQ(recompute("--recompute none"), Recompute::none);
  EXPECT_EQ(recompute("--recompute norms"), Recompute::norms);
  EXPECT_EQ(recompute("--recompute selective"), Recompute::selective);
  EXPECT_EQ(recompute("--recompute-granularity selective"), Recompute::selective);
  EXPECT_EQ(recompute("--recompute full --recompute auto"), std::nullopt);
  rejects("--recompute some", {"--recompute", "auto, none, norms, selective, full"});
  EXPECT_TRUE(notes_contain("--offload", "unnecessary"));
  EXPECT_TRUE(parse_train(train_args("--dry-run")).dry_run);
  EXPECT_FALSE(parse_train(train_args()).dry_run);
}

TEST(Train, HelpShowsEveryFlagWithItsDefault) {
  const std::string help = train_help();
  for (const char* text :
       {"--lr X=1e-6", "--lora-alpha A=16", "--eps-clip E=0.2", "--rollout-temperature T=1", "--input-key KEY=input",
        "--kl-loss-type TYPE=k1", "--adam-eps X=1e-8", "Required:", "Data:", "Rollout:", "Algorithm:", "LoRA:",
        "Optimizer:", "Checkpoint:", "Evaluation:", "Machine:", "Launch scripts", "Example:"})
    EXPECT_NE(help.find(text), std::string::npos) << text;
  EXPECT_EQ(help.find("--save-interval N="), std::string::npos);  // 0 is no value of it
}

TEST(Train, DistillationOfTheLikeliestTokens) {
  const std::string opd = "--use-opd --opd-teacher-load T ";
  const auto o = train(opd + "--opd-log-prob-top-k 16 --opd-top-k-strategy union --opd-reward-weight-mode teacher_p");
  EXPECT_EQ(o.distillation.top, 16);
  EXPECT_EQ(o.distillation.tokens, rl::TokenSet::either);
  EXPECT_EQ(o.distillation.weight, rl::TokenWeight::teacher);
  EXPECT_EQ(o.loss.distill.kind, train::DistillKind::none);
  EXPECT_EQ(o.training.candidates, 0);
  const auto flows = train(opd +
                           "--opd-log-prob-top-k 32 --opd-kl-coef 2 --distillation-loss-mode forward_kl_topk "
                           "--distillation-loss-max-clamp 5 --distillation-log-prob-min-clamp -8");
  EXPECT_EQ(flows.loss.distill.kind, train::DistillKind::forward_kl_topk);
  EXPECT_EQ(flows.loss.distill.coef, 2);
  EXPECT_EQ(flows.loss.distill.max_value, 5);
  EXPECT_EQ(flows.loss.distill.min_logprob, -8);
  EXPECT_EQ(flows.training.candidates, 32);
  EXPECT_FALSE(flows.loss.distill.tail);
  const auto tail = train(opd +
                          "--opd-log-prob-top-k 8 --distillation-loss-mode forward_kl_topk_tail "
                          "--distillation-tail-mass-eps 1e-3");
  EXPECT_EQ(tail.loss.distill.kind, train::DistillKind::forward_kl_topk);
  EXPECT_TRUE(tail.loss.distill.tail);
  EXPECT_EQ(tail.loss.distill.tail_eps, 1e-3f);
  EXPECT_EQ(tail.loss.distill.max_value, 10);
  EXPECT_EQ(tail.training.candidates, 8);
  rejects(opd + "--distillation-loss-mode forward_kl_topk_tail", {"forward_kl_topk_tail", "1 or more"});
  rejects(opd + "--distillation-loss-mode forward_kl_topk --opd-log-prob-top-k 8 --distillation-tail-mass-eps 1e-3",
          {"--distillation-tail-mass-eps", "bound"});
  rejects(opd + "--distillation-loss-mode k3 --distillation-log-prob-min-clamp -8",
          {"--distillation-log-prob-min-clamp"});
  rejects(opd + "--distillation-loss-max-clamp 8", {"--distillation-loss-max-clamp"});
  // verl's own default of a bound that this loss does not have
  EXPECT_NO_THROW(train(opd + "--distillation-loss-mode k3 --distillation-log-prob-min-clamp -10"));
  EXPECT_EQ(train(opd + "--distillation-loss-mode low_var_kl").loss.distill.estimator, train::KlType::low_var);
  rejects(opd + "--opd-top-k-strategy union", {"need", "--opd-log-prob-top-k above 0"});
  rejects(opd + "--distillation-loss-mode forward_kl_topk", {"--opd-log-prob-top-k", "1 or more"});
  rejects(opd + "--distillation-loss-mode k3 --opd-log-prob-top-k 4", {"sampled token alone"});
  rejects(opd + "--distillation-loss-mode forward_kl_topk --opd-log-prob-top-k 4 --opd-reward-weight-mode none",
          {"teacher's likeliest tokens", "--opd-reward-weight-mode"});
  rejects("--distillation-loss-mode k3", {"--distillation-loss-mode needs --use-opd"});
}

TEST(Train, NormalizationsThatAnEstimatorDoesNotHaveAreNamed) {
  const auto is_noted = [](const std::string& flags, const std::string& flag) {
    return std::ranges::any_of(parse_train(train_args(flags)).notes,
                               [&](const std::string& note) { return note.starts_with(flag + ": not used without "); });
  };
  const std::string center = "--disable-rewards-normalization", scale = "--scale-rewards";
  for (const std::string name : {"rloo", "opo", "max_rl", "gpg", "remax"}) {
    EXPECT_TRUE(is_noted(center + " --advantage-estimator " + name, center)) << name;
    EXPECT_TRUE(is_noted(scale + " batch --advantage-estimator " + name, scale)) << name;
  }
  EXPECT_FALSE(is_noted(center, center));
  EXPECT_FALSE(is_noted(center + " --advantage-estimator dr_grpo", center));
  EXPECT_FALSE(is_noted(scale + " batch --n-samples-per-prompt 4", scale));
  EXPECT_FALSE(is_noted(scale + " none --advantage-estimator rloo", scale));
  EXPECT_TRUE(is_noted(scale + " batch --advantage-estimator dr_grpo", scale));
  EXPECT_TRUE(is_noted(scale + " batch " + center, scale));
  EXPECT_TRUE(
      is_noted(scale + " batch --rm-type math:1,format:1 --multi-objective-aggregation normalize_then_sum", scale));
}

TEST(Train, AFileForAllRolloutsIsNoted) {
  const auto is_noted = [](const std::string& flags) {
    return std::ranges::any_of(parse_train(train_args(flags)).notes, [](const std::string& note) {
      return note.find("each rollout overwrites the file of the one before") != std::string::npos;
    });
  };
  for (const std::string flag : {"--save-debug-rollout-data", "--save-debug-train-data"}) {
    EXPECT_TRUE(is_noted(flag + " x.jsonl")) << flag;
    EXPECT_FALSE(is_noted(flag + " x{rollout_id}.jsonl")) << flag;
  }
}

TEST(Train, FlagsThatThisRunDoesNotReadAreNamed) {
  const auto is_noted = [](const std::string& flag, const std::string& more) {
    const std::string wanted = flag.substr(0, flag.find(' ')) + ": not used without ";
    return std::ranges::any_of(parse_train(train_args(flag + more)).notes,
                               [&](const std::string& note) { return note.starts_with(wanted); });
  };
  const char* const kFlowing = " --use-opd --opd-teacher-load T --distillation-loss-mode k3";
  const std::pair<const char*, const char*> kReaders[] = {
      {"--min-lr 0", " --lr-decay-style cosine"},
      {"--sapo-tau-pos 2", " --policy-loss sapo"},
      {"--dppo-ratio-cap 3", " --policy-loss dppo_kl"},
      {"--dppo-mask-low 0.1", " --policy-loss prime"},
      {"--dro-beta 0.1", " --policy-loss dro"},
      {"--vespo-k-neg 2", " --policy-loss vespo"},
      {"--clip-cov-lb 0", " --policy-loss clip_cov"},
      {"--ppo-kl-coef 2", " --policy-loss kl_cov"},
      {"--opsm-delta 0.1", " --use-opsm"},
      {"--kl-loss-type k3", " --use-kl-loss"},
      {"--kl-horizon 5", " --kl-coef 0.1 --use-adaptive-kl"},
      {"--entropy-target 0.1", " --use-adaptive-entropy"},
      {"--max-filter-rounds 2", " --on-reward-failure drop-group"},
      {"--opd-kl-coef 2", " --use-opd --opd-teacher-load T"},
      {"--opd-type megatron", " --use-opd --opd-teacher-load T"},
      {"--distillation-loss-max-clamp 8", kFlowing},
      {"--tis-clip 3", " --use-tis"},
      {"--importance-sampling-clip-max 3", " --importance-sampling-mode token_mask"},
      {"--rollout-is-threshold 3", " --rollout-is token"},
      {"--eval-temperature 0", " --eval-prompt-data E --eval-interval 1"}};
  for (const auto& [flag, reader] : kReaders) {
    EXPECT_TRUE(is_noted(flag, "")) << flag;
    EXPECT_FALSE(is_noted(flag, reader)) << flag;
  }
  // What a run reads unless another flag says otherwise.
  const std::pair<std::string, const char*> kDrops[] = {
      {"--eps-clip 0.1", " --policy-loss dro"},
      {"--eps-clip-high 0.3", " --policy-loss gpg"},
      {"--eps-clip-c 3", " --policy-loss cispo"},
      {"--advantage-eps 1e-4 --n-samples-per-prompt 4", " --scale-rewards none"},
      {"--advantage-eps 1e-4 --n-samples-per-prompt 4", " --advantage-estimator rloo"},
      {"--advantage-eps 1e-4 --n-samples-per-prompt 4", " --disable-rewards-normalization"}};
  for (const auto& [flag, drops] : kDrops) {
    EXPECT_FALSE(is_noted(flag, "")) << flag;
    EXPECT_TRUE(is_noted(flag, drops)) << flag << drops;
  }
}

TEST(Train, TeachersBehindHttp) {
  const auto one =
      train("--use-opd --opd-teacher-urls 127.0.0.1:9 --opd-log-prob-top-k 4 --opd-top-k-strategy only-teacher");
  ASSERT_EQ(one.teacher_servers.size(), 1u);
  EXPECT_EQ(one.teacher_servers[0].url, "127.0.0.1:9");
  const auto two = train(
      "--use-opd --opd-teacher-urls math=http://a:1/generate default=http://b:2/generate "
      "--opd-log-prob-top-k 4 --opd-teacher-key who --opd-topk-per-position");
  ASSERT_EQ(two.teacher_servers.size(), 2u);
  EXPECT_EQ(two.teacher_servers[1].name, "default");
  EXPECT_EQ(two.teacher_key, "who");
  EXPECT_TRUE(two.teacher_per_position);
  rejects("--use-opd --opd-teacher-urls 127.0.0.1:9 --opd-log-prob-top-k 4", {"likeliest tokens only", "only-student"});
  rejects("--use-opd --opd-teacher-urls a:1 b:2", {"teacher is named twice"});
  // SGLang's dialect, with a query that is no name.
  for (const std::string scheme : {"", "http://"}) {
    const auto keyed = train("--use-opd --opd-log-prob-top-k 4 --opd-teacher-urls " + scheme + "a:1/generate?key=K");
    ASSERT_EQ(keyed.teacher_servers.size(), 1u);
    EXPECT_EQ(keyed.teacher_servers[0].name, "");
    EXPECT_EQ(keyed.teacher_servers[0].url, scheme + "a:1/generate?key=K");
  }
  rejects("--use-opd --opd-teacher-urls a=h:1 h:2", {"several teachers need names"});
  rejects("--use-opd --opd-teacher-urls h:1 --opd-teacher-load T", {"directory or a server"});
  rejects("--use-opd --opd-teacher-urls h:1 --rollout-temperature 0.7", {"temperature 1"});
}

// miles' functions that ask a teacher are what --use-opd does; other functions in their place are not run.
TEST(Train, MilesFunctionsOfDistillation) {
  const std::string functions =
      "--custom-rm-path miles.rollout.on_policy_distillation.reward_func --custom-reward-post-process-path "
      "miles.rollout.on_policy_distillation.post_process_rewards --rm-url http://127.0.0.1:9/generate ";
  const auto command = parse_train(train_args("--use-opd --opd-type sglang --opd-log-prob-top-k 16 " + functions));
  EXPECT_EQ(command.options.reward.name(), "zero");
  EXPECT_TRUE(command.options.reward.url.empty());
  ASSERT_EQ(command.options.teacher_servers.size(), 1u);
  EXPECT_EQ(command.options.teacher_servers[0].url, "http://127.0.0.1:9/generate");
  rejects(functions, {"this function asks a teacher", "--use-opd"});
  rejects("--custom-reward-post-process-path mine.process",
          {"Python is not run for: --custom-reward-post-process-path"});
}

}  // namespace
}  // namespace lockstep::cli
