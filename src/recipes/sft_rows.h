// Rows of supervised fine-tuning: {"tokens": [...], "loss_mask": [...]} or {"prompt": "...", "completion": "..."}.
#pragma once

#include <string>
#include <vector>

#include "recipes/base.h"
#include "text/dataset.h"
#include "train/datum.h"

namespace lockstep::recipes {

struct SftRows {
  std::vector<train::Datum> rows;
  std::vector<text::BadRow> bad_rows;  // left out, at most max_bad_rows
  int64_t unaligned = 0;               // rows whose prompt alone tokenizes differently than as a prefix
};

// mask[t] = 1: token t is a target. Prompt and completion are tokenized together, as TRL does, the end token appended
// if absent; the first len(tokenize(prompt)) tokens are no targets. The tokenizer is loaded only if a row holds text.
// DataError (file, line) of the row after max_bad_rows others: mask[0] = 1, no target at all, lengths that differ,
// values other than 0 and 1, tokens outside the vocabulary, more than the model's context.
SftRows read_sft_rows(const std::string& path, const Base& base, int64_t max_bad_rows = 0);

}  // namespace lockstep::recipes
