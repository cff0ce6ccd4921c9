// A rank of a group of processes.
#pragma once

#include <array>
#include <memory>

#include "parallel/tcp/mesh.h"

namespace lockstep::parallel::tcp {

// Of connections that are made (connect.cpp); `meshes`: of the group and of its Group::second().
std::unique_ptr<Group> make_group(std::shared_ptr<Control> control, std::array<std::vector<Socket>, kGroups> meshes,
                                  int rank, const Timeouts& timeouts);

}  // namespace lockstep::parallel::tcp
