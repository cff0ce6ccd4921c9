// lockstep tokenize and detokenize: what a model sees of a text. Only the tokenizer is loaded.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

#include "commands/commands.h"
#include "commands/output_file.h"
#include "core/printable.h"
#include "data/dataset.h"
#include "recipes/base.h"

namespace lockstep::commands {

namespace {

// Collects lines for a file, which is written at the end, or passes them on to the terminal.
class OutputLines {
 public:
  OutputLines(const std::string& file, const recipes::Control& control) : file_(file), control_(control) {}
  void add(const std::string& line) {
    if (file_.empty())
      *control_.out << control_.shown(line) << "\n";
    else
      text_ += line + "\n";
  }
  void close() {
    if (!file_.empty()) fs::write_file_atomic(file_, text_);
  }

 private:
  std::string file_, text_;
  const recipes::Control& control_;
};

std::string dumped(const OrderedJson& json) {
  return json_text(json);
}

class Tokenizing {
 public:
  Tokenizing(const TokenizeOptions& options, const recipes::Control& control)
      : options_(options),
        tokenizer_(text::Tokenizer::load(
            load::model_directory(options.base.hf_checkpoint, load::caches_below(options.base.home)).string())),
        control_(control),
        lines_(options.output, control),
        coloured_(control.out_terminal && options.output.empty()) {}

  void add(std::string_view text) {
    if (options_.ids_only) return lines_.add(dumped({{"ids", tokenizer_.encode(text, options_.add_special_tokens)}}));
    const text::Encoding encoding = tokenizer_.encode_with_spans(text, options_.add_special_tokens);
    if (coloured_) return show(text, encoding);
    OrderedJson spans = OrderedJson::array(), tokens = OrderedJson::array();
    for (const text::Span& span : encoding.spans) spans.push_back({span.begin, span.end});
    for (const int32_t id : encoding.ids) tokens.push_back(tokenizer_.spelling(id));
    lines_.add(dumped({{"ids", encoding.ids}, {"spans", std::move(spans)}, {"tokens", std::move(tokens)}}));
  }
  void close() { lines_.close(); }

 private:
  // The text with the tokens in colours that alternate, and below it the ids in the same colours.
  void show(std::string_view text, const text::Encoding& encoding) {
    std::string shown, ids;
    size_t done = 0;
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      const auto [begin, end] = encoding.spans[i];
      const char* colour = tokenizer_.is_special(encoding.ids[i]) ? kSpecial : kColours[i % std::size(kColours)];
      if (begin == end && tokenizer_.is_special(encoding.ids[i]))
        shown += fmt::format("{}{}{}", colour, printable(tokenizer_.spelling(encoding.ids[i])), kPlain);
      if (begin > done) shown += control_.shown(text.substr(done, begin - done));  // no token stands for it
      // Tokens of one character share its span; the first of them shows it.
      if (end > std::max(begin, done))
        shown += coloured(colour, text.substr(std::max(begin, done), end - std::max(begin, done)));
      done = std::max(done, end);
      ids += fmt::format("{}{}{} ", colour, encoding.ids[i], kPlain);
    }
    *control_.out << shown << control_.shown(text.substr(done)) << "\n"
                  << fmt::format("{}\n{} tokens\n", ids, encoding.ids.size());
  }

  // A background colour that is open at a line break fills the rest of the line, so it is closed before each break.
  static std::string coloured(const char* colour, std::string_view text) {
    std::string out = colour;
    for (const char c : printable(text, Lines::kept)) {
      if (c == '\n') out += kPlain;
      out += c;
      if (c == '\n') out += colour;
    }
    return out + kPlain;
  }

  static constexpr const char* kColours[] = {"\033[30;46m", "\033[30;43m", "\033[30;42m", "\033[30;45m"};
  static constexpr const char* kSpecial = "\033[97;41m";
  static constexpr const char* kPlain = "\033[0m";

  const TokenizeOptions& options_;
  const text::Tokenizer tokenizer_;
  const recipes::Control& control_;
  OutputLines lines_;
  const bool coloured_;
};

// Ids that only a padded head can draw, or of another model, stand for no text (transformers leaves them out, too).
int64_t count_unknown(const text::Tokenizer& tokenizer, std::span<const int32_t> ids) {
  return std::ranges::count_if(ids, [&](int32_t id) { return id >= tokenizer.vocab_size(); });
}

void tell_unknown(int64_t count, const text::Tokenizer& tokenizer, const recipes::Control& control) {
  if (count == 0) return;
  *control.info << fmt::format("note    {} of the ids are not the tokenizer's (0 to {}) and stand for no text\n", count,
                               tokenizer.vocab_size() - 1);
}

}  // namespace

void run_tokenize(const TokenizeOptions& options, const recipes::Control& control) {
  Tokenizing tokenizing(options, control);
  if (options.text) {
    tokenizing.add(*options.text);
  } else if (options.input_key.empty()) {
    require_not_input(options.output, options.input);
    tokenizing.add(fs::read_file(options.input));
  } else {
    data::Dataset data = data::Dataset::open(options.input);
    require_not_input(options.output, data.path());
    while (const auto row = data.next()) {
      if (control.interrupted()) throw Cancelled({.what = "interrupted", .where = data.where(*row)});
      tokenizing.add(data::string_field(data, *row, options.input_key));
    }
  }
  tokenizing.close();
}

void run_detokenize(const DetokenizeOptions& options, const recipes::Control& control) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(
      load::model_directory(options.base.hf_checkpoint, load::caches_below(options.base.home)).string());
  if (options.input.empty()) {
    *control.out << control.shown(tokenizer.decode(options.ids, options.skip_special_tokens)) << "\n";
    return tell_unknown(count_unknown(tokenizer, options.ids), tokenizer, control);
  }
  OutputLines lines(options.output, control);
  data::Dataset data = data::Dataset::open(options.input);
  require_not_input(options.output, data.path());
  constexpr int64_t kMaxIds = int64_t{1} << 31;
  int64_t unknown = 0;
  while (const auto row = data.next()) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted", .where = data.where(*row)});
    const std::vector<int32_t> ids = data::token_field(data, *row, options.input_key, kMaxIds);
    unknown += count_unknown(tokenizer, ids);
    lines.add(dumped({{"text", tokenizer.decode(ids, options.skip_special_tokens)}}));
  }
  lines.close();
  tell_unknown(unknown, tokenizer, control);
}

}  // namespace lockstep::commands
