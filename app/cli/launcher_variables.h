// Which rank of a job this process is, as the program says that started it. Launchers tell it in environment variables,
// and this is the one place where options are read from them.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "parallel/connect.h"

namespace lockstep::cli {

using Variables = std::function<std::optional<std::string>(const char* name)>;

Variables process_variables();  // of this process

struct Launched {
  parallel::Launch launch;
  std::string launcher;                    // for messages: "RANK and WORLD_SIZE (lockstep launch, torchrun)"
  std::optional<parallel::Secret> secret;  // that lockstep launch has put into a pipe
};

// The variables of lockstep launch and torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*), MPICH (PMI_*) or Slurm (SLURM_PROCID in a step of several tasks); nothing
// if there are none, or only one rank. Where no MASTER_ADDR is given: Slurm's first host, or this one if all ranks are
// here. Where no MASTER_PORT is given, or torchrun itself listens there: one made of the job's number (Slurm: and the
// step's). ConfigError: two launchers disagree, a value is no number, or where rank 0 is cannot be told.
std::optional<Launched> launched_by(const Variables& variables);

}  // namespace lockstep::cli
