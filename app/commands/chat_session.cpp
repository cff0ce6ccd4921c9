#include "commands/chat_session.h"

#include <fmt/format.h>

#include <istream>
#include <ostream>
#include <utility>

#include "core/fs.h"
#include "core/nearest_name.h"
#include "recipes/chat.h"
#include "recipes/run_log.h"
#include "recipes/sampling_fields.h"

namespace lockstep::commands {

namespace {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? ""
                                         : std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

double rate(int64_t tokens, double ms) {
  return ms > 0 ? 1000 * static_cast<double>(tokens) / ms : 0;
}

std::string adapter_text(const ChosenAdapter& adapter) {
  if (!adapter.version) return "no adapter: the base answers";
  const auto& [name, version] = adapter.version->policy;
  return fmt::format("adapter {}, version {}, rank {}", name, version, lora::largest_rank(*adapter.version->layout));
}

}  // namespace

ChatSession::ChatSession(const GenerateOptions& options, Generation& generation, const recipes::Control& control)
    : generation_(generation),
      control_(control),
      engine_(generation.base.model,
              {.kv_bytes = options.kv_bytes, .tokenizer = &generation.tokenizer, .prefix_cache = true},
              generation.stream),
      conversation_(recipes::load_chat_template(generation.base.path.string(), options.chat), options.chat) {
  generation_.adapter.hold_in(engine_);
}

const std::vector<ChatSession::Command>& ChatSession::commands() {
  static const std::vector<Command> all = {
      {"/help", "", "this list", &ChatSession::help},
      {"/reset", "", "begin anew; what /system said stays", &ChatSession::reset},
      {"/system", "TEXT", "the system prompt; nothing: none", &ChatSession::system},
      {"/undo", "", "take the last turn and its answer back", &ChatSession::undo},
      {"/save", "FILE", "the conversation as a row {\"messages\": [...]}, as sft, render and generate read it",
       &ChatSession::save},
      {"/set", "FIELD VALUE", "a sampling field (temperature 0.7, max_tokens 500, stop \"\\n\"); nothing: show all",
       &ChatSession::set},
      {"/adapter", "DIR|off", "answer with another adapter from now on; nothing: show it", &ChatSession::adapter},
      {"/stats", "", "speed, and tokens in the context", &ChatSession::stats},
      {"/exit", "", "end, as Ctrl-D does", &ChatSession::exit}};
  return all;
}

void ChatSession::say(const std::string& text) const {
  *control_.info << text << std::endl;
}

void ChatSession::run() {
  say(adapter_text(generation_.adapter));
  if (!conversation_.has_template())
    say("note    the model has no chat template: it continues the text as you type it (--chat-template FILE gives "
        "one)");
  if (control_.in_terminal) say("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends");
  for (std::string line; !over_ && read_line(line);) {
    try {
      hear(line);
    } catch (const DeviceError&) {
      throw;
    } catch (const Cancelled&) {
      throw;
    } catch (const Error& error) {
      ++failures_;
      say(fmt::format("error: {}", error.what()));
    }
  }
  if (failures_ > 0 && !control_.in_terminal)
    throw DataError(
        {.what = "not all of the conversation could be had", .got = fmt::format("{} errors, shown above", failures_)});
}

// The next line; false: no more.
bool ChatSession::read_line(std::string& line) {
  constexpr const char* kPrompt = "> ";
  if (control_.in_terminal) *control_.info << kPrompt << std::flush;
  while (!control_.await_input()) {
    if (control_.in_terminal && control_.forget_interrupt())
      *control_.info << "\n(Ctrl-D ends)\n" << kPrompt << std::flush;
    else if (control_.interrupted())
      throw Cancelled({.what = "interrupted"});
  }
  if (std::getline(*control_.in, line)) return true;
  if (control_.in_terminal) say("");
  return false;
}

void ChatSession::hear(const std::string& line) {
  const std::string text = trimmed(line);
  if (text.empty()) return;
  if (text.starts_with("//")) return answer(text.substr(1));
  if (text.starts_with('/')) return command(text);
  // Without a template the spaces of a text are part of it.
  answer(conversation_.has_template() ? text : line);
}

void ChatSession::command(const std::string& line) {
  const size_t end = line.find_first_of(" \t");
  const std::string name = line.substr(0, end);
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name == name) return (this->*command.run)(end == std::string::npos ? "" : trimmed(line.substr(end)));
    names.emplace_back(command.name);
  }
  throw ConfigError({.what = "no such command",
                     .got = name,
                     .attempt = nearest_name(name, names) + ", or /help; a turn that begins with / is typed with //"});
}

void ChatSession::answer(const std::string& question) {
  conversation_.user(question);
  std::string said;
  try {
    said = speak(prompt_tokens());
  } catch (...) {
    engine_.cancel_all();
    conversation_.undo();
    throw;
  }
  if (said.empty() && answered_.back().tokens == 0) {
    conversation_.undo();
    return say("(stopped before the first word: the turn is taken back)");
  }
  conversation_.assistant(said);
}

std::vector<int32_t> ChatSession::prompt_tokens() const {
  std::vector<int32_t> tokens = generation_.tokenizer.encode(conversation_.prompt());
  if (const auto count = static_cast<int64_t>(tokens.size()); count >= generation_.base.config.max_positions)
    throw DataError({.what = "the conversation does not fit the model's context; your turn was not taken",
                     .got = fmt::format("{} tokens", count),
                     .wanted = fmt::format("fewer than {}", generation_.base.config.max_positions),
                     .attempt = "a shorter turn, /undo to take earlier ones back, or /reset to begin anew"});
  return tokens;
}

