// Bodies of requests: every route reads one or refuses it with an ApiError 400, or 501 for what it does not have;
// nothing else is thrown.
#include <array>
#include <cstdint>
#include <cstdlib>

#include "server/protocol/api_error.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/completion_request.h"
#include "server/protocol/json_text.h"
#include "server/protocol/lora_request.h"
#include "server/protocol/sglang_request.h"
#include "server/protocol/tokens_request.h"
#include "server/protocol/weights_request.h"

namespace {

using namespace lockstep;
using namespace lockstep::server;

const SamplingRules kRules{.vocab_size = 1000, .end_tokens = {0, 2}};

template <class Read>
void read(const Read& read) {
  try {
    read();
  } catch (const ApiError& error) {
    if (error.status != 400 && error.status != 501) std::abort();
    // What the client is told is JSON, whatever the body said.
    if (!OrderedJson::accept(error_body(error))) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  HttpRequest request{.headers = {{"content-type", "application/json"}},
                      .body = std::string(reinterpret_cast<const char*>(data), size)};
  read([&] {
    const OrderedJson body = read_body(request);
    read([&] {
      const CompletionRequest completion = parse_completion(body, kRules, false);
      if (completion.prompts.empty() || completion.common.sampling.n < 1) std::abort();
    });
    read([&] { parse_chat(body, kRules, false); });
    read([&] { parse_sglang(body, kRules); });
    read([&] { parse_tokens(body, kRules); });
    read([&] { parse_load(body); });
    read([&] { read_chat(Fields(body), nullptr); });
    read([&] { parse_disk_update(body); });
    read([&] { parse_tensor_adapter(body); });
    read([&] { parse_named_weight(body); });
    read([&] { parse_rpc(body); });
    read([&] { check_weight_meta(body); });
  });
  read([&] {
    Payloads payloads(request);
    read_named_tensors(payloads);
  });
  if (!OrderedJson::accept(json_string(request.body))) std::abort();
  return 0;
}
