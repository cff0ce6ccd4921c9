// lockstep render: what a chat template makes of conversations, and which part of it assistant-only training would
// learn; or what training makes of a row of any shape.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "checkpoint/hf_directory.h"
#include "commands/commands.h"
#include "commands/output_file.h"
#include "core/fs.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "data/dataset.h"
#include "recipes/base.h"
#include "recipes/chat.h"
#include "recipes/row_tokens.h"

namespace lockstep::commands {

namespace {

constexpr const char* kMarked = "\033[30;42m";
constexpr const char* kPlain = "\033[0m";

bool inside(const std::vector<text::Span>& spans, size_t place) {
  return std::ranges::any_of(spans, [place](const text::Span& s) { return place >= s.begin && place < s.end; });
}

std::string coloured(const std::string& text, const std::vector<text::Span>& spans) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const std::string_view character =
        std::string_view(text).substr(i, read_utf8(std::string_view(text).substr(i)).size);
    const bool marked = inside(spans, i), before = i > 0 && inside(spans, i - 1);
    const bool break_ended = i > 0 && text[i - 1] == '\n';
    // A background would run on to the end of the line behind a line break, so it pauses there.
    if (marked && (!before || break_ended)) shown += kMarked;
    if ((!marked && before) || (marked && text[i] == '\n')) shown += kPlain;
    shown += printable(character, Lines::kept);
    i += character.size();
  }
  return shown + kPlain;
}

class Renderer {
 public:
  Renderer(const RenderOptions& options, const recipes::Control& control)
      : options_(options), control_(control), template_(load(options)) {
    if (!options.tools.empty()) {
      tools_ = OrderedJson::parse(fs::read_file(options.tools), nullptr, false);
      if (!tools_.is_array()) throw DataError({.what = "tools are a JSON list of schemas", .where = options.tools});
    }
  }

  void add(const OrderedJson& row, const std::string& key, const std::string& where) {
    text::ChatInput input = recipes::chat_input(row, key, options_.chat, where);
    if (input.tools.is_null()) input.tools = tools_;
    input.add_generation_prompt = options_.add_generation_prompt;
    input.continue_final_message = options_.continue_final_message;
    const text::Rendered rendered = recipes::render_chat(template_, input, where);
    if (options_.output.empty() && (control_.out_terminal || options_.prompt)) return show(rendered);
    OrderedJson spans = OrderedJson::array();
    for (const text::Span& span : rendered.generation_spans) spans.push_back({span.begin, span.end});
    const OrderedJson line = {{"text", rendered.text}, {"spans", std::move(spans)}};
    if (options_.output.empty())
      *control_.out << control_.shown(json_text(line)) << "\n";
    else
      lines_ += json_text(line) + "\n";
  }

  void close() {
    if (!options_.output.empty()) fs::write_file_atomic(options_.output, lines_);
  }

 private:
  static text::ChatTemplate load(const RenderOptions& options) {
    std::string directory;
    if (!options.hf_checkpoint.empty())
      directory = load::model_directory(options.hf_checkpoint, load::caches_below(options.home)).string();
    auto found = recipes::load_chat_template(directory, options.chat);
    if (!found)
      throw DataError(
          {.what = "the model has no chat template", .where = directory, .attempt = "--chat-template FILE"});
    return *std::move(found);
  }

  // The text; on a terminal, what {% generation %} blocks made is coloured.
  void show(const text::Rendered& rendered) const {
    *control_.out << (control_.out_terminal ? coloured(rendered.text, rendered.generation_spans) : rendered.text)
                  << "\n";
  }

  const RenderOptions& options_;
  const recipes::Control& control_;
  const text::ChatTemplate template_;
  OrderedJson tools_;
  std::string lines_;
};

