// lockstep render: what a chat template makes of conversations, and which part of it assistant-only training would
// learn.
#include <cstdlib>
#include <ostream>

#include "checkpoint/hf_directory.h"
#include "core/fs.h"
#include "recipes/base.h"
#include "recipes/chat.h"
#include "recipes/commands.h"
#include "text/dataset.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kGenerated = "\033[30;42m";
constexpr const char* kPlain = "\033[0m";

class Renderer {
 public:
  Renderer(const RenderOptions& options, const Control& control)
      : options_(options), control_(control), template_(load(options)) {
    if (!options.tools.empty()) {
      tools_ = OrderedJson::parse(fs::read_file(options.tools), nullptr, false);
      if (!tools_.is_array()) throw DataError({.what = "tools are a JSON list of schemas", .where = options.tools});
    }
  }

  void add(const OrderedJson& row, const std::string& key, const std::string& where) {
    text::ChatInput input = chat_input(row, key, options_.chat, where);
    if (input.tools.is_null()) input.tools = tools_;
    input.add_generation_prompt = options_.add_generation_prompt;
    input.continue_final_message = options_.continue_final_message;
    const text::Rendered rendered = render_chat(template_, input, where);
    if (options_.output.empty() && (control_.out_terminal || options_.prompt)) return show(rendered);
    OrderedJson spans = OrderedJson::array();
    for (const text::Span& span : rendered.generation_spans) spans.push_back({span.begin, span.end});
    const OrderedJson line = {{"text", rendered.text}, {"spans", std::move(spans)}};
    if (options_.output.empty())
      *control_.out << line.dump() << "\n";
    else
      lines_ += line.dump() + "\n";
  }

  void close() {
    if (!options_.output.empty()) fs::write_file_atomic(options_.output, lines_);
  }

 private:
  static text::ChatTemplate load(const RenderOptions& options) {
    std::string directory;
    if (!options.hf_checkpoint.empty()) directory = model_directory({.hf_checkpoint = options.hf_checkpoint}).string();
    auto found = load_chat_template(directory, options.chat);
    if (!found)
      throw DataError(
          {.what = "the model has no chat template", .where = directory, .attempt = "--chat-template FILE"});
    return *std::move(found);
  }

  // The text; on a terminal, what {% generation %} blocks made is coloured.
  void show(const text::Rendered& rendered) const {
    if (!control_.out_terminal) {
      *control_.out << rendered.text << "\n";
      return;
    }
    std::string shown;
    for (size_t i = 0; i < rendered.text.size(); ++i) {
      const bool generated = inside(rendered, i), before = i > 0 && inside(rendered, i - 1);
      const bool break_ended = i > 0 && rendered.text[i - 1] == '\n';
      // A background would run on to the end of the line behind a line break, so it pauses there.
      if (generated && (!before || break_ended)) shown += kGenerated;
      if ((!generated && before) || (generated && rendered.text[i] == '\n')) shown += kPlain;
      shown += rendered.text[i];
    }
    *control_.out << shown << kPlain << "\n";
  }

  static bool inside(const text::Rendered& rendered, size_t place) {
    for (const text::Span& span : rendered.generation_spans)
      if (place >= span.begin && place < span.end) return true;
    return false;
  }

  const RenderOptions& options_;
  const Control& control_;
  const text::ChatTemplate template_;
  OrderedJson tools_;
  std::string lines_;
};

}  // namespace

void run_render(const RenderOptions& options, const Control& control) {
  Renderer renderer(options, control);
  if (options.prompt) {
    renderer.add({{"prompt", *options.prompt}}, "prompt", "--prompt");
  } else {
    text::Dataset data = text::Dataset::open(options.input);
    while (const auto next = data.next()) {
      const text::Row& row = *next;
      if (control.interrupted()) throw Cancelled({.what = "interrupted", .where = data.where(row)});
      renderer.add(row.json, options.input_key, data.where(row));
    }
  }
  renderer.close();
}

}  // namespace lockstep::recipes
