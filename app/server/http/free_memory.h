// Returns the memory that a large request used to the system.
#pragma once

#include <cstddef>

namespace lockstep::server {

inline constexpr size_t kLargeBytes = size_t{4} << 20;  // bodies and answers from this size on are worth it

// The allocator keeps freed small blocks (values of a JSON document, texts of choices), however many they are. This
// returns whole free pages; it takes milliseconds, so it does not run on the server's thread.
void give_memory_back();

}  // namespace lockstep::server