// Rows as training reads them. Weights are written as they are, 0 and 1 as integers: such a line is itself a row.
class RowRenderer {
 public:
  RowRenderer(const RenderOptions& options, const recipes::Control& control)
      : options_(options),
        control_(control),
        rows_{.messages_key = options.input_key, .chat = options.chat, .loss_mask = options.loss_mask},
        base_(load::read_base_config(options.hf_checkpoint, load::caches_below(options.home))),
        row_tokenizer_(base_, rows_),
        tokenizer_(text::Tokenizer::load(base_.path.string())) {}

  void add(const OrderedJson& row) {
    if (!row.contains("chosen") || row["chosen"].is_null()) return write(row_tokenizer_.sequence(row));
    const std::array<recipes::RowTokens, 2> sides = row_tokenizer_.preference(row);
    if (coloured_output()) {
      for (const recipes::RowTokens& side : sides) write(side);
      return;
    }
    write_line({{"chosen", json(sides[0])}, {"rejected", json(sides[1])}});
  }

  void close() {
    if (!options_.output.empty()) fs::write_file_atomic(options_.output, lines_);
  }

 private:
  bool coloured_output() const { return control_.out_terminal && options_.output.empty(); }

  void write(const recipes::RowTokens& row) {
    if (!coloured_output()) return write_line(json(row));
    text::StreamingDecoder decoder(tokenizer_, false);
    std::string text;
    std::vector<text::Span> targets;
    int64_t count = 0;
    for (size_t i = 0; i <= row.tokens.size(); ++i) {
      const size_t begin = text.size();
      text += i < row.tokens.size() ? decoder.push(row.tokens[i]) : decoder.finish();
      const bool target = row.weights[std::min(i, row.tokens.size() - 1)] > 0;
      if (target) targets.push_back({begin, text.size()});
      count += target && i < row.tokens.size();
    }
    *control_.out << coloured(text, targets)
                  << fmt::format("\n{} of {} tokens are targets\n", count, row.tokens.size());
  }

  OrderedJson json(const recipes::RowTokens& row) const {
    OrderedJson weights = OrderedJson::array();
    for (const float weight : row.weights)
      weights.push_back(weight == 0 || weight == 1 ? OrderedJson(static_cast<int>(weight)) : OrderedJson(weight));
    return {{"tokens", row.tokens}, {"loss_mask", std::move(weights)}, {"text", tokenizer_.decode(row.tokens)}};
  }

  void write_line(const OrderedJson& line) {
    const std::string text = json_text(line) + "\n";
    if (options_.output.empty())
      *control_.out << control_.shown(text);
    else
      lines_ += text;
  }

  const RenderOptions& options_;
  const recipes::Control& control_;
  const recipes::RowOptions rows_;
  const load::Base base_;
  recipes::RowTokenizer row_tokenizer_;
  const text::Tokenizer tokenizer_;
  std::string lines_;
};

void render_tokens(const RenderOptions& options, const recipes::Control& control) {
  RowRenderer renderer(options, control);
  data::Dataset data = data::Dataset::open(options.input);
  require_not_input(options.output, data.path());
  while (const auto row = data.next()) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted", .where = data.where(*row)});
    try {
      renderer.add(row->json);
    } catch (const DataError& error) {
      Fault fault = error.fault();
      fault.where = data.where(*row) + (fault.where.empty() ? "" : ", " + fault.where);
      throw DataError(std::move(fault));
    }
  }
  renderer.close();
}

}  // namespace

void run_render(const RenderOptions& options, const recipes::Control& control) {
  if (options.tokens) return render_tokens(options, control);
  Renderer renderer(options, control);
  if (options.prompt) {
    renderer.add({{"prompt", *options.prompt}}, "prompt", "--prompt");
  } else {
    data::Dataset data = data::Dataset::open(options.input);
    require_not_input(options.output, data.path());
    while (const auto next = data.next()) {
      const data::Row& row = *next;
      if (control.interrupted()) throw Cancelled({.what = "interrupted", .where = data.where(row)});
      renderer.add(row.json, options.input_key, data.where(row));
    }
  }
  renderer.close();
}

}  // namespace lockstep::commands
