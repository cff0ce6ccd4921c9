#include "text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/fs.h"
#include "core/utf8.h"
#include "text/byte_level.h"
#include "text/tokenizer_file.h"

namespace lockstep::text {

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile parsed)
      : file(std::move(parsed)),
        raw_tokens(std::move(file.raw_tokens)),
        normalized_tokens(std::move(file.normalized_tokens)) {}

  // The row of an id in the file's tables; nothing for ids above the vocabulary.
  std::optional<size_t> place(int32_t id) const {
    if (id < 0) throw DataError({.what = "negative token id", .got = std::to_string(id), .wanted = "0 or more"});
    const size_t place = static_cast<size_t>(id);
    return place < file.known.size() && file.known[place] ? std::optional(place) : std::nullopt;
  }

  Encoding encode(std::string_view text, bool add_special, bool with_spans) const;

  TokenizerFile file;
  AddedTokens raw_tokens, normalized_tokens;
};

namespace {

// Encodes one text, part by part.
class Encoder {
 public:
  Encoder(const TokenizerFile& file, const AddedTokens& normalized_tokens, Encoding& out, bool with_spans)
      : file_(file), normalized_tokens_(normalized_tokens), out_(out), with_spans_(with_spans) {}

  void add_token(int32_t id, Span span, std::string_view found) {
    if (with_spans_) {
      found_.emplace_back(out_.ids.size(), found);
      out_.spans.push_back(span);
    }
    out_.ids.push_back(id);
  }

  // The text of every added token that was found, by its place among the ids.
  std::string_view spelling(size_t place) const {
    const auto row = std::ranges::lower_bound(found_, place, {}, [](const auto& found) { return found.first; });
    if (row != found_.end() && row->first == place) return row->second;
    return file_.spellings[static_cast<size_t>(out_.ids[place])];
  }

  // What lies between added tokens of the raw text.
  void add_part(std::string_view text, size_t offset) {
    const bool tracked = with_spans_ || file_.pre_tokenizer.needs_origins();
    TextView view{.text = text, .offset = offset, .origins = nullptr, .tracked = tracked};
    if (file_.normalizer.may_change(text)) {
      file_.normalizer.apply(view, normalized_);
      view = normalized_.view();
    }
    normalized_tokens_.split(
        view.text, [&](Span part) { add_text(view, part); },
        [&](int32_t id, Span part) {
          const std::string_view found = view.text.substr(part.begin, part.end - part.begin);
          add_token(id, with_spans_ ? view.origin(part) : Span{}, found);
        });
  }

 private:
  void add_text(const TextView& view, Span part) {
    work_.text = view;
    work_.text.text = view.text.substr(part.begin, part.end - part.begin);
    if (view.origins == nullptr)
      work_.text.offset += part.begin;
    else
      work_.text.origins += part.begin;
    file_.pre_tokenizer.split(work_);
    for (const Span& piece : work_.pieces) add_piece(piece);
  }

  void add_piece(Span piece) {
    const std::string_view text = work_.text.text.substr(piece.begin, piece.end - piece.begin);
    if (text.size() > std::numeric_limits<int32_t>::max())
      throw DataError(
          {.what = "text too long", .got = std::to_string(text.size()) + " bytes", .wanted = "below 2 GiB"});
    lengths_.clear();
    file_.bpe->encode(text, scratch_, out_.ids, with_spans_ ? &lengths_ : nullptr);
    if (!with_spans_) return;
    const size_t known = std::accumulate(lengths_.begin(), lengths_.end(), size_t{0});
    if (known < text.size() && file_.pre_tokenizer.byte_level()) return add_spelled_spans(piece);
    size_t place = piece.begin;
    for (const uint32_t length : lengths_) {
      out_.spans.push_back(work_.text.origin({place, place + length}));
      place += length;
    }
  }

