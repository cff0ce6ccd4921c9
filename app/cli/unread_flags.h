// Flags that take effect only together with another flag.
#pragma once

#include "cli/classify.h"
#include "recipes/options.h"

namespace lockstep::cli {

// A note for each flag that was given and that this run does not read: the parameter of another loss, the teacher's
// coefficient without a teacher. Scripts carry such flags from one method to the next, so it is no error.
void note_unread(const recipes::RlOptions& options, Classified& given);
void note_unread(const recipes::SftOptions& options, Classified& given);

}  // namespace lockstep::cli
