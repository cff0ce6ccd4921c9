#include "text/tokenizer.h"

#include "core/error.h"
#include "core/fs.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace lockstep::text {

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile parsed)
      : file(std::move(parsed)),
        raw_tokens(std::move(file.raw_tokens)),
        normalized_tokens(std::move(file.normalized_tokens)) {}

  std::string_view bytes(int32_t id) const {
    if (id < 0) throw DataError({.what = "negative token id", .got = std::to_string(id), .wanted = "0 or more"});
    const size_t place = static_cast<size_t>(id);
    return place < file.token_bytes.size() ? std::string_view(file.token_bytes[place]) : std::string_view();
  }

  TokenizerFile file;
  AddedTokens raw_tokens, normalized_tokens;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_unique<const Impl>(parse_tokenizer_file(json, where)));
}

Tokenizer Tokenizer::load(const std::string& directory) {
  const fs::Path file = fs::Path(directory) / "tokenizer.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    throw FormatError({.what = "no tokenizer in the model directory", .where = directory, .wanted = "tokenizer.json"});
  return parse(fs::read_file(file), file.string());
}

std::vector<int32_t> Tokenizer::encode(std::string_view utf8) const {
  if (const size_t valid = valid_utf8_prefix(utf8); valid != utf8.size())
    throw DataError({.what = "text is not UTF-8", .where = "byte " + std::to_string(valid)});
  std::vector<int32_t> ids;
  Bpe::Scratch scratch;
  const auto add_id = [&](int32_t id) { ids.push_back(id); };
  const auto add_piece = [&](std::string_view piece) { impl_->file.bpe.encode(piece, scratch, ids); };
  const auto add_text = [&](std::string_view part) { impl_->file.pre_tokenizer.split(part, add_piece); };
  impl_->raw_tokens.split(
      utf8, [&](std::string_view part) { impl_->normalized_tokens.split(part, add_text, add_id); }, add_id);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids)
    if (const std::string_view part = impl_->bytes(id); !skip_special || !is_special(id)) bytes += part;
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  append_lossy(text, bytes);
  return text;
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->file.known.size());
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto found = impl_->file.ids.find(std::string(token));
  return found == impl_->file.ids.end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->file.special[static_cast<size_t>(id)];
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->bytes(id);
}

std::string StreamingDecoder::push(int32_t id) {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (!skip_special_ || !tokenizer_->is_special(id)) pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const size_t valid = valid_utf8_prefix(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Char damaged = read_utf8(rest);
    if (damaged.cut) break;
    append_lossy(text, rest.substr(0, damaged.size));
    rest.remove_prefix(damaged.size);
  }
  pending_ = std::string(rest);
  return text;
}

std::string StreamingDecoder::finish() {
  std::string text;
  append_lossy(text, pending_);
  pending_.clear();
  return text;
}

}  // namespace lockstep::text
