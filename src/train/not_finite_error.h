// Of a step whose numbers are not finite.
#pragma once

#include "core/error.h"

namespace lockstep::train {

// What the Trainer throws for outputs of the model, losses and gradients that are not finite: nothing has changed, and
// the run may go on with the next batch.
class NotFiniteError : public DataError {
 public:
  using DataError::DataError;
  const char* kind() const override { return "NotFiniteError"; }  // so that other ranks can throw it, too
};

}  // namespace lockstep::train
