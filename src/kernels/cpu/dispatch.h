// Chooses the compiled variant of an op by the instruction set of the Stream, not by a global setting, so that one
// process can run two instruction sets side by side (the tests that compare their bits do).
//
// In cpu/<op>.cpp:  HWY_EXPORT(Fn); inside #if HWY_ONCE, then  LOCKSTEP_DISPATCH(stream, Fn)(arguments...).
#pragma once

#include <hwy/highway.h>

#include "core/stream.h"

namespace lockstep::kernels {

inline int64_t highway_targets(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::avx512: return HWY_AVX3 | HWY_AVX2;
    case CpuIsa::avx2: return HWY_AVX2;
    default: return hwy::SupportedTargets();
  }
}

// Row of the dispatch table of this translation unit (entry 0 is Highway's own lazy chooser, never used here).
inline size_t dispatch_index(const Stream& stream) {
  hwy::ChosenTarget chosen;
  chosen.Update(highway_targets(stream.isa()));
  return chosen.GetIndex();
}

}  // namespace lockstep::kernels

#define LOCKSTEP_DISPATCH(stream, FN) (HWY_DISPATCH_TABLE(FN)[::lockstep::kernels::dispatch_index(stream)])
