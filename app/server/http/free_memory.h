// What a large request used goes back to the system.
#pragma once

#include <cstddef>

namespace lockstep::server {

inline constexpr size_t kLargeBytes = size_t{4} << 20;  // of a body or an answer: worth giving memory back after it

// The allocator keeps what is freed in small pieces (the values of a JSON document, the texts of choices) for itself,
// however much it is. This gives back whole pages of it; it takes milliseconds, so not on the server's thread.
void give_memory_back();

}  // namespace lockstep::server
