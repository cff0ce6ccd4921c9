#include "text/tokenizer_file.h"

#include <algorithm>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace lockstep::text {

namespace {

constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

[[noreturn]] void unsupported(const std::string& where, const Json& got, const std::string& wanted) {
  throw FormatError({.what = "unsupported tokenizer component",
                     .where = where,
                     .got = got.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 200),
                     .wanted = wanted});
}

bool is_absent(const JsonObject& object, const char* key) {
  return !object.has(key) || object.value(key) == "";
}

// The type of a component, for messages the whole of it when it has none.
std::string type_of(const Json& component, const std::string& where) {
  if (!component.is_object() || !component.contains("type") || !component["type"].is_string())
    unsupported(where, component, "an object with a type");
  return component["type"].get<std::string>();
}

// encode() adds no tokens around a text, so a post-processor that does nothing else never acts.
void check_post_processor(const Json& component, const std::string& where, bool nested = false) {
  const std::string type = type_of(component, where);
  if (type == "ByteLevel" || type == "TemplateProcessing") return;
  if (type != "Sequence" || nested || !component.contains("processors") || !component["processors"].is_array())
    unsupported(where, type, "ByteLevel, TemplateProcessing or a Sequence of them");
  for (const Json& inner : component["processors"]) check_post_processor(inner, where + ": Sequence", true);
}

void check_components(const JsonObject& file) {
  const std::string& where = file.where();
  for (const char* key : {"normalizer", "truncation", "padding"})
    if (file.has(key)) unsupported(where + ": " + key, file.value(key), "null");
  if (!file.has("decoder")) unsupported(where + ": decoder", Json(), "ByteLevel");
  if (type_of(file.value("decoder"), where + ": decoder") != "ByteLevel")
    unsupported(where + ": decoder", file.value("decoder")["type"], "ByteLevel");
  if (file.has("post_processor")) check_post_processor(file.value("post_processor"), where + ": post_processor");
  if (!file.has("pre_tokenizer")) unsupported(where + ": pre_tokenizer", Json(), "ByteLevel");
}

void check_model(const JsonObject& model) {
  const std::string& where = model.where();
  if (model.string("type", "BPE") != "BPE") unsupported(where + ": type", model.value("type"), "BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_absent(model, key)) unsupported(where + ": " + key, model.value(key), "null");
  if (model.number("dropout", 0) != 0) unsupported(where + ": dropout", model.value("dropout"), "null");
  if (model.boolean("byte_fallback", false)) unsupported(where + ": byte_fallback", true, "false");
}

int32_t checked_id(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabulary))
    throw FormatError({.what = "not a token id",
                       .where = where,
                       .got = value.dump().substr(0, 100),
                       .wanted = "an integer from 0 to " + std::to_string(kMaxVocabulary - 1)});
  return value.get<int32_t>();
}

// Builds the tables of ids while tokens are named; two tokens of one id are refused.
class Vocabulary {
 public:
  Vocabulary(TokenizerFile& file, std::string where) : file_(file), where_(std::move(where)) {}

  void add(const std::string& token, int32_t id) {
    const size_t place = static_cast<size_t>(id);
    if (place >= file_.known.size()) {
      file_.token_bytes.resize(place + 1);
      file_.known.resize(place + 1);
      file_.special.resize(place + 1);
    }
    const bool fresh = file_.ids.try_emplace(token, id).second;
    if (!fresh || file_.known[place])
      throw FormatError({.what = "two tokens share an id, or one has two",
                         .where = where_,
                         .got = token + " = " + std::to_string(id),
                         .wanted = fresh ? "an id of its own" : std::to_string(file_.ids[token])});
    file_.known[place] = true;
    file_.token_bytes[place] = spelled_bytes(token);
  }

 private:
  TokenizerFile& file_;
  std::string where_;
};

std::unordered_map<std::string, int32_t> read_vocabulary(const JsonObject& model, TokenizerFile& file) {
  const JsonObject vocab = model.object("vocab");
  Vocabulary vocabulary(file, vocab.where());
  std::unordered_map<std::string, int32_t> bytes;
  bytes.reserve(vocab.json().size());
  for (const auto& item : vocab.json().items()) {
    const int32_t id = checked_id(item.value(), vocab.where() + ": " + item.key());
    vocabulary.add(item.key(), id);
    // A token with other characters, such as a special one with a space, can never come out of merging bytes.
    if (is_byte_spelling(item.key())) bytes.emplace(spelled_bytes(item.key()), id);
  }
  return bytes;
}

