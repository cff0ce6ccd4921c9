// What a newcomer says of itself in its first message.
//
// It is a JSON object that begins with "build" and "rank", in every build: these are read before anything else, so that
// ranks of different builds can be named whatever else has changed. The rest is of one build.
#pragma once

#include <string>
#include <string_view>

#include "parallel/connect.h"

namespace lockstep::parallel::tcp {

inline constexpr int kControl = -1;

struct Hello {
  std::string build;
  int rank = 0;
  int group = kControl;    // whose calls' bytes the connection is for (kGroups); kControl: it is the control channel
  uint16_t data_port = 0;  // where it listens for the ranks above it
  int size = 1;
  std::string job;
  std::string process;  // the same in each of a process's calls, and in no other's
  Identity identity;
};

std::string hello_text(const Hello& hello);

// The hello of a process at the address `from`. ConfigError: it is not of this job or not like `ours`, naming the rank
// and what differs. FormatError: it is no hello.
Hello read_hello(std::string_view text, const Hello& ours, const std::string& from);

}  // namespace lockstep::parallel::tcp
