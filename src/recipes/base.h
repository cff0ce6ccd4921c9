// The base of a command, as its options say, with its tokenizer.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "load/base.h"
#include "recipes/control.h"
#include "recipes/options.h"
#include "text/tokenizer.h"

namespace lockstep::recipes {

using load::Base;

// The stream that a command runs on. DeviceError if the options ask for a GPU and there is none.
StreamOptions stream_options(const BaseOptions& options);

// Where a base's weights come from, as BaseOptions::load_format names it: its files ("auto"), or ("dummy") random
// numbers in the shapes of config.json. What is to be done to weights while they are read, such as quantizing them,
// would be one more.
struct LoadFormat {
  std::string_view name, help;
  bool random = false;
};
std::span<const LoadFormat> load_formats();

// What the options' base is, without its weights. Throws what load::read_base_config throws.
Base read_base(const BaseOptions& options);

// Reads, checks and packs onto the stream's device; prints what was loaded and how long it took.
Base load_base(const BaseOptions& options, Stream& stream, const Control& control);

// What has to be the same on all ranks of a job for them to have the same bits.
parallel::Identity rank_identity(const Base& base, const Stream& stream);

// DataError naming `where`: an id that the model has no row for, as a tokenizer with added tokens makes them.
void require_in_vocabulary(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where);

// The id appended to SFT completions: eos_token of tokenizer_config.json, else the first end token of the model.
// DataError if neither.
int32_t eos_for_training(const Base& base, const text::Tokenizer& tokenizer);

}  // namespace lockstep::recipes
