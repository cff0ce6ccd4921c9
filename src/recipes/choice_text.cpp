#include "recipes/choice_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace lockstep::recipes {

StopMatcher::StopMatcher(std::string stop) : stop_(std::move(stop)), fallback_(stop_.size() + 1, 0) {
  for (size_t i = 1, k = 0; i < stop_.size(); ++i) {
    while (k > 0 && stop_[i] != stop_[k]) k = fallback_[k];
    if (stop_[i] == stop_[k]) ++k;
    fallback_[i + 1] = k;
  }
}

bool StopMatcher::push(char byte) {
  while (matched_ > 0 && (matched_ == stop_.size() || stop_[matched_] != byte)) matched_ = fallback_[matched_];
  if (stop_[matched_] == byte) ++matched_;
  return matched_ == stop_.size();
}

ChoiceText::ChoiceText(const text::Tokenizer& tokenizer, const Options& options)
    : include_stop_(options.include_stop), decoder_(tokenizer, options.skip_special) {
  for (const std::string& stop : options.stop) stops_.emplace_back(stop);
}

namespace {

constexpr size_t kNone = std::string::npos;

}  // namespace

// Reads text that is new at the end of held_. Where in held_ stop string `stop` ends for the first time; kNone:
// nowhere.
size_t ChoiceText::read(const std::string& text, size_t stop) {
  size_t end = kNone;
  for (const char byte : text) {
    held_ += byte;
    for (size_t i = 0; i < stops_.size(); ++i)
      if (stops_[i].push(byte) && i == stop && end == kNone) end = held_.size();
  }
  return end;
}

std::string ChoiceText::push(int32_t token) {
  const std::string text = decoder_.push(token);
  if (stops_.empty()) return text;
  read(text, kNone);
  size_t kept = 0;
  if (!include_stop_)
    for (const StopMatcher& stop : stops_) kept = std::max(kept, stop.begun());
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string ChoiceText::finish() {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string rest = decoder_.finish();
  while (rest.ends_with(kReplacement)) rest.resize(rest.size() - kReplacement.size());
  return std::exchange(held_, {}) + rest;
}

std::string ChoiceText::finish_by_token(int32_t token) {
  if (!include_stop_) return finish();
  std::string text = push(token);
  return text + finish();
}

std::string ChoiceText::finish_by_text(int32_t token, size_t stop) {
  const size_t end = read(decoder_.push(token), stop);
  // Where special tokens have no text, a stop string that has one of them is not in it.
  if (end == kNone) return finish();
  return std::exchange(held_, {}).substr(0, include_stop_ ? end : end - std::min(end, stops_[stop].size()));
}

}  // namespace lockstep::recipes
