// What may stand behind a number without changing what is compared: "10\text{ cm}", "20 square feet", "90^\circ",
// "60 km/h". Both answers lose their units, so 10 cm is 10 and, as in slime and miles, 10 m too.
#pragma once

#include "rl/reward/latex_tokens.h"

namespace lockstep::rl {

struct Quantity {
  TokenSpan number;
  int64_t factor = 1;  // of the word million, and its like
};

// `number` is what stands before the unit; all tokens, if they do not end in one. Units are
//   \text{...}, \mathrm{...}   any words, but those that say more than a unit does (and, more, than ...)
//   letters                    known words of two letters and more; single ones (m, s) only beside "/" or behind a
//   degree
//                              sign: 10 m/s, 25 °C
//   °, ^\circ                  degrees
// each perhaps with an exponent, and several with "/", "*" or nothing between them. Thousand, million, billion and
// trillion are factors.
Quantity without_unit(TokenSpan tokens);

}  // namespace lockstep::rl
