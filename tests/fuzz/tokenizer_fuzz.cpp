// tokenizer.json and the text it is used on: "JSON\0text". A file that parses must encode any UTF-8, and what it
// encodes must agree with itself.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "core/utf8.h"
#include "text/tokenizer.h"

namespace {

using namespace lockstep;

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const text::Tokenizer& tokenizer, std::string_view utf8, bool add_special) {
  const std::vector<int32_t> ids = tokenizer.encode(utf8, add_special);
  const text::Encoding encoding = tokenizer.encode_with_spans(utf8, add_special);
  require(encoding.ids == ids && encoding.spans.size() == ids.size());
  for (const text::Span& span : encoding.spans) require(span.begin <= span.end && span.end <= utf8.size());
  for (const bool skip_special : {false, true}) {
    text::StreamingDecoder decoder(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = decoder.push(id);
      require(valid_utf8_prefix(part) == part.size());
      streamed += part;
    }
    require(streamed + decoder.finish() == tokenizer.decode(ids, skip_special));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  try {
    const text::Tokenizer tokenizer = text::Tokenizer::parse(input.substr(0, end), "tokenizer.json");
    const std::string_view utf8 = input.substr(std::min(end + 1, input.size()));
    check(tokenizer, utf8, false);
    check(tokenizer, utf8, true);
  } catch (const FormatError&) {    // of the file
  } catch (const DataError&) {      // of the text
  } catch (const ResourceError&) {  // an expression that takes too long
  }
  return 0;
}
