// A conversation in a terminal: what is typed is a turn of the user, a line that begins with '/' a command (/help).
//
// Answers go to control.out as they are drawn, all else to control.info. Ctrl-C during an answer ends the answer, of
// which the conversation keeps what was said. Errors are shown and the conversation goes on as it was before them.
// Where nobody types (a pipe, a file) it is the same, one turn a line, but an interrupt ends the run, and so does the
// end of the input with an error if anything has failed.
//
// The engine keeps the keys of what was said (prefix cache), so that a turn costs its new tokens only. Answer number i
// of a session is drawn as row i: a turn that was taken back and asked again is answered anew, and a session that hears
// the same says the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "commands/conversation.h"
#include "commands/generation.h"
#include "commands/options.h"
#include "recipes/control.h"

namespace lockstep::commands {

class ChatSession {
 public:
  ChatSession(const GenerateOptions& options, Generation& generation, const recipes::Control& control);

  // Until the input ends, or /exit. Cancelled: interrupted (see above). DataError: something failed and nobody was
  // there to see it. DeviceError.
  void run();

 private:
  struct Command {
    std::string_view name, argument, help;
    void (ChatSession::*run)(const std::string& argument);
  };
  static const std::vector<Command>& commands();

  bool read_line(std::string& line);
  void hear(const std::string& line);
  void command(const std::string& line);
  void answer(const std::string& question);
  std::vector<int32_t> prompt_tokens() const;
  std::string speak(std::vector<int32_t> tokens);
  void note_end(std::optional<rollout::FinishReason> finish) const;
  void say(const std::string& text) const;

  void help(const std::string& argument);
  void reset(const std::string& argument);
  void system(const std::string& text);
  void undo(const std::string& argument);
  void save(const std::string& path);
  void set(const std::string& assignment);
  void adapter(const std::string& path);
  void stats(const std::string& argument);
  void exit(const std::string& argument);

  struct Answered {
    int64_t prompt_tokens = 0, cached_tokens = 0, tokens = 0;
    double first_ms = 0, ms = 0;
  };

  Generation& generation_;
  const recipes::Control& control_;
  rollout::Engine engine_;
  Conversation conversation_;
  std::vector<Answered> answered_;
  bool over_ = false;
  int64_t failures_ = 0;
};

}  // namespace lockstep::commands
