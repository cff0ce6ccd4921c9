#include "text/pre_tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/component.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace lockstep::text {

namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Appends runs of characters of one kind, kind_of(code) >= 0, each character alone where `individual`; kind -1 is left
// out.
template <typename KindOf>
void find_runs(std::string_view text, bool individual, const KindOf& kind_of, std::vector<Span>& runs) {
  int last = -1;
  for (size_t place = 0, size = 0; place < text.size(); place += size) {
    const int kind = kind_of(code_at(text.data(), place, size));
    if (kind >= 0 && kind == last && !individual)
      runs.back().end = place + size;
    else if (kind >= 0)
      runs.push_back({place, place + size});
    last = kind;
  }
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& where) {
  for_each_component(json, where + ": pre_tokenizer", "pretokenizers",
                     [&](const Json& step, const std::string& place) { add_step(step, place); });
}

void PreTokenizer::add_step(const Json& json, const std::string& where) {
  const JsonObject step(json, where);
  const std::string type = step.string("type");
  if (byte_level_) unsupported_component(where, type + " after ByteLevel", "ByteLevel as the last step");
  if (type == "Split") {
    add_split(step);
  } else if (type == "Digits") {
    steps_.push_back(Digits{step.boolean("individual_digits", false)});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (step.boolean("add_prefix_space", true)) steps_.push_back(PrefixSpace{});
    if (step.boolean("use_regex", true))
      steps_.push_back(Split{TextPattern::regex(kGpt2Pattern), Behavior::isolated, false});
  } else if (type == "Metaspace") {
    add_metaspace(step);
  } else if (type == "Whitespace" || type == "WhitespaceSplit") {
    steps_.push_back(WhiteSpace{type == "Whitespace"});
  } else {
    unsupported_component(where, type,
                          "Split, ByteLevel, Digits, Metaspace, Whitespace, WhitespaceSplit or a Sequence of them");
  }
}

void PreTokenizer::add_split(const JsonObject& step) {
  constexpr std::string_view kNames[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const std::string name = step.string("behavior");
  const auto behavior = std::ranges::find(kNames, name);
  if (behavior == std::end(kNames))
    unsupported_component(step.where() + ": Split: behavior", name,
                          "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  steps_.push_back(Split{TextPattern(step.value("pattern"), step.where() + ": Split: pattern"),
                         static_cast<Behavior>(behavior - kNames), step.boolean("invert", false)});
}

void PreTokenizer::add_metaspace(const JsonObject& step) {
  using Prepend = Metaspace::Prepend;
  const std::string replacement = one_character(step, "replacement", "\u2581");
  const std::string scheme = step.string("prepend_scheme", "always");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    unsupported_component(step.where() + ": Metaspace: prepend_scheme", scheme, "always, first or never");
  Prepend prepend = scheme == "always" ? Prepend::always : scheme == "first" ? Prepend::first : Prepend::never;
  if (!step.boolean("add_prefix_space", true)) prepend = Prepend::never;  // how older files say it
  needs_origins_ = needs_origins_ || prepend == Prepend::first;
  steps_.push_back(Metaspace{replacement, prepend});
  if (!step.boolean("split", true)) return;
  const Json pattern = {{"String", replacement}};
  steps_.push_back(Split{TextPattern(pattern, step.where()), Behavior::merged_with_next, false});
}

void PreTokenizer::find(const Step& step, std::string_view text, std::vector<Span>& matches, SearchBudget& budget) {
  if (const auto* digits = std::get_if<Digits>(&step)) {
    const auto kind = [](uint32_t code) { return unicode::is_numeric(code) ? 0 : -1; };
    find_runs(text, digits->individual, kind, matches);
  } else if (const auto* space = std::get_if<WhiteSpace>(&step)) {
    const auto kind = [&](uint32_t code) {
      if (!space->words) return unicode::is_white_space(code) ? -1 : 0;
      return unicode::is_word(code) ? 1 : unicode::is_white_space(code) ? -1 : 0;
    };
    find_runs(text, false, kind, matches);
  } else {
    std::get<Split>(step).pattern.find(text, matches, budget);
  }
}

