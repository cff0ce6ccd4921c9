// Errors in the form that clients of vLLM, OpenAI and SGLang expect.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "core/error.h"
#include "server/http/http.h"

namespace lockstep::server {

// Thrown while reading a request; the message is for the client.
class ApiError : public std::runtime_error {
 public:
  // `type` empty: derived from the status. `param` names the field; empty: none.
  ApiError(int status, const std::string& message, std::string param = "", std::string type = "");

  int status;
  std::string param, type;
};

// 400 about a field of the request.
ApiError bad_request(const std::string& message, std::string param = "");
ApiError no_such_model(const std::string& model);  // 404

// Translates exceptions of the rooms below for a client: QueueFull 429, Draining and NoBase 503, OutdatedAdapter 409,
// NoSuchAdapter 404, ConfigError, DataError, FormatError, ShapeError and ResourceError 400, anything else 500.
ApiError api_error(std::exception_ptr error);
// A fault as one line: what, where, got, wanted, try.
std::string one_line(const Fault& fault);

// {"error": {"message", "type", "param", "code"}}, as vLLM and OpenAI do.
std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);
// {"error": {"message"}}, as SGLang's own routes do.
HttpResponse sglang_error_response(const ApiError& error);

HttpResponse json_response(std::string body, int status = 200);
HttpResponse text_response(std::string body, int status = 200);

}  // namespace lockstep::server