// Draws and shows an answer; returns its text.
std::string ChatSession::speak(std::vector<int32_t> tokens) {
  Answered now{.prompt_tokens = static_cast<int64_t>(tokens.size())};
  recipes::ChoiceText text(generation_.tokenizer, {.stop = generation_.sampling.stop});
  std::string said;
  std::optional<rollout::FinishReason> finish;
  if (control_.in_terminal) control_.forget_interrupt();  // one from before the answer
  const Stopwatch watch;
  const rollout::Ticket ticket = engine_.submit({.tokens = std::move(tokens),
                                                 .sampling = generation_.sampling,
                                                 .row = static_cast<uint32_t>(answered_.size()),
                                                 .policy = generation_.adapter.policy()});
  while (!finish) {
    if (control_.in_terminal && control_.forget_interrupt()) {
      engine_.cancel(ticket);
      const std::string rest = text.finish();
      *control_.out << control_.shown(rest);
      said += rest;
      break;
    }
    if (control_.interrupted()) throw Cancelled({.what = "interrupted"});
    for (const rollout::Event& event : engine_.wait(rollout::kAtOnce)) {
      if (const auto* prompt = std::get_if<rollout::PromptDone>(&event.what)) now.cached_tokens = prompt->cached_tokens;
      const rollout::Token* const out = rollout::token_of(event);
      if (!out) continue;
      require_finite(*out, "the answer");
      if (now.tokens++ == 0) now.first_ms = watch.ms();
      const std::string shown = next_text(text, *out);
      *control_.out << control_.shown(shown) << std::flush;
      said += shown;
      finish = out->finish;
    }
  }
  now.ms = watch.ms();
  answered_.push_back(now);
  *control_.out << std::endl;
  note_end(finish);
  return said;
}

void ChatSession::note_end(std::optional<rollout::FinishReason> finish) const {
  const Answered& last = answered_.back();
  if (!finish)
    say("(stopped)");
  else if (*finish == rollout::FinishReason::length && last.tokens >= generation_.sampling.max_tokens)
    say(fmt::format("(cut after {} tokens: /set max_tokens N allows more)", last.tokens));
  else if (*finish == rollout::FinishReason::length)
    say(fmt::format("(cut: the context of {} tokens is full; /undo takes turns back, /reset begins anew)",
                    generation_.base.config.max_positions));
}

void ChatSession::help(const std::string&) {
  for (const Command& command : commands())
    say(fmt::format("{:<22}{}", fmt::format("{} {}", command.name, command.argument), command.help));
  say("Every other line is your turn; one that begins with / is typed with //.");
  say("Ctrl-C stops an answer, Ctrl-D ends.");
}

void ChatSession::reset(const std::string&) {
  conversation_.reset();
  say("(the conversation begins anew)");
}

void ChatSession::system(const std::string& text) {
  conversation_.system(text);
  say(text.empty() ? "(no system text)" : "(from the next answer on)");
}

void ChatSession::undo(const std::string&) {
  say(conversation_.undo() ? fmt::format("({} turns left)", conversation_.turns()) : "(there is no turn to take back)");
}

void ChatSession::save(const std::string& path) {
  if (path.empty()) throw ConfigError({.what = "/save needs a file", .attempt = "/save conversation.jsonl"});
  const OrderedJson row = {{"messages", conversation_.messages()}};
  fs::write_file_atomic(path, json_text(row) + "\n");
  say(fmt::format("({} messages in {})", row["messages"].size(), path));
}

void ChatSession::set(const std::string& assignment) {
  if (!assignment.empty()) {
    const size_t end = assignment.find_first_of(" \t");
    const std::string value = end == std::string::npos ? "" : trimmed(assignment.substr(end));
    recipes::set_sampling_field(generation_.sampling, assignment.substr(0, end), value);
  }
  const OrderedJson fields = recipes::sampling_json(generation_.sampling);
  for (const auto& [name, value] : fields.items()) say(fmt::format("{:<20}{}", name, json_text(value)));
}

void ChatSession::adapter(const std::string& path) {
  if (!path.empty()) {
    ChosenAdapter chosen = path == "off" ? ChosenAdapter() : choose_adapter(path, generation_.base, control_);
    engine_.versions().drop(generation_.adapter.policy());
    generation_.adapter = std::move(chosen);
    generation_.adapter.hold_in(engine_);
  }
  say(adapter_text(generation_.adapter));
}

void ChatSession::stats(const std::string&) {
  int64_t tokens = 0;
  double ms = 0;
  for (const Answered& one : answered_) tokens += one.tokens, ms += one.ms;
  say(fmt::format("answers {}, {} tokens, {:.1f} tok/s", answered_.size(), tokens, rate(tokens, ms)));
  if (!answered_.empty()) {
    const Answered& last = answered_.back();
    say(fmt::format("last    {} tokens in {}, {:.1f} tok/s, the first after {:.0f} ms", last.tokens,
                    recipes::duration_text(last.ms / 1000), rate(last.tokens, last.ms), last.first_ms));
    say(fmt::format("prompt  {} tokens, {} of them from the prefix cache", last.prompt_tokens, last.cached_tokens));
  }
  const size_t context = conversation_.turns() == 0 ? 0 : generation_.tokenizer.encode(conversation_.prompt()).size();
  say(fmt::format("context {} of {} tokens, {} turns; {}", context, generation_.base.config.max_positions,
                  conversation_.turns(), adapter_text(generation_.adapter)));
}

void ChatSession::exit(const std::string&) {
  over_ = true;
}

}  // namespace lockstep::commands
