#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/component.h"
#include "text/tokenizer_json.h"

namespace lockstep::text {

namespace {

bool is_absent(const JsonObject& object, const char* key) {
  return !object.has(key) || object.value(key) == "";
}

void check_model(const JsonObject& model) {
  const std::string& where = model.where();
  if (model.string("type", "BPE") != "BPE")
    unsupported_component(where + ": type", shown_json(model.value("type")), "BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!is_absent(model, key)) unsupported_component(where + ": " + key, shown_json(model.value(key)), "null");
  if (model.number("dropout", 0) != 0)
    unsupported_component(where + ": dropout", shown_json(model.value("dropout")), "null");
  model.object("vocab");
  if (!model.value("merges").is_array())
    throw FormatError(
        {.what = "a value has the wrong type", .where = where + ": merges", .wanted = "a list of merges"});
}

// Builds the tables of ids while tokens are named; two tokens of one id are refused.
class Vocabulary {
 public:
  Vocabulary(TokenizerFile& file, std::string where) : file_(file), where_(std::move(where)) {}

  void add(const std::string& token, int32_t id) {
    const size_t place = static_cast<size_t>(id);
    if (place >= file_.known.size()) {
      file_.spellings.resize(place + 1);
      file_.known.resize(place + 1);
      file_.special.resize(place + 1);
    }
    const bool fresh = file_.ids.insert(token, id);
    if (!fresh || file_.known[place])
      throw FormatError({.what = "two tokens share an id, or one has two",
                         .where = where_,
                         .got = token + " = " + std::to_string(id),
                         .wanted = fresh ? "an id of its own" : std::to_string(file_.ids.find(token))});
    file_.known[place] = true;
    file_.spellings[place] = token;
  }

 private:
  TokenizerFile& file_;
  std::string where_;
};

// Fills the file's tables and returns what pieces of text are looked up in.
WordTable read_vocabulary(const TokenizerJson& json, const std::string& where, TokenizerFile& file) {
  const bool byte_level = file.pre_tokenizer.byte_level();
  Vocabulary vocabulary(file, where + ": vocab");
  file.ids = WordTable(json.vocab.size());
  WordTable words(json.vocab.size());
  for (const auto& [token, id] : json.vocab) {
    vocabulary.add(token, id);
    // A token with other characters, such as a special one with a space, can never come out of merging bytes.
    if (!byte_level || is_byte_spelling(token)) words.insert(byte_level ? spelled_bytes(token) : token, id);
  }
  return words;
}

std::vector<Bpe::Merge> read_merges(const TokenizerJson& json, const std::string& where, const WordTable& ids) {
  const auto id_of = [&](const std::string& token) {
    const int32_t id = ids.find(token);
    if (id < 0)
      throw FormatError(
          {.what = "a merge names a token that is not in the vocabulary", .where = where + ": merges", .got = token});
    return id;
  };
  std::vector<Bpe::Merge> merges;
  merges.reserve(json.merges.size());
  for (const auto& [left, right] : json.merges) merges.push_back({id_of(left), id_of(right), id_of(left + right)});
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
    const int32_t in_model = file.ids.find(token.content);
    if (token.content.empty() || !seen.try_emplace(token.content, id).second || (in_model >= 0 && in_model != id))
      throw FormatError({.what = "an added token is empty, comes twice or has another id in the vocabulary",
                         .where = where,
                         .got = shown_json(entry)});
    if (in_model < 0) {
      check_fresh_id(token, highest, model_size, where);
      vocabulary.add(token.content, id);
    }
    highest = std::max(highest, id);
    const bool special = object.boolean("special", false);
    file.special[static_cast<size_t>(id)] = special;
    // A special token keeps its text unless the file says otherwise: AddedToken's own default in the library.
    if (!object.boolean("normalized", !special)) {
      file.raw_tokens.push_back(std::move(token));
      continue;
    }
    // It is looked for in normalized text, so in its normalized form.
    token.content = file.normalizer.apply(token.content);
    if (token.content.empty())
      throw FormatError(
          {.what = "an added token is empty once it is normalized", .where = where, .got = shown_json(entry)});
    file.spellings[static_cast<size_t>(id)] = token.content;  // so the library decodes it
    file.normalized_tokens.push_back(std::move(token));
  }
}

BpeOptions read_options(const JsonObject& model, const TokenizerFile& file) {
  BpeOptions options{.byte_level = file.pre_tokenizer.byte_level(),
                     .unk_id = {},
                     .fuse_unk = model.boolean("fuse_unk", false),
                     .ignore_merges = model.boolean("ignore_merges", false),
                     .byte_fallback = model.boolean("byte_fallback", false)};
  if (!is_absent(model, "unk_token")) {
    const int32_t unk = file.ids.find(model.string("unk_token"));
    if (unk < 0)
      throw FormatError({.what = "unk_token is not in the vocabulary",
                         .where = model.where() + ": unk_token",
                         .got = model.string("unk_token")});
    options.unk_id = unk;
  }
  return options;
}

std::array<int32_t, 256> byte_tokens(const WordTable& ids) {
  std::array<int32_t, 256> tokens{};
  for (size_t byte = 0; byte < tokens.size(); ++byte) tokens[byte] = ids.find(fmt::format("<0x{:02X}>", byte));
  return tokens;
}

// With every byte in the vocabulary there is nothing to fall back from.
void check_byte_fallback(const BpeOptions& options, const WordTable& words, const std::string& where) {
  if (!options.byte_level || !options.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (words.find({&text, 1}) < 0)
      unsupported_component(where + ": byte_fallback", "true, with a byte-level vocabulary that lacks a byte", "false");
  }
}

// Part `key` of the file, or its default when the file has none.
template <typename Part>
Part read_part(const JsonObject& root, const char* key) {
  return root.has(key) ? Part(root.value(key), root.where()) : Part();
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& where) {
  const TokenizerJson parsed = parse_tokenizer_json(json, where);
  const JsonObject root(parsed.rest, where);
  const JsonObject model = root.object("model");
  check_model(model);
  TokenizerFile file{.normalizer = read_part<Normalizer>(root, "normalizer"),
                     .pre_tokenizer = read_part<PreTokenizer>(root, "pre_tokenizer"),
                     .post_processor = read_part<PostProcessor>(root, "post_processor"),
                     .decoder = read_part<Decoder>(root, "decoder")};
  WordTable words = read_vocabulary(parsed, model.where(), file);
  const BpeOptions options = read_options(model, file);
  check_byte_fallback(options, words, model.where());
  file.bpe.emplace(std::move(words), static_cast<int32_t>(file.known.size()),
                   read_merges(parsed, model.where(), file.ids), options, byte_tokens(file.ids));
  read_added_tokens(root, file);
  for (const std::string& spelling : file.spellings) {
    file.token_bytes.push_back(file.decoder.bytes_of(spelling));
    file.prepared.push_back(file.decoder.prepared(spelling));
  }
  return file;
}

}  // namespace lockstep::text
