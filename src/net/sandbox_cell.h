// What Sandbox's helper does for one job.
#pragma once

#include "net/sandbox.h"

namespace lockstep::net {

// Forks the program into its cell, feeds it, and collects what it says. Only in a process with one thread.
SandboxResult run_in_cell(const SandboxJob& job);

}  // namespace lockstep::net
