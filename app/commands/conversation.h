// Who said what, and what the model is asked to go on with.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "recipes/options.h"
#include "text/chat_template.h"

namespace lockstep::commands {

class Conversation {
 public:
  // Without a template the model continues a plain text: what was said, one after the other, with nothing in between.
  Conversation(std::optional<text::ChatTemplate> chat_template, recipes::ChatOptions options);
  bool has_template() const { return template_.has_value(); }

  void system(const std::string& text);  // takes the place of what was there; empty: none
  void user(const std::string& text);
  void assistant(const std::string& text);
  bool undo();   // forgets the last turn of the user and its answer; false: there is none
  void reset();  // forgets all turns; the system's text stays

  int64_t turns() const;         // of the user
  std::string prompt() const;    // DataError: what the template refuses
  OrderedJson messages() const;  // [{"role", "content"}]

 private:
  const std::optional<text::ChatTemplate> template_;
  const recipes::ChatOptions options_;
  std::string system_;
  OrderedJson turns_ = OrderedJson::array();
};

}  // namespace lockstep::commands
