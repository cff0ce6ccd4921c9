// How bytes (gradients and the rest) move between ranks. They meet, and check who the others are, over TCP always.
#pragma once

#include <algorithm>
#include <string_view>

namespace lockstep::recipes {

enum class Wire { nccl, host, mpi };

struct WireFacts {
  Wire wire = Wire::host;
  std::string_view name;  // as --distributed-backend has it
  std::string_view text;  // by what bytes move, in a dry run
  std::string_view help;
  bool between_gpus = false;  // only between GPUs that no two ranks share; else through host memory
};
inline constexpr WireFacts kWires[] = {
    {Wire::nccl, "nccl", "NCCL between the GPUs", "between GPUs (over TCP between CPUs)", true},
    {Wire::host, "gloo", "TCP through host memory", "TCP, through host memory"},
    {Wire::mpi, "mpi", "MPI through host memory", "MPI, through host memory, of ranks that mpirun has started"}};

constexpr const WireFacts& facts_of(Wire wire) {
  return *std::ranges::find(kWires, wire, &WireFacts::wire);
}

}  // namespace lockstep::recipes
