// What begin_linear, and the ops that take its call, want of its arguments. Throws as linear() does.
#pragma once

#include "kernels/linear.h"

namespace lockstep::kernels {

void require_unfinished(const LinearCall& call, const char* op, const Stream& stream);  // linear.cpp

}  // namespace lockstep::kernels
