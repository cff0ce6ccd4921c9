#include <string>
#include <utility>

#include "parallel/group.h"

namespace lockstep::parallel {

namespace {
Fault of_rank(int rank, Fault fault) {
  fault.what = "rank " + std::to_string(rank) + " failed: " + fault.what;
  return fault;
}
}  // namespace

PeerFailed::PeerFailed(int rank, Fault fault, int exit_code)
    : Error(of_rank(rank, std::move(fault))), rank_(rank), exit_code_(exit_code) {}

}  // namespace lockstep::parallel
