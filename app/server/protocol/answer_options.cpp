#include "server/protocol/answer_options.h"

#include <limits>

#include "server/protocol/api_error.h"

namespace lockstep::server {

AnswerOptions read_answer_options(const Fields& fields, bool tokens_as_ids) {
  AnswerOptions options;
  options.stream = fields.flag("stream");
  if (const auto more = fields.object("stream_options"); more && !more->json().empty()) {
    if (!options.stream) throw bad_request("Stream options can only be defined when `stream=True`.", "stream_options");
    options.include_usage = more->flag("include_usage");
    options.continuous_usage = options.include_usage && more->flag("continuous_usage_stats");
  }
  options.echo = fields.flag("echo");
  options.include_stop = fields.flag("include_stop_str_in_output");
  options.skip_special = fields.flag("skip_special_tokens", true);
  options.return_token_ids = fields.flag("return_token_ids");
  options.tokens_as_ids = fields.flag("return_tokens_as_token_ids", tokens_as_ids);
  options.return_token_versions = fields.flag("return_token_versions");
  return options;
}

VersionFields read_version_fields(const Fields& fields) {
  VersionFields version{
      .pinned = fields.integer("adapter_version", 0, std::numeric_limits<int64_t>::max()),
      .follow = fields.flag("follow_adapter"),
  };
  if (version.pinned && version.follow)
    throw bad_request("`adapter_version` and `follow_adapter` exclude each other.", "follow_adapter");
  return version;
}

}  // namespace lockstep::server
