// Whether two answers say the same. Exactly: 0.333 is not 1/3. docs/rewards.md lists the verdicts.
//
//   scalars    equal texts, equal words, or equal values; "%" on one side only: as the number or as a hundredth of it
//   lists      sets and lists as multisets; a list of more than one equals a tuple ( ) with the same parts in order
//   tuples     same brackets, equal parts in order; joins: in any order; matrices: entry by entry
//   equations  the same sides, in either order; a named one also equals its second side alone (x = 5 and 5)
//   chains     the same sides and signs. A wanted chain with a name in it also equals the interval it means (x > 0 and
//              (0, \infty)), not the other way round.
// Symmetric but for chains. Anything equals itself, unless it is empty.
#pragma once

#include "rl/reward/math_answer.h"

namespace lockstep::rl {

// `tolerance`: of numbers without variables, relative to the wanted one.
bool same_math(const MathAnswer& wanted, const MathAnswer& given, double tolerance, Work& work);

}  // namespace lockstep::rl
