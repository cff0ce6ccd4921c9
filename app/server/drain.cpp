#include "server/drain.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::server {

Drain::Drain(Service& service, Router& router, Timeouts timeouts, Note note)
    : service_(service), router_(router), timeouts_(timeouts), note_(std::move(note)) {}

bool Drain::leaves_threads() const {
  for (const Worker* worker : {&service_.adapter_worker, &service_.control_worker, &service_.prompt_worker,
                               &service_.template_worker, &service_.answer_worker, &service_.weights_worker})
    if (!worker->idle()) return true;
  return false;
}

void Drain::begin() {
  note_(fmt::format("draining: {} requests in flight; a second signal stops at once", service_.answers.size()));
  until_ = Clock::now() + timeouts_.end;
  router_.set_draining();
}

bool Drain::is_over() {
  if (!router_.is_reading()) service_.serving.drain();  // requests that are being read are in flight too
  const bool in_flight = service_.answers.size() > 0 || router_.is_reading();
  if (!in_flight && !leaves_threads()) return true;
  if (Clock::now() < *until_) return false;
  if (!abort_until_) abort_rest();
  // Clients are told that their requests were aborted, if the engine still answers.
  const bool aborting = service_.answers.size() > 0 || !service_.control_worker.idle();
  if (aborting && Clock::now() < *abort_until_) return false;
  if (leaves_threads()) note_("note    a thread has not ended what it was doing; it is left");
  return true;
}

void Drain::abort_rest() {
  abort_until_ = Clock::now() + timeouts_.abort;
  service_.serving.drain();
  if (const size_t count = service_.answers.size(); count > 0)
    note_(fmt::format("note    {} requests are aborted after --drain-timeout", count));
  service_.control_worker.post([&serving = service_.serving] { serving.abort_all(); });
}

}  // namespace lockstep::server
