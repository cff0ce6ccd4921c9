// A step that cannot be taken because something in it is no finite number, and where that comes from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "train/not_finite_error.h"
#include "train/trainer.h"

namespace lockstep::train {

// Where the first number that is not finite comes from, as far as can be told.
struct NotFinite {
  std::optional<int64_t> sample;  // whose outputs or gradient, of the datums; nullopt: none of them by itself
  std::string module;             // whose gradient; empty: outputs or loss already are not
};
// Computes each term of the loss by itself, in a step that is not taken, until one is not finite. No step may be open.
// What Trainer::forward_backward throws but NotFiniteError.
NotFinite find_not_finite(Trainer& trainer, std::span<const Datum> datums, const Loss& loss);

}  // namespace lockstep::train
