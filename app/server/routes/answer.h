// One client's request for text: its samples as they grow, and the bytes that are sent about them.
//
// Answers live on the server's thread. The engine's thread only puts updates into a box (Answers::put), which the
// server's thread empties: one task for all that a step made.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipes/choice_text.h"
#include "server/http/byte_budget.h"
#include "server/http/loop.h"
#include "server/protocol/answer_options.h"
#include "server/protocol/api_error.h"
#include "server/protocol/usage_json.h"
#include "server/routes/route.h"
#include "service/serving.h"

namespace lockstep::server {

struct PromptInput {
  std::vector<int32_t> tokens;
  std::string text = {};                    // of an echo
  std::optional<std::string> adapter = {};  // instead of the request's
  std::optional<uint64_t> seed = {};        // as well
};

// What is asked of the engine, and how it is answered.
struct PreparedRequest {
  std::string id;     // of the request, as the client sees it
  std::string name;   // the same without the route's prefix
  std::string model;  // the name it asked for
  std::vector<PromptInput> prompts;
  service::GenerationRequest request;  // of each prompt, without its tokens
  size_t known_bytes = 0;              // of the answer, whatever is generated (answer_size.h)
  bool seeded = false;                 // else each prompt draws a seed
  bool discard = false;                // nothing but the prompt is wanted: one token is made and not returned
  AnswerOptions options;
};

using Names = std::unordered_set<std::string>;

struct Choice {
  recipes::ChoiceText text;
  int64_t num_tokens = 0;
  std::string content = {};            // all of the text so far, where the answer is sent when it is complete
  std::vector<int32_t> tokens = {};    // likewise
  std::vector<int64_t> versions = {};  // likewise
  int64_t version = -1;                // the newest that made a token; lora::PolicyId::kBase: the base
  bool begun = false, finished = false;
  const char* finish_reason = nullptr;  // "stop", "length", "abort"
  std::string matched = "null";         // JSON: the stop string or token that ended it
  bool by_end_token = false;            // the model's own
};

// What an update adds to one choice.
struct Delta {
  size_t index = 0;  // of the choice
  Choice& choice;
  std::string text = {};
  std::span<const service::GeneratedToken> tokens = {};
  bool first = false;  // of this choice
};

// A text made once for each prompt, when it is needed first: every choice of the prompt repeats it.
class PromptTexts {
 public:
  explicit PromptTexts(size_t num_prompts) : texts_(num_prompts) {}
  // What make() returned for this prompt.
  template <class Make>
  const std::string& get(size_t prompt, const Make& make) {
    std::optional<std::string>& text = texts_[prompt];
    if (!text) text = make();
    return *text;
  }
  void forget(size_t prompt) { texts_[prompt].reset(); }

 private:
  std::vector<std::optional<std::string>> texts_;
};

class Answer {
 public:
  // `service` outlives it.
  Answer(Service& service, Reply reply, PreparedRequest prepared);
  virtual ~Answer() = default;

  // Submits every prompt. What submit() throws leaves nothing in flight; the caller reports it. ApiError 503: the
  // answers of all requests hold too much.
  void start(uint64_t key);
  void update(size_t prompt, service::GenerationUpdate update);
  void abort();                                   // its end comes as the engine's last updates
  void fail(const ApiError& error);               // answers the client with the error and aborts
  void drop();                                    // the client is gone: aborts and says nothing more
  virtual bool is_named(const Names& ids) const;  // by its id, with or without the prefix
  bool over() const { return over_; }

  // True once, for a whole answer that is complete but too large to be built on the server's thread. What remains is
  // send_body(), on any thread, beside which the server's may still call drop(), abort() and is_named().
  bool take_unsent() { return std::exchange(unsent_, false); }
  void send_body() noexcept;

