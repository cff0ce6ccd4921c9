// An answer taken apart: numbers, expressions and words in sets, tuples, intervals, matrices, equations, inequalities.
//
//   list      parts with "," "and" "or" between them; \pm 2 is the list 2, -2. One part is that part itself.
//   set       \{ \}, \emptyset
//   tuple     ( ) [ ] around more than one part: points, vectors, intervals
//   join      parts with \cup between them
//   matrix    rows of a pmatrix, bmatrix, matrix, smallmatrix or array
//   equation  two sides of = or \in; named, if the first is a name (x, f(2), (x, y)), as in "x = 5". The name is put
//   first. chain     sides of <, \le, ...: turned so that they ascend scalar    anything else
// Braces, brackets around one part, \text around the whole and a full stop at the end are taken away. Of a scalar that
// is a number (no variables) the unit behind it is: any \text, a degree sign, a known word (units.h); and "%" is noted.
//
// What nests deeper than kMaxNesting or has more than kMaxParts parts is a scalar of unknown value: there is its text.
// What is longer than kMaxAnswerBytes is its bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rl/reward/math_value.h"

namespace lockstep::rl {

inline constexpr size_t kMaxParts = 500;
inline constexpr size_t kMaxAnswerBytes = size_t{1} << 15;

struct MathAnswer {
  enum class Kind { scalar, list, set, tuple, join, matrix, equation, chain };
  Kind kind = Kind::scalar;
  std::string text;               // canonical_text of it
  std::vector<MathAnswer> parts;  // of a matrix, its rows: tuples
  // Scalars:
  std::string word;  // only_word of it
  MathValue value;
  bool percent = false;
  // Tuples: their brackets. Chains: whether the sides may be equal, '=' or '<' for each neighbours.
  std::string marks;
  bool named = false;  // equations: the first side is a name; scalars: it is one
};

MathAnswer parse_math_answer(std::string_view latex, Work& work);

}  // namespace lockstep::rl
