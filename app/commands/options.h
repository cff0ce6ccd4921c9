// What each command is asked to do, after the command line has been parsed and validated. Defaults are those of the
// flags (names in app/cli/); no command reads a flag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/options.h"

namespace lockstep::commands {

struct ScoreOptions {
  recipes::BaseOptions base;
  std::string adapter_path, input, output;
  int64_t max_tokens = 2048;  // per batch
};

struct GenerateOptions {
  recipes::BaseOptions base;
  std::string adapter_path;
  bool interactive = false;           // exactly one of interactive, prompt, input
  std::optional<std::string> prompt;  // one text
  std::string input, input_key = "prompt";
  recipes::ChatOptions chat;
  recipes::SamplingOptions sampling;
  int64_t n = 1;                    // samples of each prompt
  std::optional<int64_t> kv_bytes;  // most memory of the KV cache; default: the engine's
  // Of input:
  std::string output;      // JSON Lines that an interrupted run goes on with; empty: printed
  bool overwrite = false;  // begin the output anew
  int64_t top_logprobs = 0;
  std::optional<int64_t> prompt_logprobs;
  int64_t max_sequences = 256;  // decoded at once
  int64_t max_bad_rows = 0;
};

struct EvalOptions {
  recipes::BaseOptions base;
  std::string adapter_path;  // empty: the base
  std::string prompt_data, input_key = "prompt", label_key = "label";
  recipes::ChatOptions chat;
  rl::RewardConfig reward;
  std::vector<float> temperatures = {0, 1};  // one accuracy each; 0 is greedy
  int64_t n = 1;                             // samples per prompt where the temperature is not 0
  int64_t max_tokens = 256;
  uint64_t seed = 42;
  int64_t num_examples = 3;        // answers printed per temperature
  bool log_passrate = false;       // pass@k
  std::vector<std::string> notes;  // of the flags
};

// Grades given responses.
struct RewardOptions {
  rl::RewardConfig reward;
  std::string input, output;                // rows; empty output: printed
  std::string response_key = "completion";  // as `generate` writes it
  std::string label_key = "label", prompt_key = "prompt", metadata_key = "metadata";
  std::string length_key;  // key of the response's length in tokens
  int64_t max_bad_rows = 0;
  std::vector<std::string> notes;  // of the flags
};

struct InspectOptions {
  std::string path;
  int64_t num_rows = 3;  // of a data set that are printed
};

struct TokenizeOptions {
  recipes::BaseOptions base;
  std::optional<std::string> text;  // exactly one of text, input
  std::string input, input_key;     // without a key the whole file is one text, else JSON lines
  std::string output;               // JSON lines; empty: printed
  bool add_special_tokens = false;
  bool ids_only = false;
};

struct DetokenizeOptions {
  recipes::BaseOptions base;
  std::vector<int32_t> ids;              // without input
  std::string input, input_key = "ids";  // JSON lines
  std::string output;                    // JSON lines; empty: printed
  bool skip_special_tokens = false;
};

struct RenderOptions {
  std::string hf_checkpoint;  // template and special tokens; or none, and chat.template_file alone
  std::string home;           // recipes::BaseOptions::home
  recipes::ChatOptions chat;
  std::optional<std::string> prompt;  // exactly one of prompt, input
  std::string input, input_key = "messages", output;
  std::string tools;  // file: a JSON list of schemas for all conversations
  bool add_generation_prompt = false, continue_final_message = false;
  bool tokens = false;  // rows of any shape as supervised or preference training reads them: tokens and loss mask
  recipes::LossMaskType loss_mask = recipes::LossMaskType::automatic;  // of `tokens`
};

struct BenchOptions {
  recipes::BaseOptions base;
  // What is not given follows the device: small work on a CPU, work that fills it on a GPU (bench_work).
  std::optional<int64_t> batch_size, seq_length, prompt_tokens, new_tokens;
  std::vector<int64_t> decode_batches;
  int64_t samples_per_prompt = 1;  // of a decode batch; divides it
  int64_t lora_rank = 16;
  recipes::TrainingOptions training;  // micro-batches and recomputation of the training step
  std::vector<std::string> parts;     // of the benchmark, in order; empty: all
  std::string json;                   // record; empty: terminal only
};

}  // namespace lockstep::commands
