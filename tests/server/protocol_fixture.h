// A server of the embedded model on a free port, and a client that asks it for JSON.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "recipes/base.h"
#include "server/http_fixture.h"
#include "server/routes/router.h"
#include "server/routes/service.h"
#include "service/serving.h"

namespace lockstep::server::testing {

inline const std::string kModel = LOCKSTEP_SOURCE_DIR "/models/arith";
// Renders as: user:CONTENT;assistant:
inline constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if tools %}tools:{{ tools | length }};{% endif "
    "%}"
    "{% if mood %}mood:{{ mood }};{% endif %}{% if add_generation_prompt %}assistant:{% endif %}";

// Loaded once for all tests of the program.
struct Model {
  Stream stream{{.threads = 2}};
  std::ostringstream info;
  recipes::Base base;
  text::Tokenizer tokenizer;

  Model()
      : base(recipes::load_base({.hf_checkpoint = kModel}, stream, {.out = &info, .info = &info})),
        tokenizer(text::Tokenizer::load(base.path.string())) {}
  static const Model& get() {
    static const Model model;
    return model;
  }
};

struct Reply {
  int status = 0;
  std::string head, body;
  OrderedJson json() const { return OrderedJson::parse(body); }
  std::string type() const {
    const size_t at = head.find("ontent-Type: ");
    return at == std::string::npos ? "" : head.substr(at + 13, head.find('\r', at) - at - 13);
  }
};

// The body of an answer, put together if it came in chunks.
inline std::string unchunked(std::string_view bytes) {
  std::string body;
  while (!bytes.empty()) {
    const size_t size = std::stoul(std::string(bytes.substr(0, bytes.find('\r'))), nullptr, 16);
    if (size == 0) break;
    bytes.remove_prefix(bytes.find('\n') + 1);
    body += bytes.substr(0, size);
    bytes.remove_prefix(size + 2);
  }
  return body;
}

inline Reply parsed_reply(const std::string& bytes) {
  const size_t end = bytes.find(kEnd);
  if (end == std::string::npos) return {};
  Reply reply{.status = std::stoi(bytes.substr(9, 3)), .head = bytes.substr(0, end)};
  const std::string body = bytes.substr(end + kEnd.size());
  const bool chunked = reply.head.find("chunked") != std::string::npos;
  reply.body = chunked ? unchunked(body) : body;
  return reply;
}

inline std::string request_text(const std::string& method, const std::string& path, const std::string& body,
                                const std::string& headers) {
  return method + " " + path +
         " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + headers + "\r\n" + body;
}

class Served {
  Running running_;  // is stopped first and destroyed last: the engine's thread posts to it

 public:
  explicit Served(ServiceOptions options = {}, service::ServingOptions serving_options = {})
      : running_([this](HttpRequest request, std::shared_ptr<Responder> responder) {
          router->handle(std::move(request), responder);
        }) {
    const Model& model = Model::get();
    if (options.model_names.empty()) options.model_names = {"base"};
    options.version = "test";
    serving_options.engine.tokenizer = &model.tokenizer;
    serving_options.engine.prefix_cache = true;
    serving_options.adapters.base_names = options.model_names;
    serving = std::make_unique<service::Serving>(model.base, serving_options);
    HttpServer& http = running_.server;
    const Loop loop{
        .post = [&http](Task task) { http.post(std::move(task)); },
        .post_after = [&http](std::chrono::milliseconds delay, Task task) { http.post_after(delay, std::move(task)); }};
    service = std::make_unique<Service>(*serving, model.tokenizer, text::ChatTemplate::parse(kTemplate, "template"),
                                        std::move(options), loop);
    router = std::make_unique<Router>(*service);
  }
  ~Served() { running_.stop(); }

  Client connect() const { return running_.connect(); }
  int port() const { return running_.server.port(); }
  size_t connections() const { return running_.server.connections(); }

  // Waits long: the machine may be busy.
  Reply ask(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "") const {
    Client client = connect();
    client.send(request_text(method, path, body, "Connection: close\r\n" + headers));
    std::string all;
    for (std::string bytes = client.receive(60s); !bytes.empty(); bytes = client.receive(60s)) all += bytes;
    return parsed_reply(all);
  }
  Reply get(const std::string& path) const { return ask("GET", path); }
  Reply post(const std::string& path, const OrderedJson& body) const { return ask("POST", path, body.dump()); }

  // The JSON of an answer that must be 200.
  OrderedJson json(const std::string& path, const OrderedJson& body) const {
    const Reply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? reply.json() : OrderedJson();
  }
  // The events of a stream, whose last is [DONE].
  std::vector<OrderedJson> stream(const std::string& path, OrderedJson body) const {
    body["stream"] = true;
    const Reply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.type(), "text/event-stream; charset=utf-8");
    return events(reply.body);
  }
  static std::vector<OrderedJson> events(std::string_view text) {
    std::vector<OrderedJson> events;
    bool done = false;
    while (!text.empty()) {
      const size_t end = text.find("\n\n");
      const std::string_view event = text.substr(0, end);
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      EXPECT_FALSE(done) << "behind [DONE]: " << event;
      if (event == "data: [DONE]")
        done = true;
      else
        events.push_back(OrderedJson::parse(event.substr(6)));
      if (end == std::string_view::npos) break;
      text.remove_prefix(end + 2);
    }
    EXPECT_TRUE(done);
    return events;
  }

  std::unique_ptr<service::Serving> serving;
  std::unique_ptr<Service> service;
  std::unique_ptr<Router> router;
};

}  // namespace lockstep::server::testing
