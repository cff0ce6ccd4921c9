#include "server/routes/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "server/http/free_memory.h"
#include "server/protocol/json_text.h"
#include "server/protocol/usage_json.h"
#include "server/routes/service.h"

namespace lockstep::server {

using service::GeneratedToken, service::GenerationUpdate;

namespace {

constexpr double kShareOfNewcomers = 0.75;        // the rest is for answers that grow
constexpr size_t kBuiltAtOnce = size_t{1} << 20;  // bytes of an answer that delays nobody

std::string version_json(int64_t version) {
  return version == lora::PolicyId::kBase ? "null" : fmt::format("{}", version);
}

ApiError too_much_held(const Service& service) {
  return {503, fmt::format("The answers of all requests hold {} of at most {} bytes: try again later, or ask for less.",
                           service.held.used(), service.held.limit())};
}

}  // namespace

Answer::Answer(Service& service, Reply reply, PreparedRequest prepared)
    : service_(service), prepared_(std::move(prepared)), reply_(std::move(reply)), held_(service.held.share()) {
  const recipes::ChoiceText::Options text{.stop = prepared_.request.sampling.stop,
                                          .include_stop = prepared_.options.include_stop,
                                          .skip_special = prepared_.options.skip_special};
  for (size_t i = 0; i < prepared_.prompts.size() * static_cast<size_t>(prepared_.request.n); ++i)
    choices_.push_back({.text = recipes::ChoiceText(service.tokenizer, text)});
  prompt_logprobs_.resize(prepared_.prompts.size());
  cached_tokens_.resize(prepared_.prompts.size());
  prompts_open_ = prepared_.prompts.size();
}

void Answer::start(uint64_t key) {
  if (!held_->take(prepared_.known_bytes, kShareOfNewcomers)) throw too_much_held(service_);
  // Prompts of one request that name one adapter are answered with one version of it, which is held here: the name may
  // be reloaded before the last of them is submitted.
  std::map<std::string, service::AdapterRegistry::Pinned> held;
  try {
    for (size_t i = 0; i < prepared_.prompts.size(); ++i) {
      service::GenerationRequest request = prepared_.request;
      request.tokens = prepared_.prompts[i].tokens;
      if (prepared_.prompts[i].adapter) request.adapter = *prepared_.prompts[i].adapter;
      if (!request.adapter.empty()) {
        service::AdapterRegistry::Pinned& pinned = held[request.adapter];
        if (!pinned) pinned = service_.serving.adapters().get(request.adapter, request.adapter_version);
        request.pinned_adapter = pinned;
      }
      if (prepared_.prompts[i].seed)
        request.sampling.seed = *prepared_.prompts[i].seed;
      else if (!prepared_.seeded)
        request.sampling.seed = service_.random_seed();
      ids_.push_back(service_.serving.submit(
          std::move(request),
          [&answers = service_.answers, key, i](GenerationUpdate update) { answers.put(key, i, std::move(update)); }));
    }
  } catch (...) {
    drop();
    throw;
  }
  reply_->on_disconnect([key, &answers = service_.answers] { answers.drop(key); });
  if (prepared_.options.stream) reply_->begin_stream({.content_type = "text/event-stream; charset=utf-8"});
}

void Answer::abort() {
  for (const service::Serving::Id id : ids_) service_.serving.cancel(id);
}

bool Answer::is_named(const Names& ids) const {
  return ids.contains(prepared_.id) || ids.contains(prepared_.name);
}

void Answer::drop() {
  over_ = gone_ = true;
  abort();
}

void Answer::update(size_t prompt, GenerationUpdate update) {
  if (over_) return;
  if (update.error) return fail({500, one_line(*update.error)});
  if (!update.prompt_logprobs.empty()) prompt_logprobs_[prompt] = std::move(update.prompt_logprobs);
  cached_tokens_[prompt] = std::max(cached_tokens_[prompt], update.cached_tokens);
  std::string out;
  if (!begun_ && prepared_.options.stream && (!update.tokens.empty() || update.done)) {
    begun_ = true;
    if (!update.tokens.empty()) version_ = std::max(version_, update.tokens.front().version);
    append_begin(out);
  }
  take(prompt, update.tokens, out);
  if (over_) return;
  if (update.done) {
    if (update.aborted) abort_rest(prompt, out);
    --prompts_open_;
  }
  if (prompts_open_ == 0) return conclude(std::move(out));
  if (!out.empty()) reply_->write(std::move(out));
}

void Answer::take(size_t prompt, std::span<GeneratedToken> tokens, std::string& out) {
  // Samples of one prompt may come mixed; each is reported once per update.
  if (prepared_.request.n > 1) std::ranges::stable_sort(tokens, {}, &GeneratedToken::index);
  while (!tokens.empty() && !over_) {
    const int64_t index = tokens[0].index;
    size_t count = 0;
    while (count < tokens.size() && tokens[count].index == index) ++count;
    const size_t place = prompt * static_cast<size_t>(prepared_.request.n) + static_cast<size_t>(index);
    Delta delta{.index = place, .choice = choices_[place], .tokens = tokens.first(count)};
    for (const GeneratedToken& token : delta.tokens) {
      if (token.finish == rollout::FinishReason::error) return fail({500, "the model's logits are not finite numbers"});
      delta.text += text_of(delta.choice, token);
      delta.choice.version = std::max(delta.choice.version, token.version);
    }
    version_ = std::max(version_, delta.choice.version);
    delta.choice.num_tokens += static_cast<int64_t>(count);
    if (prepared_.discard) {
      delta.text.clear();
      delta.tokens = {};
    }
    const size_t before = choice_bytes(place);
    report(delta, out);
    const size_t after = choice_bytes(place);
    if (after > before && !held_->take(after - before)) return fail(too_much_held(service_));
    tokens = tokens.subspan(count);
  }
}

std::string Answer::text_of(Choice& choice, const GeneratedToken& token) {
  if (!token.finish) return choice.text.push(token.token);
  choice.finished = true;
  choice.finish_reason = rollout::finish_reason_name(*token.finish);
  if (*token.finish == rollout::FinishReason::length) {
    std::string text = choice.text.push(token.token);
    return text + choice.text.finish();
  }
  if (token.stop_index >= 0) {
    const auto stop = static_cast<size_t>(token.stop_index);
    choice.matched = json_string(prepared_.request.sampling.stop[stop]);
    return choice.text.finish_by_text(token.token, stop);
  }
  const std::vector<int32_t>& ends = service_.rules.end_tokens;
  choice.matched = fmt::format("{}", token.token);
  choice.by_end_token = !ends.empty() && token.token == ends.front();
  return choice.text.finish_by_token(token.token);
}

void Answer::report(Delta& delta, std::string& out) {
  Choice& choice = delta.choice;
  delta.first = !std::exchange(choice.begun, true);
  const bool stream = prepared_.options.stream;
  if (!stream || keep_) {
    choice.content += delta.text;
    for (const GeneratedToken& token : delta.tokens) {
      choice.tokens.push_back(token.token);
      choice.versions.push_back(token.version);
    }
    collect(delta);
  }
  if (stream) append_delta(out, delta);
}

void Answer::abort_rest(size_t prompt, std::string& out) {
  const auto n = static_cast<size_t>(prepared_.request.n);
  for (size_t place = prompt * n; place < (prompt + 1) * n; ++place) {
    Choice& choice = choices_[place];
    if (choice.finished) continue;
    choice.finished = true;
    choice.finish_reason = "abort";
    Delta delta{.index = place, .choice = choice, .text = choice.text.finish()};
    report(delta, out);
  }
}

void Answer::append_error(std::string& out, const ApiError& error) {
  out += "data: " + error_body(error) + "\n\n";
}

void Answer::fail(const ApiError& error) {
  drop();
  if (!prepared_.options.stream) return reply_->send(this->error(error));
  std::string out;
  append_error(out, error);
  reply_->write(out + "data: [DONE]\n\n");
  reply_->end_stream();
}

void Answer::conclude(std::string out) {
  over_ = true;
  if (!prepared_.options.stream) {
    unsent_ = held_->bytes() > kBuiltAtOnce;
    return unsent_ ? void() : send_body();  // Answers has large ones built
  }
  append_end(out);
  reply_->write(out + "data: [DONE]\n\n");
  reply_->end_stream();
}

void Answer::send_body() noexcept {
  if (gone_) return;
  try {
    std::string body;
    if (held_->bytes() > kBuiltAtOnce) body.reserve(held_->bytes());
    append_body(body);
    held_->become(body.size());
    HttpResponse response = json_response(std::move(body));
    response.held = held_;
    reply_->send(std::move(response));
  } catch (...) {
    reply_->send(error(api_error(std::current_exception())));
  }
  choices_.clear();
  prompt_logprobs_.clear();
}

size_t Answer::choice_bytes(size_t index) const {
  const Choice& choice = choices_[index];
  return choice.content.size() + choice.tokens.size() * sizeof(int32_t) + choice.versions.size() * sizeof(int64_t);
}

void Answer::append_usage_event(std::string& out, const std::string& head) const {
  if (!options().include_usage) return;
  out += "data: " + head + R"(],"usage":)" + stream_usage_json(usage(), service_.options.prompt_tokens_details);
  append_fingerprint(out);
  append_version(out);
  out += "}\n\n";
}

Usage Answer::usage() const {
  Usage usage;
  for (const PromptInput& prompt : prepared_.prompts) usage.prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
  for (const int64_t cached : cached_tokens_) usage.cached_tokens += cached;
  if (!prepared_.discard)
    for (const Choice& choice : choices_) usage.completion_tokens += choice.num_tokens;
  return usage;
}

void Answer::append_choice_tokens(std::string& out, const Choice& choice) const {
  out += R"(,"token_ids":)";
  if (options().return_token_ids)
    append_ids(out, choice.tokens);
  else
    out += "null";
  if (options().return_token_versions) append_versions(out, choice.versions);
}

void Answer::append_tokens(std::string& out, const Delta& delta) const {
  std::vector<int32_t> ids;
  std::vector<int64_t> versions;
  for (const GeneratedToken& token : delta.tokens) {
    ids.push_back(token.token);
    versions.push_back(token.version);
  }
  out += R"(,"token_ids":)";
  if (options().return_token_ids)
    append_ids(out, ids);
  else
    out += "null";
  if (options().return_token_versions) append_versions(out, versions);
}

void Answer::append_fingerprint(std::string& out) const {
  out += R"(,"system_fingerprint":)";
  append_string(out, service_.fingerprint());
}

void Answer::append_version(std::string& out, const Choice& choice) {
  out += R"(,"adapter_version":)" + version_json(choice.version);
}

void Answer::append_version(std::string& out) const {
  out += R"(,"adapter_version":)" + version_json(version_);
}

uint64_t Answers::start(std::shared_ptr<Answer> answer) {
  const uint64_t key = next_key_++;
  const auto kept = open_.emplace(key, std::move(answer)).first->second;
  try {
    kept->start(key);
  } catch (...) {
    open_.erase(key);
    throw;
  }
  return key;
}

void Answers::put(uint64_t key, size_t prompt, GenerationUpdate update) {
  {
    const std::scoped_lock lock(mutex_);
    inbox_.push_back({key, prompt, std::move(update)});
    if (std::exchange(posted_, true)) return;
  }
  loop_.post([this] { empty_box(); });
}

void Answers::empty_box() {
  std::vector<Message> messages;
  {
    const std::scoped_lock lock(mutex_);
    messages.swap(inbox_);
    posted_ = false;
  }
  for (Message& message : messages) {
    const auto found = open_.find(message.key);
    if (found == open_.end()) continue;
    const std::shared_ptr<Answer> answer = found->second;
    try {
      answer->update(message.prompt, std::move(message.update));
    } catch (...) {
      answer->fail(api_error(std::current_exception()));
    }
    if (answer->take_unsent())
      build_beside(message.key, answer);
    else if (answer->over())
      open_.erase(message.key);
  }
}

// It stays among the open ones until it is sent.
void Answers::build_beside(uint64_t key, std::shared_ptr<Answer> answer) {
  builder_.post([this, key, answer = std::move(answer)]() {
    answer->send_body();
    loop_.post([this, key] {
      open_.erase(key);
      builder_.post(give_memory_back);
    });
  });
}

void Answers::drop(uint64_t key) {
  const auto found = open_.find(key);
  if (found == open_.end()) return;
  found->second->drop();
  open_.erase(found);
}

void Answers::fail(uint64_t key, const ApiError& error) {
  const auto found = open_.find(key);
  if (found == open_.end()) return;
  found->second->fail(error);
  open_.erase(found);
}

int64_t Answers::abort(const Names& ids) {
  int64_t count = 0;
  for (const auto& [key, answer] : open_)
    if (answer->is_named(ids)) {
      answer->abort();
      ++count;
    }
  return count;
}

}  // namespace lockstep::server
