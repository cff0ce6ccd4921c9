// Completions of a file of prompts.
//
// Each line is the row of the input with these fields, one line for each sample, in the order of the input:
//   row, index          number of the row in the input (from 0, in the slice asked for), and of its sample
//   completion          text, up to the stop string
//   tokens, logprobs    all that were drawn, with the token that ended the sample; log-probs over the whole vocabulary,
//                       before temperature, penalties and cuts
//   top_logprobs        if asked for: of each token {id: log-prob}, most likely first
//   prompt_tokens, prompt_logprobs, prompt_top_logprobs
//                       the same of the prompt, if asked for; the first token has none (null)
//   finish_reason       "stop" or "length"
//   adapter_version     null: the base
// A field of the input with one of these names gives way.
//
// A line depends on (row, its number, adapter, sampling parameters, template) only, so the file is the same bytes
// whatever ran at once, and however often the run was interrupted and gone on with (commands/output_file.h).
#pragma once

#include "commands/generation.h"
#include "commands/options.h"
#include "recipes/control.h"

namespace lockstep::commands {

// Lines go to options.output, or to control.out; what was finished is written when an interrupt or an error ends the
// run. Only a window of rows is in memory. ConfigError: what OutputFile throws, an input whose rows are not those the
// output begins with, a prompt under one of the names above. DataError: more bad rows than allowed.
void generate_file(const GenerateOptions& options, Generation& generation, const recipes::Control& control);

}  // namespace lockstep::commands
