// recipes: the loops. Joins files to models, rewards to samples, trainer to engine, and writes the log.
//
//   includes    every room
//   memory      a recipe owns its model, trainer and engine for as long as it runs
//   threads     a recipe runs on the calling thread; ops spread over its Stream
//
// This header: what each command is asked to do, after the command line has been parsed and validated. Defaults are
// those of the flags (names in app/cli/); no recipe reads a flag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/stream.h"
#include "lora/config.h"
#include "model/recompute.h"
#include "recipes/async_options.h"
#include "recipes/debug_options.h"
#include "recipes/partial_options.h"
#include "recipes/reports/report.h"
#include "recipes/run_checks.h"
#include "recipes/staleness.h"
#include "recipes/wire.h"
#include "rl/advantage.h"
#include "rl/coefficients.h"
#include "rl/correction.h"
#include "rl/difficulty.h"
#include "rl/distillation.h"
#include "rl/reward_config.h"
#include "rollout/remote/engine_kind.h"
#include "rollout/sampling.h"
#include "train/balance.h"
#include "train/lane_range.h"
#include "train/loss.h"
#include "train/reduction.h"
#include "train/row_choice.h"
#include "train/schedule.h"

namespace lockstep::recipes {

struct BaseOptions {
  std::string hf_checkpoint;         // directory or hub id
  StreamOptions stream;              // its device follows from:
  std::string device = "auto";       // "auto" (a GPU if there is one), "cpu", "cuda"
  std::string load_format = "auto";  // recipes/base.h: load_formats
  std::string home;  // load::caches_below: where models are found by hub id and fingerprints are kept; empty: nowhere
};

struct AdapterOptions {
  lora::LoraConfig config;   // rank 0 and no target_modules: none asked for
  std::string adapter_path;  // a PEFT directory to start from, or to generate with
  // Whether these fields of config were asked for; an adapter to start from supplies what was not.
  bool asked_alpha = false, asked_rslora = false, asked_type = false, asked_dropout = false;
  bool asked_init = false, asked_dora = false, asked_bias = false, asked_modules_to_save = false;
};

// How conversations become text.
struct ChatOptions {
  bool apply = false;              // a string prompt is one user message; lists always are messages
  OrderedJson kwargs;              // variables of the template; an object or null
  std::string template_file;       // empty: the model directory's
  std::string tool_key = "tools";  // key of a row's tools
};

struct OptimizerOptions {
  train::Schedule schedule;            // lr, min_lr, style; warmup_steps / decay_steps resolved by the recipe
  double warmup_fraction = 0;          // of decay steps; exclusive with schedule.warmup_steps
  std::optional<int64_t> decay_steps;  // default: all steps of the run
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double clip_grad = 1.0;
  double loraplus_lr_ratio = 1;            // LoRA+: learning rate of B over that of A
  std::optional<int64_t> wsd_decay_steps;  // WSD needs it
};

// Ranks of a job (parallel/group.h), and the layout that they were asked for in (recipes/layout.h).
struct RankOptions {
  std::optional<int64_t> hosts, devices_per_host;  // that train
  std::optional<int64_t> devices_of_host;          // the most that may be asked of a host
  std::optional<int64_t> engine_devices;
  bool colocate = false;         // engines share the devices of training; else those of engine_devices are others
  int64_t ranks_per_device = 1;  // that share a GPU's memory
  int size = 1;                  // of the job that this process belongs to
  Wire wire = Wire::nccl;
  bool fault_tolerance = false;  // ranks that this program has started are started again after one is lost
  std::string secret_file;       // of the job (parallel::read_secret); empty: the launcher's, or loopback only
  double timeout_minutes = 10;   // until all ranks have come, and until all have entered a call
};

struct TrainingOptions {
  int64_t global_batch_size = 0;      // samples per optimizer step
  std::optional<int64_t> max_tokens;  // per micro-batch; default: micro_batch_tokens
  // nullopt: on a GPU as little as its memory allows, on the CPU selective.
  std::optional<model::Recompute> recompute;
  bool per_token_loss = false;     // mean over all tokens of a step instead of over samples
  uint64_t seed = 1234;            // adapter initialization, dropout
  int64_t max_skipped_steps = 10;  // that a run abandons because their numbers are not finite, before it stops
  int gradient_lanes = train::kGradientLanes;     // 8, 16, 32 or 64: the most ranks, and decides bits
  train::Balance balance = train::Balance::none;  // of the lanes; decides bits
  RankOptions ranks;
  int64_t candidates = 0;  // tokens of a row beside its target that the loss reads: of forward_kl_topk; of a plan only
};

struct SaveOptions {
  std::string save;                        // empty: nothing is kept
  int64_t save_interval = 0;               // 0: only after the last
  std::optional<int64_t> total_limit;      // newest checkpoints that stay; the best one stays, too
  std::optional<int64_t> retain_interval;  // those of every so many iterations stay, and the newest
  int64_t keep_samples = 10'000;           // newest samples of rollouts that stay in SAVE/samples; 0: none are written
  ReportOptions reports;                   // files for other programs that show runs
  std::string trigger_sentinel;            // while this file exists a save is asked for; removed when it is done
  int64_t grace_seconds = 30;              // that a signal leaves the iteration under way; kept by the program around
  OrderedJson arguments;                   // of the command, resolved, as its checkpoints keep them; null: none

