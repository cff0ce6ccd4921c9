// A Stream is where ops run: an ordered queue of work on one device. On the CPU an op has finished when its function
// returns; the stream owns the worker threads, their scratch memory and the chosen instruction set. On a GPU an op is
// queued, and all memory it is given is the GPU's unless its contract says "host".
//
// Results never depend on the number of threads or on the instruction set (docs/decisions/cpu-arithmetic.md), and a
// row's bits depend on the row alone (on a GPU: docs/decisions/gpu-arithmetic.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "core/device.h"

namespace lockstep {

enum class CpuIsa { best, avx2, avx512, neon };

struct StreamOptions {
  int threads = 0;  // 0: all cores this process may use
  CpuIsa isa = CpuIsa::best;
  Device device = Device::cpu;
  // Of a GPU: its kernels start before those that other streams have queued. Speed only.
  bool goes_first = false;
};

class Stream {
 public:
  // Throws DeviceError if no GPU can be used and one is asked for, if this CPU lacks the instruction set asked for (or
  // AVX2 + FMA at all), ConfigError for a thread count below 0 or above max_threads(), ResourceError if the system
  // refuses a thread.
  explicit Stream(StreamOptions options = {});
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const;
  void synchronize();  // waits until all queued work is done; DeviceError if some op failed on the GPU
  // After an exception of an op: waits for what was queued before and clears the error. False: the GPU is lost to this
  // process, and every further op will fail.
  bool recover() noexcept;
  void* native() const;                    // the cudaStream_t; nullptr on the CPU
  std::pair<void*, void*> queues() const;  // native(), and the one of `beside`
  // Runs the ops that `work` queues concurrently with those that `meanwhile` queues; later ops wait for both. On a GPU
  // `work` uses a second queue with kernel state of its own; on the CPU they run one after the other. Not reentrant.
  // Work that was queued before an exception still runs, and later ops wait for it.
  void beside(const std::function<void()>& work, const std::function<void()>& meanwhile);

  // What the kernels keep from op to op on this stream (a GPU's library handles and workspaces); only they use it.
  std::shared_ptr<void>& kernel_state();

  int threads() const;
  CpuIsa isa() const;  // avx2, avx512 or neon; never `best`

  // Runs task(index, worker) for every index in [0, count), spread over the workers (the caller is worker 0), and
  // returns when all are done. Indices are handed out dynamically, so a task must write only what belongs to its index.
  // The first exception thrown by a task is thrown here. Not reentrant: a task must not call parallel().
  void parallel(int64_t count, const std::function<void(int64_t index, int worker)>& task);

  // At least `bytes` of scratch memory of one worker, 64-byte aligned, valid until the next call for that worker.
  void* scratch(int worker, size_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The largest number of threads of a stream: 4 per core this process may use, at least 16. Every op waits for every
// thread, so more than one per core only costs time; the margin is for scripts written for a larger machine.
int max_threads();

CpuIsa parse_cpu_isa(std::string_view name);  // "auto" | "avx2" | "avx512"; ConfigError otherwise
const char* cpu_isa_name(CpuIsa isa);

}  // namespace lockstep
