#include "commands/build_info.h"

#include "commands/commands.h"

namespace lockstep::commands {

std::string build_commit() {
  return kBuildCommit;
}

}  // namespace lockstep::commands
