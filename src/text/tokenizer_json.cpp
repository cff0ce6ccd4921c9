#include "text/tokenizer_json.h"

#include "core/error.h"
#include "text/component.h"

namespace lockstep::text {

namespace {

// Called by the parser for every value, in order. Return values: go on.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(TokenizerJson& out, const std::string& where) : out_(out), where_(where) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool binary(binary_t&) override { return false; }
  bool string(string_t& value) override {
    if (part_ == Part::pair) return pair_.push_back(std::move(value)), true;
    if (part_ == Part::merges) return add_spelled(value);
    return add(std::move(value));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  bool key(string_t& name) override {
    if (part_ != Part::rest) return key_ = std::move(name), true;
    if (open_.back().value->contains(name))
      throw FormatError({.what = "a key appears twice in one JSON object", .where = where_, .got = Json(name).dump()});
    key_ = std::move(name);
    return true;
  }

  bool start_object(size_t) override {
    if (part_ != Part::rest) return add(Json::object());
    const bool vocab = is_in_model("vocab");
    open(Json::object());
    if (vocab) part_ = Part::vocab;
    return true;
  }
  bool end_object() override { return close(); }

  bool start_array(size_t) override {
    if (part_ == Part::merges) return part_ = Part::pair, pair_.clear(), true;
    if (part_ != Part::rest) return add(Json::array());
    const bool merges = is_in_model("merges");
    open(Json::array());
    if (merges) part_ = Part::merges;
    return true;
  }
  bool end_array() override {
    if (part_ != Part::pair) return close();
    if (pair_.size() != 2) bad_merge(pair_);
    out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    part_ = Part::merges;
    return true;
  }

 private:
  enum class Part { rest, vocab, merges, pair };
  struct Open {
    Json* value;
    std::string name;  // its key in the object around it
  };

  bool is_in_model(std::string_view name) const {
    return open_.size() == 2 && open_[1].name == "model" && open_[1].value->is_object() && key_ == name;
  }

  Json* place(Json value) {
    if (open_.empty()) return &(out_.rest = std::move(value));
    Json& parent = *open_.back().value;
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  void open(Json value) {
    const bool named = !open_.empty() && open_.back().value->is_object();
    Json* placed = place(std::move(value));
    open_.push_back({placed, named ? key_ : std::string()});
  }
  bool close() {
    open_.pop_back();
    part_ = Part::rest;
    return true;
  }

  bool add(Json value) {
    switch (part_) {
      case Part::rest: place(std::move(value)); break;
      case Part::vocab: {
        const int32_t id = checked_id(value, where_ + ": model: vocab: " + key_);
        out_.vocab.emplace_back(std::move(key_), id);
        break;
      }
      case Part::merges: bad_merge(value);
      case Part::pair: {
        Json entry = pair_;
        entry.push_back(std::move(value));
        bad_merge(entry);
      }
    }
    return true;
  }

  // "a b", as older files have it.
  bool add_spelled(const std::string& text) {
    if (text.starts_with("#version")) return true;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) bad_merge(text);
    out_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  [[noreturn]] void bad_merge(const Json& entry) const {
    throw FormatError({.what = "malformed merge",
                       .where = where_ + ": model: merges",
                       .got = shown_json(entry),
                       .wanted = "[\"a\", \"b\"] or \"a b\""});
  }

  TokenizerJson& out_;
  const std::string& where_;
  Part part_ = Part::rest;
  std::vector<Open> open_;
  std::string key_;
  std::vector<std::string> pair_;
};

}  // namespace

int32_t checked_id(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabulary))
    throw FormatError({.what = "not a token id",
                       .where = where,
                       .got = shown_json(value),
                       .wanted = "an integer from 0 to " + std::to_string(kMaxVocabulary - 1)});
  return value.get<int32_t>();
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  TokenizerJson out;
  Reader reader(out, where);
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    parse_json(text, where);  // says why
    throw FormatError({.what = "invalid JSON", .where = where});
  }
  return out;
}

}  // namespace lockstep::text
