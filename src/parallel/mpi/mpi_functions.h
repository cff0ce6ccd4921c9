// What the program asks of MPI, in a module of its own (module/mpi_module.cpp): the program does not link MPI.
#pragma once

#include <cstddef>

namespace lockstep::parallel {

// Of one thread. Results are MPI's: 0 is success.
struct MpiFunctions {
  int (*start)(int* rank, int* size);                      // MPI_Init, if it was not called
  int (*receive)(void* to, size_t bytes, int peer);        // begins; adds to what is under way
  int (*send)(const void* from, size_t bytes, int peer);   // the same
  int (*test)(int* done);                                  // whether all that is under way has ended
  void (*describe)(int result, char* text, size_t bytes);  // in words
  void (*finish)();                                        // MPI_Finalize: waits for all ranks
};

// The name by which the module is found beside the program, and its one function, which returns these.
inline constexpr const char* kMpiModule = "liblockstep_mpi.so";
inline constexpr const char* kMpiEntry = "lockstep_mpi";

}  // namespace lockstep::parallel