// The piece's matches (work.matches, relative to it) and what lies between them, joined as the behavior says, to
// work.next.
void PreTokenizer::cut(Behavior behavior, bool invert, Span piece, Work& work) {
  std::vector<Span>& out = work.next;
  const size_t first_out = out.size();
  bool last_match = false;
  const auto add = [&](size_t begin, size_t end, bool match) {
    if (begin == end) return;
    const Span part = {piece.begin + begin, piece.begin + end};
    match = match != invert;
    const bool neighbour = out.size() > first_out;
    // A match joins what stands before it, unless that is a match too; or what follows it joins the match.
    const bool join = neighbour && ((behavior == Behavior::merged_with_previous && match && !last_match) ||
                                    (behavior == Behavior::merged_with_next && !match && last_match) ||
                                    (behavior == Behavior::contiguous && match == last_match));
    if (join)
      out.back().end = part.end;
    else if (behavior != Behavior::removed || !match)
      out.push_back(part);
    last_match = match;
  };
  size_t done = 0;
  for (const Span& match : work.matches) {
    add(done, match.begin, false);
    add(match.begin, match.end, true);
    done = match.end;
  }
  add(done, piece.end - piece.begin, false);
}

// ByteLevel's and Metaspace's changes of the text, piece by piece.
void PreTokenizer::prefix(const Step& step, Work& work) {
  const auto* metaspace = std::get_if<Metaspace>(&step);
  const std::string_view space = metaspace != nullptr ? std::string_view(metaspace->replacement) : " ";
  const TextView from = work.text;
  work.spare.clear(from.tracked);
  work.next.clear();
  AlignedText& to = work.spare;
  for (const Span& piece : work.pieces) {
    const size_t begin = to.text().size();
    const std::string_view text = from.text.substr(piece.begin, piece.end - piece.begin);
    // What the text would begin with once its spaces are replaced.
    const bool has_space = text.starts_with(space) || (metaspace != nullptr && text[0] == ' ');
    const bool wanted = metaspace == nullptr || metaspace->prepend == Metaspace::Prepend::always ||
                        (metaspace->prepend == Metaspace::Prepend::first && from.origin(piece).begin == 0);
    if (!has_space && wanted) to.append(space, byte_origin(from, piece.begin));
    for (size_t done = 0; done < text.size();) {
      const size_t found = metaspace == nullptr ? std::string_view::npos : text.find(' ', done);
      const size_t end = std::min(found, text.size());
      to.append(from, {piece.begin + done, piece.begin + end});
      if (end < text.size()) to.append(space, byte_origin(from, piece.begin + end));
      done = end + 1;
    }
    work.next.push_back({begin, to.text().size()});
  }
  std::swap(work.spare, work.changed);
  std::swap(work.next, work.pieces);
  work.text = work.changed.view();
}

void PreTokenizer::split(Work& work) const {
  work.pieces.clear();
  if (work.text.text.empty()) return;
  work.pieces.push_back({0, work.text.text.size()});
  SearchBudget budget(work.text.text.size());
  for (const Step& step : steps_) {
    if (std::holds_alternative<PrefixSpace>(step) || std::holds_alternative<Metaspace>(step)) {
      prefix(step, work);
      continue;
    }
    // Digits keeps what it finds and the rest apart; the white-space steps drop the rest.
    const auto* split = std::get_if<Split>(&step);
    const bool white_space = std::holds_alternative<WhiteSpace>(step);
    const Behavior behavior = split != nullptr ? split->behavior : white_space ? Behavior::removed : Behavior::isolated;
    const bool invert = split != nullptr ? split->invert : white_space;
    work.next.clear();
    for (const Span& piece : work.pieces) {
      work.matches.clear();
      find(step, work.text.text.substr(piece.begin, piece.end - piece.begin), work.matches, budget);
      cut(behavior, invert, piece, work);
    }
    std::swap(work.next, work.pieces);
  }
}

}  // namespace lockstep::text
