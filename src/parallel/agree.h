// How ranks fail together: before a collective part they agree that no rank has failed; a rank that fails inside one
// ends the group. Otherwise one rank would throw while the others wait for it.
#pragma once

#include <exception>

#include "parallel/group.h"

namespace lockstep::parallel {

// Collective. `mine`: this rank's error, or nullptr. Returns if no rank has one. Otherwise every rank throws the error
// of the lowest rank that has one: an error of core/error.h as itself, memory that ran out as ResourceError, anything
// else as PeerFailed with exit code 1 (the rank itself throws what it had). The group stays usable. If the group fails
// meanwhile, a rank with an error throws that error, the others what the group threw.
void agree(Group& group, const std::exception_ptr& mine);

// Calls Group::fail with this error.
void fail(Group& group, const std::exception_ptr& error) noexcept;

// Runs `part`, in which each rank may fail on its own and which makes no call of the group; then the ranks agree.
template <class Part>
void agree_after(Group& group, const Part& part) {
  std::exception_ptr mine;
  try {
    part();
  } catch (...) {
    mine = std::current_exception();
  }
  agree(group, mine);
}

// Runs `part`, which all ranks have entered together: a rank that fails in it ends the group.
template <class Part>
auto together(Group& group, const Part& part) {
  try {
    return part();
  } catch (...) {
    fail(group, std::current_exception());
    throw;
  }
}

}  // namespace lockstep::parallel
