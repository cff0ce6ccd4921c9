// MPI's side of parallel/mpi: compiled against the MPI of this machine, loaded when ranks ask for it.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <vector>

#include "parallel/mpi/mpi_functions.h"

namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;  // MPI counts in int
std::vector<MPI_Request> under_way;

int start(int* rank, int* size) {
  int initialized = 0;
  if (const int result = MPI_Initialized(&initialized)) return result;
  int provided = 0;
  if (!initialized)
    if (const int result = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided)) return result;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (const int result = MPI_Comm_rank(MPI_COMM_WORLD, rank)) return result;
  return MPI_Comm_size(MPI_COMM_WORLD, size);
}

// Both ends cut a long piece at the same places, and messages between two ranks keep their order.
int receive(void* to, size_t bytes, int peer) {
  for (size_t done = 0; done < bytes; done += kMaxBytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = static_cast<int>(std::min(kMaxBytes, bytes - done));
    if (const int result = MPI_Irecv(static_cast<char*>(to) + done, count, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &request))
      return result;
    under_way.push_back(request);
  }
  return MPI_SUCCESS;
}

int send(const void* from, size_t bytes, int peer) {
  for (size_t done = 0; done < bytes; done += kMaxBytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = static_cast<int>(std::min(kMaxBytes, bytes - done));
    if (const int result =
            MPI_Isend(static_cast<const char*>(from) + done, count, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &request))
      return result;
    under_way.push_back(request);
  }
  return MPI_SUCCESS;
}

int test(int* done) {
  const int result = MPI_Testall(static_cast<int>(under_way.size()), under_way.data(), done, MPI_STATUSES_IGNORE);
  if (result == MPI_SUCCESS && *done) under_way.clear();
  return result;
}

void describe(int result, char* text, size_t bytes) {
  char all[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, all, &length);
  const size_t kept = std::min(bytes - 1, static_cast<size_t>(length));
  std::copy_n(all, kept, text);
  text[kept] = 0;
}

void finish() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Finalize();
}

constexpr lockstep::parallel::MpiFunctions kFunctions{start, receive, send, test, describe, finish};

}  // namespace

extern "C" const lockstep::parallel::MpiFunctions* lockstep_mpi() {
  return &kFunctions;
}
