// The stages of distillation that ask: a teacher, and the actor about other tokens than it chose.
#pragma once

#include <span>
#include <string>

#include "parallel/group.h"
#include "rl/distillation.h"
#include "rl/teacher.h"

namespace lockstep::rl {

struct Asked {
  Teacher& teacher;
  std::span<const std::string> teachers = {};  // which one each datum wants, where there are several; empty: the one
  parallel::Group* group = nullptr;            // of ranks that all hold the datums: each asks about a share
  train::Progress between = {};
};

// The stage of the policy gradient: asks the teacher, and of the actor's `policy` (the version that sampled) what
// `how` needs, and changes the advantages as distill does. Returns the mean difference.
double distill(std::span<train::Datum> datums, const Distillation& how, const Asked& asked, train::Trainer& actor,
               const lora::AdapterVersion& policy);

// The stage of a loss that flows: teacher_logprobs, and for forward_kl_topk the teacher's `top` likeliest tokens as
// candidates. Returns the mean of policy_logprobs - the teacher's log-prob of the target over the rows that learn.
double ask_teacher(std::span<train::Datum> datums, const train::DistillTerm& term, int64_t top, const Asked& asked);

}  // namespace lockstep::rl
