// How the ranks of a job find each other: the connections of a group, made.
#pragma once

#include <array>
#include <vector>

#include "parallel/connect.h"
#include "parallel/tcp/open_call.h"
#include "parallel/tcp/socket.h"

namespace lockstep::parallel::tcp {

struct Connections {
  std::vector<Socket> control;                      // as Control takes them
  std::array<std::vector<Socket>, kGroups> meshes;  // of each group, by rank
};

// Rank 0 waits for a control connection of every other rank and tells all where the others listen; then each rank
// connects to those below it, and rank 0 lets all begin at once. Throws what connect() throws.
Connections meet(const Connection& connection);

}  // namespace lockstep::parallel::tcp
