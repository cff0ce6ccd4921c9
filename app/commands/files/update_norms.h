// Norms and products of low-rank updates, without the matrices they stand for.
#pragma once

#include "load/lora_factors.h"

namespace lockstep::commands {

struct UpdateNorms {
  double a = 0, b = 0;    // Frobenius norms of the two updates scale * B A
  double difference = 0;  // of update a minus update b
  double inner = 0;       // sum of products of their elements
  // 1: one direction, 0: nothing in common. NaN where one is zero.
  double cosine() const;
};

// <B1 A1, B2 A2> = sum_ij (B1^T B2)_ij (A1 A2^T)_ij in double: the largest matrices have 2 rank columns. Two updates of
// one rank are subtracted factor by factor, s1 B1 A1 - s2 B2 A2 = (s1 B1 - s2 B2) A1 + s2 B2 (A1 - A2), so that a small
// difference does not drown in the rounding of large norms. nullptr: no update, zero. ShapeError: two modules of other
// shapes.
UpdateNorms update_norms(const load::ModuleFactors* a, const load::ModuleFactors* b);

}  // namespace lockstep::commands