 protected:
  // These write a stream: the events before the first delta, of a delta, and at the end (but not [DONE]).
  virtual void append_begin(std::string&) {}
  virtual void append_delta(std::string& out, const Delta& delta) = 0;
  virtual void append_end(std::string&) {}
  // These write an answer that is sent as a whole. collect() keeps what it needs of a delta besides text, tokens and
  // versions; choice_bytes() is the memory of a choice so far; append_body() writes the body, once.
  virtual void collect(const Delta&) {}
  virtual size_t choice_bytes(size_t index) const;
  virtual void append_body(std::string& out) = 0;
  virtual void append_error(std::string& out, const ApiError& error);
  virtual HttpResponse error(const ApiError& error) { return error_response(error); }

  const AnswerOptions& options() const { return prepared_.options; }
  // Every choice, written by append(index), with commas between them.
  template <class Append>
  void append_choices(std::string& out, const Append& append) const {
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      append(i);
    }
  }
  // The last event of OpenAI's streams: `head`, which ends in "choices":[, and the usage if it is asked for.
  void append_usage_event(std::string& out, const std::string& head) const;
  // ,"token_ids": those of the delta, or of the whole choice, or null; and "token_versions" if they are asked for.
  void append_tokens(std::string& out, const Delta& delta) const;
  void append_choice_tokens(std::string& out, const Choice& choice) const;
  void append_fingerprint(std::string& out) const;  // ,"system_fingerprint":
  // ,"adapter_version": the newest that made a token of this choice, or of any; null: the base.
  static void append_version(std::string& out, const Choice& choice);
  void append_version(std::string& out) const;

  Usage usage() const;
  size_t prompt_of(size_t choice) const { return choice / static_cast<size_t>(prepared_.request.n); }
  // JSON: what stopped it, null for the end token.
  static const char* stop_reason(const Choice& choice) { return choice.by_end_token ? "null" : choice.matched.c_str(); }

  Service& service_;
  PreparedRequest prepared_;
  std::vector<Choice> choices_;                                       // prompt-major
  std::vector<std::vector<rollout::PromptLogprob>> prompt_logprobs_;  // of each prompt
  std::vector<int64_t> cached_tokens_;                                // likewise
  bool keep_ = false;  // keep content, tokens and versions of choices also while streaming

 private:
  void take(size_t prompt, std::span<service::GeneratedToken> tokens, std::string& out);
  std::string text_of(Choice& choice, const service::GeneratedToken& token);
  void report(Delta& delta, std::string& out);
  void abort_rest(size_t prompt, std::string& out);
  void conclude(std::string out);

  Reply reply_;
  std::shared_ptr<ByteBudget::Share> held_;
  std::vector<service::Serving::Id> ids_;
  size_t prompts_open_ = 0;
  int64_t version_ = -1;
  bool begun_ = false, over_ = false, unsent_ = false;
  std::atomic<bool> gone_ = false;  // the client
};

// The answers that are not complete, or not sent yet.
class Answers {
 public:
  // Large answers are built on `builder`, which ends before this object does.
  Answers(Loop loop, Worker& builder) : loop_(std::move(loop)), builder_(builder) {}

  // Keeps and starts it; returns its key. Throws what Answer::start throws.
  uint64_t start(std::shared_ptr<Answer> answer);
  // For the engine's thread.
  void put(uint64_t key, size_t prompt, service::GenerationUpdate update);
  int64_t abort(const Names& ids);                 // how many have one of these names
  void drop(uint64_t key);                         // its client is gone
  void fail(uint64_t key, const ApiError& error);  // unless it is complete
  size_t size() const { return open_.size(); }

 private:
  struct Message {
    uint64_t key;
    size_t prompt;
    service::GenerationUpdate update;
  };
  void empty_box();
  void build_beside(uint64_t key, std::shared_ptr<Answer> answer);

  Loop loop_;
  Worker& builder_;
  std::unordered_map<uint64_t, std::shared_ptr<Answer>> open_;
  uint64_t next_key_ = 0;
  std::mutex mutex_;  // of what follows
  std::vector<Message> inbox_;
  bool posted_ = false;
};

}  // namespace lockstep::server
