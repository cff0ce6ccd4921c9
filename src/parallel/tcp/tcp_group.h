// A rank of a group of processes.
#pragma once

#include <memory>

#include "parallel/tcp/mesh.h"

namespace lockstep::parallel::tcp {

// Of connections that are made (connect.cpp).
std::unique_ptr<Group> make_group(std::unique_ptr<Control> control, std::vector<Socket> mesh, int rank,
                                  const Timeouts& timeouts);

}  // namespace lockstep::parallel::tcp
