// How ranks fail together: before a collective part they agree that no rank has failed; a rank that fails inside one
// ends the group. Otherwise one rank would throw while the others wait for it.
#pragma once

#include <exception>
#include <string_view>

#include "core/make_error.h"
#include "parallel/group.h"

namespace lockstep::parallel {

// Collective. `mine`: this rank's error, or nullptr. Returns if no rank has one. Otherwise every rank throws the error
// of the lowest rank that has one: an error that `make` knows by its kind as itself, memory that ran out as
// ResourceError, anything else as PeerFailed with its exit code (the rank itself throws what it had). The group stays
// usable. If the group fails meanwhile, a rank with an error throws that error, the others what the group threw.
using MakeError = std::exception_ptr (*)(std::string_view kind, Fault fault);
void agree(Group& group, const std::exception_ptr& mine, MakeError make = make_error);

// Calls Group::fail with this error.
void fail(Group& group, const std::exception_ptr& error) noexcept;

// Runs `part`, in which each rank may fail on its own and which makes no call of the group; then the ranks agree.
template <class Part>
void agree_after(Group& group, const Part& part, MakeError make = make_error) {
  std::exception_ptr mine;
  try {
    part();
  } catch (...) {
    mine = std::current_exception();
  }
  agree(group, mine, make);
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
