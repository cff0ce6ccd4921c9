// One step: runs the scheduled rows, draws tokens and reports the results.
#include <algorithm>
#include <utility>

#include "core/profile_range.h"
#include "rollout/local/engine_impl.h"

namespace lockstep::rollout {

void Engine::Impl::step() {
  try {
    follow();
    retire_bases();
    run_step();
    retire_bases();
  } catch (...) {
    fail_all(std::current_exception());
  }
}

// Discards whatever the step may have left half done: its requests, the keys that the prefix cache took from it, and
// recorded graphs.
void Engine::Impl::fail_all(const std::exception_ptr& error) {
  ++stats.failed_steps;
  is_usable = stream.recover();  // work that is still queued may write to the requests' blocks
  for (const auto& [ticket, request] : requests) scheduler.remove(*request);
  if (cache) cache->clear();
  for (const auto& base : bases)
    if (base->decode_loop) base->decode_loop->forget_graphs();
  events.clear();
  for (const auto& [ticket, request] : requests) events.push_back({ticket, Failed{error}});
  requests.clear();
}

void Engine::Impl::run_step() {
  const Arena::Scope scope(arena);
  // Sorted so that rows of one adapter are contiguous: each matmul then has the adapter once. Rows of one base are a
  // batch of their own.
  const std::span<const ScheduledRows> chosen = scheduler.schedule();
  scheduled.assign(chosen.begin(), chosen.end());
  const auto base_number = [](const ScheduledRows& rows) { return live(*rows.group).base->model->version().number; };
  std::ranges::stable_sort(scheduled, {}, [&](const ScheduledRows& rows) {
    return std::pair(base_number(rows), live(*rows.group).adapter_number);
  });
  if (bases.back()->decode_loop)
    if (const int64_t steps = decode_steps(); steps > 0) return decode(scheduler.extend(steps));
  report_started();
  int64_t rows = 0;
  for (const ScheduledRows& part : scheduled) rows += part.rows;
  const Tensor hidden = arena.alloc({rows, config.width}, activations());
  drawing.clear();
  drawn.clear();
  int64_t first_row = 0;
  for (auto begin = scheduled.begin(), end = begin; begin != scheduled.end(); begin = end) {
    int64_t part_rows = 0;
    for (; end != scheduled.end() && base_number(*end) == base_number(*begin); ++end) part_rows += end->rows;
    run_base({begin, end}, hidden.rows(first_row, first_row + part_rows));
    first_row += part_rows;
  }
  scheduler.commit();
  for (size_t i = 0; i < drawn.size(); ++i) take(*drawing[i], drawn[i]);
  std::erase_if(requests, [](const auto& entry) { return entry.second->unfinished == 0; });
}

// Runs rows of one base, and draws what comes after them.
void Engine::Impl::run_base(std::span<const ScheduledRows> parts, Tensor hidden) {
  run_rows(parts, hidden);
  const model::RowAdapters adapters{.rows = model::adapter_rows(segments), .tiles = {}, .dropout = {}};
  score_prompts(parts, {hidden, adapters});
  const std::span<const Drawn> made = live(*parts.front().group).base->sampler.draw(draws, {hidden, adapters}, arena);
  drawn.insert(drawn.end(), made.begin(), made.end());
  if (parts.size() < scheduled.size()) stream.synchronize();  // the next base's rows use the same host memory
}

// How many tokens the scheduled sample with the most tokens left can still get, if all of them only decode, need
// nothing but tokens and log-probs, and have plain adapters or none; else 0. Shorter samples run on beyond their end,
// as far as the context reaches; what they draw there is dropped.
int64_t Engine::Impl::decode_steps() const {
  int64_t longest = 0, room = options.max_decode_steps;
  const SampleRequest& first = live(*scheduled.front().group).request;
  for (const ScheduledRows& part : scheduled) {
    const LiveRequest& request = live(*part.group);
    const lora::AdapterVersion* const adapter = request.version.version.get();
    if (part.sequence == nullptr || part.rows != 1 || !part.draws || !request.plain() ||
        (adapter && !lora::is_plain(*adapter->layout)) || request.base != live(*scheduled.front().group).base ||
        request.request.sampling.logprob_temperature != first.sampling.logprob_temperature)
      return 0;
    longest = std::max(longest, request.max_tokens - static_cast<int64_t>(part.sequence->tokens.size()));
    room = std::min(room, config.max_positions - part.first_position);
  }
  return std::min(longest, room);
}

void Engine::Impl::decode(int64_t steps) {
  const ProfileRange range("rollout/decode");
  decode_inputs.clear();
  for (const ScheduledRows& part : scheduled)
    decode_inputs.push_back({.token = part.sequence->token(part.first_position),
                             .position = static_cast<int32_t>(part.first_position),
                             .blocks = part.table().memory(),
                             .sample = live(*part.group).draw_of(*part.sequence, 0).how,
                             .adapter = live(*part.group).version.version.get()});
  const SampleRequest& first = live(*scheduled.front().group).request;
  DecodeLoop& loop = *live(*scheduled.front().group).base->decode_loop;
  loop.run(decode_inputs, steps, 1.0f / first.sampling.logprob_temperature, decode_results);
  stats.recordings = stats.failed_recordings = 0;
  for (const auto& base : bases) {
    stats.recordings += base->decode_loop->recordings();
    stats.failed_recordings += base->decode_loop->failed_recordings();
  }
  scheduler.commit(steps);
  for (int64_t step = 0; step < steps; ++step)
    for (size_t i = 0; i < scheduled.size(); ++i) {
      if (scheduled[i].sequence->state == Sequence::State::finished) continue;
      const auto at = static_cast<size_t>(step * decode_results.stride) + i;
      take(*scheduled[i].sequence, {.token = decode_results.tokens[at], .logprob = decode_results.logprobs[at]});
    }
  std::erase_if(requests, [](const auto& entry) { return entry.second->unfinished == 0; });
}

void Engine::Impl::report_started() {
  for (const ScheduledRows& part : scheduled)
    if (LiveRequest& request = live(*part.group); !std::exchange(request.reported, true))
      events.push_back({request.ticket, Started{}});
}

namespace {

// The positions of a prompt, in these rows, for which the log-prob of the next token is still wanted. Rows that ran
// before their blocks were dropped are not scored again.
struct Positions {
  int64_t begin = 0, end = 0;
};
Positions scored_positions(const ScheduledRows& part, const LiveRequest& request) {
  if (part.sequence != nullptr || request.opened || !request.request.prompt_logprobs) return {};
  const int64_t known = std::max<int64_t>(1, static_cast<int64_t>(request.prompt_logprobs.size()));
  const int64_t end = std::min(part.first_position + part.rows, request.size() - 1);
  return {std::min(known - 1, end), end};
}

}  // namespace

void Engine::Impl::run_rows(std::span<const ScheduledRows> parts, Tensor hidden) {
  tokens.clear();
  segments.clear();
  wanted.clear();
  draws.clear();
  for (const ScheduledRows& part : parts) {
    LiveRequest& request = live(*part.group);
    const auto begin = static_cast<int64_t>(tokens.size());
    segments.push_back({.row_begin = begin,
                        .rows = part.rows,
                        .first_position = part.first_position,
                        .kv_blocks = part.table().memory(),
                        .adapter = request.version.version.get()});
    for (int64_t p = part.first_position; p < part.first_position + part.rows; ++p)
      tokens.push_back(part.sequence ? part.sequence->token(p) : request.tokens[static_cast<size_t>(p)]);
    const Positions scored = scored_positions(part, request);
    for (int64_t p = scored.begin; p < scored.end; ++p)
      wanted.push_back(static_cast<int32_t>(begin + p - part.first_position));
    if (!part.draws) continue;
    wanted.push_back(static_cast<int32_t>(begin + part.rows - 1));
    const auto add_draw = [&](Sequence& sequence) {
      draws.push_back(request.draw_of(sequence, begin + part.rows - 1));
      drawing.push_back(&sequence);
    };
    if (part.sequence)
      add_draw(*part.sequence);
    else
      for (Sequence& sequence : request.sequences) add_draw(sequence);
  }
  const model::RowBatch batch{.tokens = tokens,
                              .segments = segments,
                              .kv_layer_stride = pool.layer_stride() / dtype_bytes(activations()),
                              .wanted = wanted};
  const ProfileRange range("rollout/prefill");
  live(*parts.front().group).base->model->forward(hidden, batch, arena, stream);
}

// Log-probs of the prompts whose requests asked, as far as their rows have now been run for the first time; and the
// reports of prompts that are done.
void Engine::Impl::score_prompts(std::span<const ScheduledRows> parts, const HiddenRows& hidden) {
  int64_t begin = 0;
  for (const ScheduledRows& planned : parts) {
    const int64_t first_row = begin;
    begin += planned.rows;
    LiveRequest& request = live(*planned.group);
    if (planned.sequence != nullptr || request.opened) continue;
    std::vector<PromptLogprob>& scores = request.prompt_logprobs;
    if (const std::optional<int64_t> top = request.request.prompt_logprobs) {
      const auto [begin_position, end_position] = scored_positions(planned, request);
      if (scores.empty()) scores.push_back({.token = request.tokens[0]});
      const int64_t row_of_0 = first_row - planned.first_position, count = end_position - begin_position;
      const int64_t first_scored = row_of_0 + begin_position, last_scored = row_of_0 + end_position;
      if (count > 0)
        request.base->sampler.score(
            {hidden.values.rows(first_scored, last_scored), hidden.adapters.part(first_scored, last_scored)},
            request.tokens.subspan(static_cast<size_t>(begin_position) + 1, static_cast<size_t>(count)),
            {.top = *top,
             .candidates = request.request.prompt_candidates,
             .temperature = request.request.sampling.logprob_temperature},
            arena, scores);
    }
    if (planned.draws)
      events.push_back(
          {request.ticket, PromptDone{.cached_tokens = request.cached_tokens, .logprobs = std::move(scores)}});
  }
}

void Engine::Impl::take(Sequence& sequence, const Drawn& drawn) {
  LiveRequest& request = live(*sequence.group);
  Token token = request.take(sequence, drawn);
  const bool finished = token.finish.has_value();
  events.push_back({request.ticket, std::move(token)});
  if (finished) scheduler.finish(sequence);
}

}  // namespace lockstep::rollout