std::pair<std::string, std::string> read_merge(const Json& entry, const std::string& where) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  if (entry.is_string()) {
    const std::string text = entry.get<std::string>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  throw FormatError({.what = "malformed merge",
                     .where = where,
                     .got = entry.dump().substr(0, 100),
                     .wanted = "[\"a\", \"b\"] or \"a b\""});
}

std::vector<Bpe::Merge> read_merges(const JsonObject& model, const std::unordered_map<std::string, int32_t>& ids) {
  const std::string where = model.where() + ": merges";
  const Json& list = model.value("merges");
  if (!list.is_array())
    throw FormatError({.what = "a value has the wrong type", .where = where, .wanted = "a list of merges"});
  const auto id_of = [&](const std::string& token) {
    const auto found = ids.find(token);
    if (found == ids.end())
      throw FormatError({.what = "a merge names a token that is not in the vocabulary", .where = where, .got = token});
    return found->second;
  };
  std::vector<Bpe::Merge> merges;
  merges.reserve(list.size());
  for (const Json& entry : list) {
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(entry, where);
    merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
  return merges;
}

// The library ignores the ids of the file: a token the model does not know gets the next free number.
void check_fresh_id(const AddedToken& token, int32_t highest, size_t model_size, const std::string& where) {
  const int64_t wanted = std::max<int64_t>(static_cast<int64_t>(model_size), int64_t{highest} + 1);
  if (token.id != wanted)
    throw FormatError({.what = "an added token has an id that the tokenizers library would not give it",
                       .where = where,
                       .got = token.content + " = " + std::to_string(token.id),
                       .wanted = std::to_string(wanted)});
}

void read_added_tokens(const JsonObject& root, TokenizerFile& file) {
  const std::string where = root.where() + ": added_tokens";
  if (!root.has("added_tokens")) return;
  const Json& list = root.value("added_tokens");
  if (!list.is_array())
    throw FormatError({.what = "a value has the wrong type", .where = where, .wanted = "a list of tokens"});
  Vocabulary vocabulary(file, where);
  std::unordered_map<std::string, int32_t> seen;
  const size_t model_size = file.ids.size();
  int32_t highest = -1;
  for (const Json& entry : list) {
    const JsonObject object(entry, where);
    const int32_t id = checked_id(object.value("id"), where + ": id");
    AddedToken token{id, object.string("content"), object.boolean("single_word", false),
                     object.boolean("lstrip", false), object.boolean("rstrip", false)};
    const auto in_model = file.ids.find(token.content);
    if (token.content.empty() || !seen.try_emplace(token.content, id).second ||
        (in_model != file.ids.end() && in_model->second != id))
      throw FormatError({.what = "an added token is empty, comes twice or has another id in the vocabulary",
                         .where = where,
                         .got = entry.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 200)});
    if (in_model == file.ids.end()) {
      check_fresh_id(token, highest, model_size, where);
      vocabulary.add(token.content, id);
    }
    highest = std::max(highest, id);
    const bool special = object.boolean("special", false);
    file.special[static_cast<size_t>(id)] = special;
    // A special token keeps its text unless the file says otherwise: AddedToken's own default in the library.
    (object.boolean("normalized", !special) ? file.normalized_tokens : file.raw_tokens).push_back(std::move(token));
  }
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where) {
  const Json parsed = parse_json(json, where);
  const JsonObject root(parsed, where);
  check_components(root);
  const JsonObject model = root.object("model");
  check_model(model);
  TokenizerFile file{.raw_tokens = {},
                     .normalized_tokens = {},
                     .token_bytes = {},
                     .known = {},
                     .special = {},
                     .ids = {},
                     .pre_tokenizer = PreTokenizer(root.value("pre_tokenizer"), where),
                     .bpe = Bpe({}, {}, {})};
  std::unordered_map<std::string, int32_t> vocabulary = read_vocabulary(model, file);
  BpeOptions options{.unk_id = {},
                     .fuse_unk = model.boolean("fuse_unk", false),
                     .ignore_merges = model.boolean("ignore_merges", false)};
  if (!is_absent(model, "unk_token")) {
    const auto unk = file.ids.find(model.string("unk_token"));
    if (unk == file.ids.end())
      throw FormatError({.what = "unk_token is not in the vocabulary",
                         .where = model.where() + ": unk_token",
                         .got = model.string("unk_token")});
    options.unk_id = unk->second;
  }
  const std::vector<Bpe::Merge> merges = read_merges(model, file.ids);
  file.bpe = Bpe(std::move(vocabulary), merges, options);
  read_added_tokens(root, file);
  return file;
}

}  // namespace lockstep::text
