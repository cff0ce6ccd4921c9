// A library that the CUDA driver loads into any program (CUDA_INJECTION64_PATH) and that writes, when the program ends,
// one line per kernel, copy and fill of the GPU:
//
//   start_ns <tab> end_ns <tab> range of the host thread when it was launched <tab> name of the kernel
//
// to the file that LOCKSTEP_TRACE_FILE names, and one with "host " before the name for every call of the CUDA runtime
// that kept the host for kLongCallNs or more. Ranges are NVTX's (core/profile_range.h); nested ones are joined by "/"
// only if they name themselves so: the innermost is written. tools/gpu_trace.py sets the variables and reads the file.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

constexpr uint64_t kLongCallNs = 20'000;

struct Work {  // on the GPU, or a long call of the host
  uint64_t start, end;
  uint32_t correlation;
  std::string name;
};
struct Launch {  // a call of the CUDA API
  uint64_t start;
  uint32_t thread;
};
struct Range {
  uint64_t start, end;
  std::string name;
};
struct OpenRange {
  uint64_t start;
  uint32_t thread;
  std::string name;
};

struct Trace {
  std::mutex mutex;
  std::vector<Work> work;
  std::unordered_map<uint32_t, Launch> launches;  // by correlation
  std::unordered_map<uint32_t, OpenRange> open;   // by marker
  std::map<uint32_t, std::vector<Range>> ranges;  // by thread, in order of their ends
};

Trace& trace() {
  static Trace* const instance = new Trace;  // outlives static objects, whose destructors still use the GPU
  return *instance;
}

void take_marker(const CUpti_ActivityMarker2& marker) {
  Trace& t = trace();
  if (marker.flags & CUPTI_ACTIVITY_FLAG_MARKER_START) {
    t.open[marker.id] = {marker.timestamp, marker.objectId.pt.threadId, marker.name ? marker.name : ""};
  } else if (marker.flags & CUPTI_ACTIVITY_FLAG_MARKER_END) {
    const auto begun = t.open.find(marker.id);
    if (begun == t.open.end()) return;
    t.ranges[begun->second.thread].push_back({begun->second.start, marker.timestamp, begun->second.name});
    t.open.erase(begun);
  }
}

void take(const CUpti_Activity* record) {
  Trace& t = trace();
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      t.work.push_back({kernel.start, kernel.end, kernel.correlationId, kernel.name ? kernel.name : "?"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      t.work.push_back({copy.start, copy.end, copy.correlationId, "[copy]"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      t.work.push_back({fill.start, fill.end, fill.correlationId, "[fill]"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
      t.launches.try_emplace(call.correlationId, Launch{call.start, call.threadId});
      if (call.kind == CUPTI_ACTIVITY_KIND_RUNTIME && call.end - call.start >= kLongCallNs) {
        const char* name = nullptr;
        cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, call.cbid, &name);
        t.work.push_back({call.start, call.end, call.correlationId, std::string("host ") + (name ? name : "?")});
      }
      break;
    }
    case CUPTI_ACTIVITY_KIND_MARKER: take_marker(*reinterpret_cast<const CUpti_ActivityMarker2*>(record)); break;
    default: break;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(trace().mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) take(record);
  std::free(buffer);
}

// The innermost range of the thread at that time: the one that began last of those that had not ended.
const char* range_at(const std::vector<Range>& ranges, uint64_t time) {
  const Range* best = nullptr;
  // In order of their ends: none before this one covers `time`; ranges nest, so the first that covers it is innermost.
  for (auto range =
           std::lower_bound(ranges.begin(), ranges.end(), time, [](const Range&r, uint64_t t) { return r.end < t; });
       range != ranges.end() && !best; ++range)
    if (range->start <= time) best = &*range;
  return best ? best->name.c_str() : "";
}

void write_trace() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  Trace& t = trace();
  const std::lock_guard lock(t.mutex);
  const char* path = std::getenv("LOCKSTEP_TRACE_FILE");
  std::FILE* file = path ? std::fopen(path, "w") : nullptr;
  if (!file) {
    std::fprintf(stderr, "cuda_trace: cannot write LOCKSTEP_TRACE_FILE\n");
    return;
  }
  for (auto& [thread, ranges] : t.ranges)
    std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.end < b.end; });
  std::sort(t.work.begin(), t.work.end(), [](const Work& a, const Work& b) { return a.start < b.start; });
  for (const Work& work : t.work) {
    const char* range = "";
    if (const auto launch = t.launches.find(work.correlation); launch != t.launches.end())
      if (const auto ranges = t.ranges.find(launch->second.thread); ranges != t.ranges.end())
        range = range_at(ranges->second, launch->second.start);
    std::fprintf(file, "%llu\t%llu\t%s\t%s\n", static_cast<unsigned long long>(work.start),
                 static_cast<unsigned long long>(work.end), range, work.name.c_str());
  }
  std::fclose(file);
}

void enable(CUpti_ActivityKind kind, const char* name) {
  const CUptiResult result = cuptiActivityEnable(kind);
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "cuda_trace: no %s: %s\n", name, text ? text : "?");
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels");
  enable(CUPTI_ACTIVITY_KIND_MEMCPY, "copies");
  enable(CUPTI_ACTIVITY_KIND_MEMSET, "fills");
  enable(CUPTI_ACTIVITY_KIND_RUNTIME, "launches");
  enable(CUPTI_ACTIVITY_KIND_DRIVER, "driver calls");
  enable(CUPTI_ACTIVITY_KIND_MARKER, "ranges");
  std::atexit(write_trace);
  return 1;
}
