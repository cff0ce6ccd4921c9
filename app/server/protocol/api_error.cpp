#include "server/protocol/api_error.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "server/protocol/json_text.h"
#include "service/serving.h"

namespace lockstep::server {

namespace {

std::string type_of(int status) {
  switch (status) {
    case 401: return "Unauthorized";
    case 404: return "NotFoundError";
    case 405: return "Method Not Allowed";
    case 409: return "Conflict";
    case 429: return "TooManyRequests";
    case 500: return "InternalServerError";
    case 501: return "NotImplementedError";
    case 503: return "ServiceUnavailable";
    default: return "BadRequestError";
  }
}

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string type)
    : std::runtime_error(message),
      status(status),
      param(std::move(param)),
      type(type.empty() ? type_of(status) : std::move(type)) {}

ApiError bad_request(const std::string& message, std::string param) {
  return {400, message, std::move(param)};
}

ApiError no_such_model(const std::string& model) {
  return {404, fmt::format("The model `{}` does not exist.", model), "model"};
}

std::string one_line(const Fault& fault) {
  std::string line = fault.what;
  const auto add = [&line](std::string_view label, const std::string& value) {
    if (!value.empty()) line += fmt::format("; {}: {}", label, value);
  };
  add("where", fault.where);
  add("got", fault.got);
  add("wanted", fault.wanted);
  add("try", fault.attempt);
  return line;
}

ApiError api_error(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const ApiError& found) {
    return found;
  } catch (const service::QueueFull& found) {
    return {429, one_line(found.fault())};
  } catch (const service::Draining& found) {
    return {503, one_line(found.fault())};
  } catch (const service::NoBase& found) {
    return {503, one_line(found.fault())};
  } catch (const service::OutdatedAdapter& found) {
    return {409, one_line(found.fault()), "model"};
  } catch (const service::NoSuchAdapter& found) {
    return {404, one_line(found.fault()), "model"};
  } catch (const DeviceError& found) {
    return {500, one_line(found.fault())};
  } catch (const Cancelled& found) {
    return {500, one_line(found.fault())};
  } catch (const Error& found) {
    return {400, one_line(found.fault())};
  } catch (const std::bad_alloc&) {
    return {500, "out of memory"};
  } catch (const std::exception& found) {
    return {500, found.what()};
  } catch (...) {
    return {500, "unexpected failure"};
  }
}

std::string error_body(const ApiError& error) {
  return fmt::format(R"({{"error":{{"message":{},"type":{},"param":{},"code":{}}}}})", json_string(error.what()),
                     json_string(error.type), error.param.empty() ? "null" : json_string(error.param), error.status);
}

HttpResponse error_response(const ApiError& error) {
  return json_response(error_body(error), error.status);
}

HttpResponse sglang_error_response(const ApiError& error) {
  return json_response(fmt::format(R"({{"error":{{"message":{}}}}})", json_string(error.what())), error.status);
}

HttpResponse json_response(std::string body, int status) {
  return {.status = status, .body = std::move(body)};
}

HttpResponse text_response(std::string body, int status) {
  return {.status = status, .body = std::move(body), .content_type = "text/plain; charset=utf-8"};
}

}  // namespace lockstep::server