  // Where bytes vanished, the library counts in the spelling of the piece, whose bytes are characters of one or two
  // bytes: later tokens seem to stand where what vanished stood, and may begin or end in the middle of a byte.
  void add_spelled_spans(Span piece) {
    const auto spelled_size = [&](size_t place) {
      return byte_character(static_cast<uint8_t>(work_.text.text[place])) < 0x80 ? size_t{1} : size_t{2};
    };
    size_t place = piece.begin, passed = 0;  // a byte of the piece, and where its spelling begins
    const auto byte_at = [&](size_t offset) {
      for (; passed + spelled_size(place) <= offset; ++place) passed += spelled_size(place);
      return place;
    };
    size_t offset = 0;
    for (size_t i = out_.ids.size() - lengths_.size(); i < out_.ids.size(); ++i) {
      const size_t begin = byte_at(offset);
      offset += file_.spellings[static_cast<size_t>(out_.ids[i])].size();
      out_.spans.push_back(work_.text.origin({begin, byte_at(offset - 1) + 1}));
    }
  }

  const TokenizerFile& file_;
  const AddedTokens& normalized_tokens_;
  Encoding& out_;
  bool with_spans_;
  std::vector<std::pair<size_t, std::string>> found_;
  AlignedText normalized_;
  PreTokenizer::Work work_;
  Bpe::Scratch scratch_;
  std::vector<uint32_t> lengths_;
};

}  // namespace

Encoding Tokenizer::Impl::encode(std::string_view text, bool add_special, bool with_spans) const {
  if (const size_t valid = valid_utf8_prefix(text); valid != text.size())
    throw DataError({.what = "text is not UTF-8", .where = "byte " + std::to_string(valid)});
  Encoding out;
  constexpr size_t kBytesPerToken = 4;  // a guess that saves growing
  out.ids.reserve(text.size() / kBytesPerToken + 1);
  Encoder encoder(file, normalized_tokens, out, with_spans);
  raw_tokens.split(
      text, [&](Span part) { encoder.add_part(text.substr(part.begin, part.end - part.begin), part.begin); },
      [&](int32_t id, Span part) { encoder.add_token(id, part, text.substr(part.begin, part.end - part.begin)); });
  if (with_spans)
    file.post_processor.process(
        text, [&](size_t place) { return encoder.spelling(place); }, add_special, out.ids, out.spans);
  else if (add_special)
    file.post_processor.add_special(out.ids);
  return out;
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_unique<const Impl>(parse_tokenizer_file(json, where)));
}

Tokenizer Tokenizer::load(const std::string& directory) {
  const fs::Path file = fs::Path(directory) / "tokenizer.json";
  if (!fs::is_file(file))
    throw FormatError({.what = "no tokenizer in the model directory", .where = directory, .wanted = "tokenizer.json"});
  constexpr size_t kMaxBytes = size_t{512} << 20;  // vocabularies of 260,000 tokens take 33 MB
  return parse(fs::read_file(file, {}, kMaxBytes), file.string());
}

std::vector<int32_t> Tokenizer::encode(std::string_view utf8, bool add_special) const {
  return impl_->encode(utf8, add_special, false).ids;
}

Encoding Tokenizer::encode_with_spans(std::string_view utf8, bool add_special) const {
  return impl_->encode(utf8, add_special, true);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamingDecoder decoder(*this, skip_special);
  std::string text;
  for (int32_t id : ids) decoder.push(id, text);
  return text + decoder.finish();
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->file.known.size());
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const int32_t id = impl_->file.ids.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->file.special[static_cast<size_t>(id)];
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const auto place = impl_->place(id);
  return place ? std::string_view(impl_->file.token_bytes[*place]) : std::string_view();
}

std::string_view Tokenizer::spelling(int32_t id) const {
  const auto place = impl_->place(id);
  return place ? std::string_view(impl_->file.spellings[*place]) : std::string_view();
}

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), state_(tokenizer.impl_->file.decoder.begin()) {}

void StreamingDecoder::push(int32_t id, std::string& text) {
  const auto& impl = *tokenizer_->impl_;
  const auto place = impl.place(id);
  if (!place || (skip_special_ && impl.file.special[*place])) return;
  impl.file.decoder.push(state_, impl.file.prepared[*place], text);
}

std::string StreamingDecoder::push(int32_t id) {
  std::string text;
  push(id, text);
  return text;
}

std::string StreamingDecoder::finish() {
  std::string text;
  tokenizer_->impl_->file.decoder.finish(state_, text);
  return text;
}

}  // namespace lockstep::text
