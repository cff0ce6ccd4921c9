// Ranks as threads of a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/random.h"
#include "parallel/agree.h"
#include "parallel/connect.h"
#include "parallel/group.h"
#include "parallel/tcp/socket.h"

namespace lockstep::parallel::testing {

// A test that hangs ends after this; nothing else waits so long.
inline constexpr Timeouts kPatient{.call = std::chrono::minutes(2), .meet = std::chrono::minutes(2)};

enum class Transport { threads, tcp };

template <class Condition>
bool eventually(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatient.call;
  while (!condition())
    if (std::chrono::steady_clock::now() > until)
      return false;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return true;
}

// Of a job whose ranks meet at a listening socket of rank 0.
inline Connection tcp_connection(int rank, int size, uint16_t port, Timeouts timeouts = kPatient) {
  return {.launch = {.rank = rank, .size = size, .port = port, .job = "test"},
          .secret = {std::byte{7}},
          .build = "1",
          .identity = {{"base", "tiny"}, {"GPU generation", "90"}},
          .timeouts = timeouts,
          .stuck = {},
          .say = {}};
}

// All ranks of a TCP group, in this process.
inline std::vector<std::unique_ptr<Group>> tcp_ranks(int size, Timeouts timeouts) {
  if (size == 1) {
    std::vector<std::unique_ptr<Group>> alone;
    alone.push_back(connect(tcp_connection(0, 1, 0)));
    return alone;
  }
  tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
  const uint16_t port = tcp::port_of(listener);
  std::vector<std::unique_ptr<Group>> groups(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 1; rank < size; ++rank)
    ranks.emplace_back(
        [&, rank] { groups[static_cast<size_t>(rank)] = connect(tcp_connection(rank, size, port, timeouts)); });
  Connection first = tcp_connection(0, size, port, timeouts);
  first.launch.listen_fd = ::dup(listener.fd());
  listener.close();
  groups[0] = connect(first);
  for (std::thread& rank : ranks) rank.join();
  return groups;
}

inline std::vector<std::unique_ptr<Group>> make_groups(Transport transport, int size, Timeouts timeouts) {
  return transport == Transport::tcp ? tcp_ranks(size, timeouts) : threads(size, timeouts);
}

// Runs body(group) on each rank; returns what each threw, nullptr for nothing. A rank that throws fails its group, as
// the end of its process would.
template <class Body>
std::vector<std::exception_ptr> on_ranks(int size, const Body& body, Timeouts timeouts = kPatient,
                                         Transport transport = Transport::threads) {
  const std::vector<std::unique_ptr<Group>> groups = make_groups(transport, size, timeouts);
  std::vector<std::exception_ptr> thrown(groups.size());
  std::vector<std::thread> ranks;
  for (const std::unique_ptr<Group>& group : groups)
    ranks.emplace_back([&body, &thrown, &group = *group] {
      try {
        body(group);
      } catch (...) {
        thrown[static_cast<size_t>(group.rank())] = std::current_exception();
        fail(group, std::current_exception());
      }
    });
  for (std::thread& rank : ranks) rank.join();
  return thrown;
}

// The same for bodies of which none may throw.
template <class Body>
void on_sound_ranks(int size, const Body& body, Transport transport = Transport::threads) {
  for (const std::exception_ptr& error : on_ranks(size, body, kPatient, transport))
    if (error) std::rethrow_exception(error);
}

// What an error is and says: "DataError 3: message".
inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "nothing";
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    return std::string(typed.kind()) + " " + std::to_string(typed.exit_code()) + ": " + typed.what();
  } catch (const std::exception& other) {
    return other.what();
  }
}

// What `call` throws, as text_of has it.
template <class Call>
std::string thrown_by(const Call& call) {
  try {
    call();
  } catch (...) {
    return text_of(std::current_exception());
  }
  return "nothing";
}

inline ::testing::AssertionResult starts_with(const std::string& text, const std::string& beginning) {
  if (text.starts_with(beginning)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not start with \"" << beginning << "\"";
}

// Up to half a millisecond, so that ranks come in every order; drawn by (key, rank, call).
inline void stumble(uint64_t key, int rank, uint32_t call) {
  const uint32_t draw = philox(key, {static_cast<uint32_t>(rank), call, 0, 0})[0];
  if (draw % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw % 500));
}

}  // namespace lockstep::parallel::testing
