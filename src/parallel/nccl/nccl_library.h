// NCCL, loaded when ranks with GPUs meet: the program neither links nor carries it.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::parallel::nccl {

// What we use of <nccl.h> 2.28, so that a build without CUDA compiles the same code; cuda/nccl_declarations.cpp
// compares it with the header.
using Result = int;
inline constexpr Result kSuccess = 0, kRemoteError = 6, kInProgress = 7;
inline constexpr int kInt8 = 0, kFloat32 = 7, kSum = 0;
inline constexpr int kLeastVersion = 22800;

struct Comm;
struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef, version = kLeastVersion;
  int blocking = 0;  // calls return at once, and may have to be asked about
  int cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined, traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined, cta_policy = kUndefined, shrink_share = kUndefined, nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined, nvlink_centric_sched = kUndefined;

 private:
  static constexpr int kUndefined = static_cast<int>(0x80000000u);
};

struct Library {
  Result (*get_version)(int* version);
  const char* (*error_string)(Result result);
  const char* (*last_error)(Comm* comm);
  Result (*unique_id)(UniqueId* id);
  Result (*init)(Comm** comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*async_error)(Comm* comm, Result* result);
  Result (*abort)(Comm* comm);
  Result (*destroy)(Comm* comm);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void* from, size_t count, int type, int peer, Comm* comm, void* stream);
  Result (*receive)(void* to, size_t count, int type, int peer, Comm* comm, void* stream);
  Result (*all_reduce)(const void* from, void* to, size_t count, int type, int operation, Comm* comm, void* stream);
  int version = 0;  // 22809 for 2.28.9
  std::string version_text() const;
};

// By the name `file`, as the system finds libraries and then in the CUDA toolkit of the build; it stays loaded.
// ConfigError: none is found, it is older than 2.28, or it lacks a function.
Library load(const std::string& file = "libnccl.so.2");

}  // namespace lockstep::parallel::nccl
