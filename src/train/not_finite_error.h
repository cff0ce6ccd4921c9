// Of a step whose numbers are not finite.
#pragma once

#include <exception>
#include <string_view>
#include <utility>

#include "core/make_error.h"

namespace lockstep::train {

// What the Trainer throws for outputs of the model, losses and gradients that are not finite: nothing has changed, and
// the run may go on with the next batch.
class NotFiniteError : public DataError {
 public:
  using DataError::DataError;
  const char* kind() const override { return "NotFiniteError"; }  // so that other ranks can throw it, too
};

// make_error of what a rank threw in a step, for parallel::agree.
inline std::exception_ptr step_error(std::string_view kind, Fault fault) {
  if (kind == "NotFiniteError") return std::make_exception_ptr(NotFiniteError(std::move(fault)));
  return make_error(kind, std::move(fault));
}

}  // namespace lockstep::train
