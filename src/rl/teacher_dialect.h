// How a teacher behind HTTP is asked about a sequence, and how its answer is read.
#pragma once

#include <string>

#include "rl/teacher.h"

namespace lockstep::rl {

//   completions  POST /v1/completions {"prompt": token ids, "prompt_logprobs": top, "max_tokens": 1} of vLLM and
//                Lockstep. It says the log-probs of the prompt's tokens and of its own likeliest ones, of no others
//   generate     POST /generate {"input_ids", "return_logprob", "logprob_start_len": 0, "top_logprobs_num",
//                "token_ids_logprob"} of SGLang, as miles asks it
enum class TeacherDialect { completions, generate };
TeacherDialect dialect_of(const std::string& path);  // generate for a path that ends with /generate

// One datum of a TeacherQuestion.
struct SequenceQuestion {
  const train::Datum& datum;
  int64_t top = 0;
  std::span<const int32_t> candidates = {};  // [N * K]
  bool per_position = false;  // generate: each position's own candidates, which a patched SGLang takes; else all of all

  int64_t num_candidates() const { return static_cast<int64_t>(candidates.size()) / datum.size(); }
};

// The whole sequence: what the rows read, and the target of the last.
std::vector<int32_t> sequence_of(const train::Datum& datum);

std::string request_of(TeacherDialect dialect, const std::string& model, const SequenceQuestion& question);
// Rows of weight 0, and without a target, answer 0 (top: -1). FormatError where the answer lacks something of another.
train::RowOutputs read_answer(TeacherDialect dialect, const std::string& body, const SequenceQuestion& question,
                              const std::string& where);

}  // namespace lockstep::rl