  std::string load;
  std::optional<int64_t> ckpt_step;    // the iteration to load; none: the newest that is whole
  bool finetune = false;               // only the adapter is taken: a new run, from iteration 0
  bool load_optimizer = true;          // else its moments and its count of steps begin at 0
  bool load_rng = true;                // else the seeds may be others than the checkpoint's
  std::vector<std::string> overrides;  // settings that may differ from the checkpoint's (recipes/run_settings.h)
};

// A held-out set. Reinforcement learning reads what it has of its own; the rest is as the options say for all sets.
struct EvalSet {
  std::string name, path;
  std::string input_key = {}, label_key = {}, metadata_key = {}, tool_key = {};
  std::optional<int64_t> samples = {}, top_k = {}, max_tokens = {}, min_tokens = {};
  std::optional<float> temperature = {}, top_p = {};
  std::optional<std::vector<std::string>> stop = {};
  std::optional<std::vector<int32_t>> stop_token_ids = {};
  std::vector<rl::RewardChoice> reward = {};  // empty: the run's
  OrderedJson metadata = {};                  // goes before what a row's metadata have; an object or null
};

// Which tokens of a row are targets (recipes/row_tokens.h says what each shape makes of it).
//   automatic   assistant turns of messages, completions of prompts, all of a text
//   assistant   assistant turns only, of prompt and completion too
//   completion  all of the completion
//   all         every token but the first
enum class LossMaskType { automatic, assistant, completion, all };
const char* loss_mask_name(LossMaskType type);               // "auto", "assistant", "completion", "all"
LossMaskType parse_loss_mask_type(const std::string& name);  // and slime's names of assistant; ConfigError
enum class TruncationMode { keep_start, keep_end };

// How rows become tokens.
struct RowOptions {
  std::string messages_key = "messages";
  ChatOptions chat;
  LossMaskType loss_mask = LossMaskType::automatic;
  std::optional<int64_t> max_length;  // tokens kept of a row
  TruncationMode truncation = TruncationMode::keep_start;
  int64_t max_bad_rows = 0;
};

// Supervised training and, with a DpoLoss or KtoLoss, preference training.
struct SftOptions {
  BaseOptions base;
  AdapterOptions adapter;
  OptimizerOptions optimizer;
  TrainingOptions training;
  SaveOptions save;
  RowOptions rows;
  train::Loss loss;         // SftLoss, DpoLoss or KtoLoss
  std::string reference;    // of a preference loss, where it is an adapter; else, or empty: the base
  std::string prompt_data;  // a slice may follow: FILE@[0:100]
  int64_t num_epoch = 1;
  std::optional<int64_t> num_steps;  // of the optimizer; goes before num_epoch
  // Rows of a rollout; 0: there are none. Else an epoch is as many rollouts as it fills, whose batches run on over its
  // end; training.global_batch_size divides it.
  int64_t rollout_batch_size = 0;
  bool shuffle = false;        // rows in a new order each epoch
  uint64_t shuffle_seed = 42;  // of that order
  std::vector<EvalSet> eval_sets;
  int64_t eval_interval = 0;  // steps; 0: never
  bool eval_before_train = true;
  bool save_best = false;
  std::string save_best_set;        // which set decides; empty: the first
  std::optional<int64_t> patience;  // evaluations without a better loss before the run stops
  double threshold = 0;             // how much lower a loss has to be
};

// Who generates: the engine of this process, or servers.
struct RolloutEngineOptions {
  std::optional<rollout::EngineKind> kind;  // none: this process
  std::vector<std::string> addresses;       // HOST:PORT of each server; with a command: at most one
  std::string command;                      // starts a server; --host and --port are added if there is no address
  std::string api_key;
  rollout::Delivery delivery = rollout::Delivery::adapter_files;
  rollout::OnVersionChange on_version_change = rollout::OnVersionChange::cut;  // where weights are delivered
  bool force = false;  // weight_files also to servers whose base is quantized: they quantize it again
  // Servers whose log-probs are of another distribution than rollouts are drawn from, too (those before a temperature
  // other than 1, those after top-p): training computes the policy's and never reads the servers'. Not with
  // corrections.
  bool policy_logprobs_only = false;
  std::string adapter_name = "lockstep";  // what servers call the adapter begins so
  // Where versions are written for servers to read; empty: below SaveOptions::save, else in the temporary directory.
  std::string adapter_dir;
  std::string build;  // the commit that this program was built from, which a Lockstep server must share for exact bits
};

// PPO's critic: a second adapter on the base, with a value head. Where a field is not given it is as for the actor.
struct CriticOptions {
  std::optional<double> lr;
  int64_t warmup_steps = 0;     // of its learning rate
  int64_t only_rollouts = 0;    // the first rollouts teach the critic alone
  float value_clip = 0.2f;      // train::ValueLoss
  std::optional<int64_t> rank;  // of a fresh adapter
  std::string load;  // a critic, or an adapter without a value head that it begins as; empty: as the actor begins
  std::string save;  // each saved critic is also written here; empty: only into checkpoints
};

struct TeacherServer {
  std::string name;  // empty: the only one
  std::string url;   // "HOST:PORT", "http://HOST:PORT/generate"
};

struct RlOptions {
  BaseOptions base;
  AdapterOptions adapter;
  OptimizerOptions optimizer;
  TrainingOptions training;  // global_batch_size 0: rollout_batch_size * n / num_steps_per_rollout
  SaveOptions save;
  std::string prompt_data, input_key = "input", label_key, metadata_key = "metadata";
  int64_t max_bad_rows = 0;  // of each file
  ChatOptions chat;
  rl::RewardConfig reward;
  rl::RewardFailure on_reward_failure = rl::RewardFailure::drop_sample;
  std::optional<int64_t> num_rollout, num_epoch;  // one is required; num_rollout wins
  int64_t rollout_batch_size = 0;                 // prompts per rollout
  int64_t n_samples = 1;
  int64_t num_steps_per_rollout = 0;  // 0: derived
  StalenessRule staleness;            // beyond synchronous: rollouts are sampled while earlier ones are trained on
  AsyncOptions async;                 // instead of a rule
  PartialOptions partial;             // in turn only
  int64_t max_prompt_len = 0;         // 0: context - 1; longer prompts are dropped with a count
  rollout::SamplingParams sampling;   // of training; max_tokens bounds a response
  bool shuffle = false;
  bool normalize_rewards = true;  // centering
  bool normalize_std = true;
  rl::AdvantageOptions advantage;  // but for the two above, which go before advantage.group
  CriticOptions critic;            // of Estimator::ppo
  train::PolicyLoss loss;          // kl_coef counts only with use_kl_loss
  train::RowChoice row_choice;
  rl::Correction correction;
  train::Reduction reduction;
  std::string reference;  // what KL is measured to, where it is an adapter; else, or empty: the base
  // On-policy distillation: the teacher is the base (empty), an adapter, or another model of the same vocabulary; or a
  // server of one, which calls it teacher_model (empty: its first). Of several servers a row's metadata name one by
  // teacher_key. distillation says what becomes of its log-probs, unless loss.distill does.
  bool distill = false;
  std::string teacher, teacher_model, teacher_key = "opd_teacher";
  std::vector<TeacherServer> teacher_servers;
  bool teacher_per_position = false;  // rl::HttpTeacherOptions::per_position
  rl::Distillation distillation = {.coef = 1};
  rl::KlControl kl_control;
  rl::EntropyControl entropy_control;
  int64_t ref_update_interval = 0;  // rollouts after which the reference becomes the actor; 0: never
  // Data gates (rl/gate.h).
  rl::DifficultyOptions difficulty;
  bool need_spread = false;
  int64_t over_sampling = 0;  // prompts of a round; 0: rollout_batch_size
  int64_t max_filter_rounds = 10;
  bool mask_truncated = false;
  bool log_passrate = false;  // pass@k of rollouts and evaluations
  bool use_kl_loss = false;   // KL to the reference in the loss (coefficient 0: metric only)
  double kl_reward_coef = 0;  // KL in the reward
  std::vector<EvalSet> eval_sets;
  std::string eval_input_key, eval_label_key, eval_tool_key, eval_reward_key;  // empty: as for training
  int64_t eval_max_prompt_len = 0;                                             // 0: as for training
  int64_t eval_interval = 0;                                                   // 0: never
  int64_t eval_samples = 1;                                                    // of each prompt
  rollout::SamplingParams eval_sampling;
  bool eval_before_train = true;         // also before the first step
  bool save_best = false;                // by the accuracy on:
  std::string save_best_set;             // empty: the first set
  std::optional<int64_t> kv_bytes;       // most memory of the KV cache; default: the engine's
  std::optional<int64_t> max_sequences;  // generated at once; default: max_sequences() of rollouts_together.h
  RolloutEngineOptions engine;
  std::string publish_dir;  // versions are also written here, for anyone else's engine; empty: nowhere
  RunChecks checks;
  DebugOptions debug;
};

// Fields the user set; those without a value come from generation_config.json, then from SamplingParams.
struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  float frequency_penalty = 0, presence_penalty = 0;
  int64_t max_tokens = 256, min_tokens = 0;
  uint64_t seed = 42;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // beside the model's end tokens
  bool ignore_eos = false;              // the model's end tokens end nothing
};

}  // namespace lockstep::recipes
