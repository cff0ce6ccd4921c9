#include "cli/field_flags.h"

#include <algorithm>

namespace lockstep::cli {

namespace {

constexpr FieldFlag kFields[] = {
    {"AdapterOptions::adapter_path", "--lora-adapter-path"},
    {"Base::path", "--hf-checkpoint"},
    {"BaseOptions::load_format", "--load-format"},
    {"ChatOptions::template_file", "--chat-template"},
    {"CriticOptions::load", "--critic-load"},
    {"CriticOptions::rank", "--critic-lora-rank"},
    {"CriticOptions::warmup_steps", "--critic-lr-warmup-iters"},
    {"DebugOptions::load_rollouts", "--load-debug-rollout-data"},
    {"DebugOptions::rollout_only", "--debug-rollout-only"},
    {"DebugOptions::save_rollouts", "--save-debug-rollout-data"},
    {"DebugOptions::save_training", "--save-debug-train-data"},
    {"DebugOptions::train_only", "--debug-train-only"},
    {"DpoLoss::beta", "--dpo-beta"},
    {"KtoLoss::beta", "--dpo-beta"},
    {"KtoLoss::desirable_weight", "--desirable-weight"},
    {"KtoLoss::undesirable_weight", "--undesirable-weight"},
    {"FleetOptions::addresses", "--rollout-external-engine-addrs"},
    {"HttpTeacherOptions::model", "--opd-teacher-model"},
    {"LoraConfig::alpha", "--lora-alpha"},
    {"LoraConfig::bias", "--lora-bias"},
    {"LoraConfig::dropout", "--lora-dropout"},
    {"LoraConfig::exclude_modules", "--exclude-modules"},
    {"LoraConfig::init", "--init-lora-weights"},
    {"LoraConfig::modules_to_save", "--modules-to-save"},
    {"LoraConfig::rank", "--lora-rank"},
    {"LoraConfig::target_modules", "--target-modules"},
    {"LoraConfig::type", "--lora-type"},
    {"LoraConfig::use_dora", "--use-dora"},
    {"LoraConfig::use_rslora", "--use-rslora"},
    {"LossScale::per_token", "--calculate-per-token-loss"},
    {"OptimizerOptions::wsd_decay_steps", "--lr-wsd-decay-iters"},
    {"PolicyLoss::clip_c", "--eps-clip-c"},
    {"PolicyLoss::clip_high", "--eps-clip-high"},
    {"PolicyLoss::clip_low", "--eps-clip"},
    {"PolicyLoss::kl_type", "--kl-loss-type"},
    {"PolicyLoss::sapo", "--sapo-tau-pos"},
    {"RankOptions::colocate", "--colocate"},
    {"RankOptions::devices_of_host", "--num-gpus-per-node"},
    {"RankOptions::devices_per_host", "--actor-num-gpus-per-node"},
    {"RankOptions::engine_devices", "--rollout-num-gpus"},
    {"RankOptions::hosts", "--actor-num-nodes"},
    {"RankOptions::ranks_per_device", "--ranks-per-gpu"},
    {"RankOptions::wire", "--distributed-backend"},
    {"RewardConfig::command", "--reward-command"},
    {"RewardConfig::judge_model", "--judge-model"},
    {"RewardConfig::python_path", "--custom-rm-path"},
    {"RewardConfig::url", "--rm-url"},
    {"RlOptions::async", "--fully-async"},
    {"RlOptions::difficulty", "--easy-threshold"},
    {"RlOptions::eval_max_prompt_len", "--eval-max-prompt-len"},
    {"RlOptions::kv_bytes", "--kv-cache-bytes"},
    {"RlOptions::label_key", "--label-key"},
    {"RlOptions::max_prompt_len", "--rollout-max-prompt-len"},
    {"RlOptions::num_epoch", "--num-epoch"},
    {"RlOptions::n_samples", "--n-samples-per-prompt"},
    {"RlOptions::num_rollout", "--num-rollout"},
    {"RlOptions::partial", "--partial-rollout"},
    {"RlOptions::on_reward_failure", "--on-reward-failure"},
    {"RlOptions::distillation", "--opd-log-prob-top-k"},
    {"RlOptions::staleness", "--max-staleness"},
    {"RlOptions::teacher_servers", "--opd-teacher-urls"},
    {"PolicyLoss::distill", "--distillation-loss-mode"},
    {"RlOptions::rollout_batch_size", "--rollout-batch-size"},
    {"RolloutEngineOptions::addresses", "--rollout-external-engine-addrs"},
    {"RolloutEngineOptions::delivery", "--sync-strategy"},
    {"RolloutEngineOptions::force", "--force"},
    {"RolloutEngineOptions::policy_logprobs_only", "--policy-logprobs-only"},
    {"RowOptions::loss_mask", "--loss-mask-type"},
    {"RowOptions::max_bad_rows", "--max-bad-rows"},
    {"RowOptions::max_length", "--max-seq-length"},
    {"RowOptions::messages_key", "--input-key"},
    {"RunChecks::equal_logprobs", "--true-on-policy-mode"},
    {"SamplingOptions::max_tokens", "--max-tokens"},
    {"SaveOptions::ckpt_step", "--ckpt-step"},
    {"SaveOptions::keep_samples", "--keep-samples"},
    {"SaveOptions::load", "--load"},
    {"SaveOptions::overrides", "--override"},
    {"SaveOptions::save", "--save"},
    {"Schedule::style", "--lr-decay-style"},
    {"Schedule::warmup_steps", "--lr-warmup-iters"},
    {"Schedule::wsd_style", "--lr-wsd-decay-style"},
    {"SftOptions::num_steps", "--num-rollout"},
    {"SftOptions::rollout_batch_size", "--rollout-batch-size"},
    {"StreamOptions::device", "--device"},
    {"StreamOptions::isa", "--cpu-isa"},
    {"StreamOptions::threads", "--threads"},
    {"TrainerOptions::beta1", "--adam-beta1"},
    {"TrainerOptions::beta2", "--adam-beta2"},
    {"TrainerOptions::clip_grad", "--clip-grad"},
    {"TrainerOptions::dropout", "--lora-dropout"},
    {"TrainerOptions::eps", "--adam-eps"},
    {"TrainerOptions::gradient_lanes", "--gradient-lanes"},
    {"TrainerOptions::lr_ratio", "--loraplus-lr-ratio"},
    {"TrainerOptions::max_tokens", "--max-tokens-per-gpu"},
    {"TrainerOptions::temperature", "--rollout-temperature"},
    {"TrainerOptions::weight_decay", "--weight-decay"},
    {"TrainingOptions::max_skipped_steps", "--max-skipped-steps"},
    {"TrainingOptions::max_tokens", "--max-tokens-per-gpu"},
    {"TrainingOptions::recompute", "--recompute-granularity"},
    {"ValueLoss::clip", "--value-clip"},
};

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

std::span<const FieldFlag> field_flags() {
  return kFields;
}

std::string with_flags(std::string_view text) {
  std::string out;
  for (size_t colons; (colons = text.find("::")) != text.npos;) {
    size_t begin = colons, end = colons + 2;
    while (begin > 0 && is_name(text[begin - 1])) --begin;
    while (end < text.size() && is_name(text[end])) ++end;
    const auto* const known = std::ranges::find(kFields, text.substr(begin, end - begin), &FieldFlag::field);
    out += text.substr(0, begin);
    out += known == std::end(kFields) ? text.substr(begin, end - begin) : known->flag;
    text.remove_prefix(end);
  }
  return out.append(text);
}

std::streamsize FlagStream::Buffer::xsputn(const char* bytes, std::streamsize count) {
  to_ << with_flags({bytes, static_cast<size_t>(count)});
  return to_ ? count : 0;
}

FlagStream::Buffer::int_type FlagStream::Buffer::overflow(int_type byte) {
  if (traits_type::eq_int_type(byte, traits_type::eof())) return traits_type::not_eof(byte);
  to_.put(traits_type::to_char_type(byte));
  return to_ ? byte : traits_type::eof();
}

}  // namespace lockstep::cli
