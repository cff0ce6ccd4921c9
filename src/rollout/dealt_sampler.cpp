#include "rollout/dealt_sampler.h"

#include <algorithm>
#include <utility>

#include "core/make_error.h"
#include "parallel/agree.h"
#include "parallel/bytes.h"
#include "parallel/gather.h"
#include "parallel/report.h"

namespace lockstep::rollout {

namespace {

// How long a rank generates before the ranks meet and tell each other of their tokens: a meeting costs each the time
// until the last one's burst of tokens ends, so there are ever fewer of them, from when nothing was in flight.
constexpr std::chrono::milliseconds kFirstSlice{400}, kLongestSlice{1600};

struct PlainToken {
  int64_t index, version, stop_index;
  int32_t token, finish;  // finish -1: none
  float logprob;
};

void write_event(parallel::ByteWriter& writer, const Event& event) {
  writer.add(event.ticket);
  writer.add(static_cast<uint8_t>(event.what.index()));
  if (const auto* done = std::get_if<PromptDone>(&event.what)) writer.add(done->cached_tokens);
  if (const auto* token = std::get_if<Token>(&event.what))
    writer.add(PlainToken{.index = token->index,
                          .version = token->version,
                          .stop_index = token->stop_index,
                          .token = token->token,
                          .finish = token->finish ? static_cast<int32_t>(*token->finish) : -1,
                          .logprob = token->logprob});
  if (const auto* failed = std::get_if<Failed>(&event.what)) {
    const std::vector<std::byte> report = parallel::pack_report(parallel::report_of(failed->error));
    writer.add_text({reinterpret_cast<const char*>(report.data()), report.size()});
  }
}

std::exception_ptr error_of(int rank, const std::string& text) {
  parallel::Report report = parallel::unpack_report(std::as_bytes(std::span(text)));
  if (const std::exception_ptr error = make_error(report.kind, report.fault)) return error;
  return std::make_exception_ptr(parallel::PeerFailed(rank, std::move(report.fault), report.exit_code));
}

Event read_event(parallel::ByteReader& reader, int rank) {
  Event event{.ticket = reader.take<Ticket>(), .what = Started{}};
  switch (reader.take<uint8_t>()) {
    case 1: event.what = PromptDone{.cached_tokens = reader.take<int64_t>()}; break;
    case 2: {
      const auto plain = reader.take<PlainToken>();
      Token token{.index = plain.index,
                  .token = plain.token,
                  .logprob = plain.logprob,
                  .version = plain.version,
                  .stop_index = plain.stop_index};
      if (plain.finish >= 0) token.finish = static_cast<FinishReason>(plain.finish);
      event.what = std::move(token);
      break;
    }
    case 3: event.what = Failed{error_of(rank, reader.take_text())}; break;
    default: break;
  }
  return event;
}

}  // namespace

Capabilities DealtSampler::capabilities() const {
  Capabilities capabilities = own_.capabilities();
  capabilities.prompt_logprobs = false;
  return capabilities;
}

DealtSampler::DealtSampler(Sampler& own, parallel::Group& group, std::function<bool()> interrupted)
    : own_(own), group_(group), interrupted_(std::move(interrupted)), slice_(kFirstSlice) {}

Ticket DealtSampler::submit(SampleRequest request) {
  const Ticket ticket = next_++;
  if (request.prompt_logprobs || request.sampling.top_logprobs > 0)
    throw ConfigError({.what = "log-probs of the prompt and of other tokens do not travel between ranks",
                       .where = request.where,
                       .attempt = "one rank"});
  const Open open{.ticket = ticket, .left = request.n};
  open_.emplace(ticket, open);
  if (ticket % group_.size() != group_.rank() || failed_) return ticket;
  try {
    own_tickets_.emplace(own_.submit(std::move(request)), open);
  } catch (...) {
    failed_ = std::current_exception();
  }
  return ticket;
}

void DealtSampler::generate(Deadline deadline) {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  const Deadline now = std::chrono::steady_clock::now(), until = deadline <= now ? deadline : now + slice_;
  do {
    for (const Event& event : own_.wait(until)) {
      const auto found = own_tickets_.find(event.ticket);
      if (found == own_tickets_.end()) continue;
      made_.push_back(event);
      made_.back().ticket = found->second.ticket;
      if (ends(found->second, event)) own_tickets_.erase(found);
    }
  } while (!own_tickets_.empty() && !interrupted_() && std::chrono::steady_clock::now() < until);
}

bool DealtSampler::ends(Open& open, const Event& event) {
  if (std::holds_alternative<Failed>(event.what)) return true;
  const auto* token = std::get_if<Token>(&event.what);
  return token != nullptr && token->finish && --open.left == 0;
}

void DealtSampler::exchange() {
  parallel::ByteWriter writer;
  writer.add(interrupted_());
  for (const Event& event : std::exchange(made_, {})) write_event(writer, event);
  bool interrupted = false;
  int rank = 0;
  for (const std::vector<std::byte>& bytes : parallel::gather_varied(group_, writer.take())) {
    parallel::ByteReader reader(bytes);
    interrupted = reader.take<bool>() || interrupted;
    while (!reader.empty()) all_.push_back(read_event(reader, rank));
    ++rank;
  }
  if (interrupted) throw Cancelled({.what = "interrupted while ranks were sampling"});
  for (const Event& event : all_)
    if (const auto open = open_.find(event.ticket); open != open_.end() && ends(open->second, event)) open_.erase(open);
}

// An empty answer would say that nothing is in flight: all ranks know what is, and go on together.
std::span<const Event> DealtSampler::next_events(Deadline deadline) {
  all_.clear();
  do {
    parallel::agree_after(group_, [&] { generate(deadline); });
    exchange();
    slice_ = open_.empty() ? kFirstSlice : std::min(2 * slice_, kLongestSlice);
  } while (all_.empty() && !open_.empty());
  return all_;
}

void DealtSampler::end(Ticket ticket) {
  std::erase_if(made_, [&](const Event& event) { return event.ticket == ticket; });
  open_.erase(ticket);
  const auto found = std::ranges::find(own_tickets_, ticket, [](const auto& entry) { return entry.second.ticket; });
  if (found == own_tickets_.end()) return;
  own_.cancel(found->first);
  own_tickets_.erase(found);
}

}  // namespace lockstep::rollout
