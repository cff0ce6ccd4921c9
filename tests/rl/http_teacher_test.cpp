// A teacher over HTTP, against a server that does as it is told.
#include "rl/http_teacher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "core/error.h"
#include "core/json.h"
#include "rl/teacher_dialect.h"
#include "server/http/http.h"
#include "support/temp_directory.h"

namespace lockstep::rl {
namespace {

using testing::expect_error;

// Says log-prob -(token / 8 + place / 64) of every token of a prompt.
class Teaching {
 public:
  using Answer = std::function<server::HttpResponse(const Json& body, int number)>;

  // `query`: that every request must have.
  explicit Teaching(Answer answer = {}, std::string query = {}) : answer_(std::move(answer)), query_(std::move(query)) {
    start();
  }
  ~Teaching() { stop(); }
  void start() {
    server_ = std::make_unique<server::HttpServer>(
        server::HttpOptions{.port = port_},
        [this](const server::HttpRequest& request, const std::shared_ptr<server::Responder>& reply) {
          if (request.query != query_) return reply->send({.status = 401});
          if (request.path == "/v1/models") return reply->send({.body = R"({"data": [{"id": "big"}]})"});
          const Json body = Json::parse(request.body);
          const int number = ++count;
          reply->send(answer_ ? answer_(body, number) : said(body));
        });
    port_ = server_->port();
    thread_ = std::thread([server = server_.get()] { server->run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }
  static float logprob(int32_t token, size_t place) {
    return -(static_cast<float>(token) / 8 + static_cast<float>(place) / 64);
  }
  static server::HttpResponse said(const Json& body) {
    EXPECT_EQ(body["prompt_logprobs"], 0);
    EXPECT_EQ(body["max_tokens"], 1);
    EXPECT_EQ(body["model"], "big");
    Json tokens = Json::array({nullptr});
    for (size_t t = 1; t < body["prompt"].size(); ++t) {
      const auto token = body["prompt"][t].get<int32_t>();
      tokens.push_back({{std::to_string(token), {{"logprob", logprob(token, t)}, {"rank", 3}}},
                        {"1000", {{"logprob", -0.5}, {"rank", 1}}}});
    }
    return {.body = Json{{"choices", {{{"text", ""}, {"prompt_logprobs", tokens}}}}}.dump()};
  }
  net::Address address() const { return {.host = "127.0.0.1", .port = port_}; }
  std::atomic<int> count = 0;

 private:
  Answer answer_;
  const std::string query_;
  int port_ = 0;
  std::unique_ptr<server::HttpServer> server_;
  std::thread thread_;
};

std::vector<train::Datum> batch() {
  std::vector<train::Datum> datums;
  for (int32_t i = 0; i < 40; ++i) datums.push_back(train::make_datum({i, i + 1, i + 2, i + 3}, {0, 0, 1, 1}));
  datums[3] = train::make_datum({1, 2, 3}, {0, 1, 0});  // the last row has no target
  return datums;
}

TEST(HttpTeacher, SaysTheLogprobsOfTheTargets) {
  Teaching server;
  HttpTeacher teacher({.address = server.address()}, 1);
  const std::vector<train::Datum> datums = batch();
  int64_t told = 0;
  const auto logprobs = teacher.logprobs(datums, [&](int64_t done) { told = done; });
  ASSERT_EQ(logprobs.size(), datums.size());
  EXPECT_EQ(told, 40);
  for (size_t i = 0; i < datums.size(); ++i)
    for (size_t t = 0; t < datums[i].targets.size(); ++t)
      EXPECT_EQ(logprobs[i][t], datums[i].weights[t] == 0 ? 0.0f : Teaching::logprob(datums[i].targets[t], t + 1))
          << i << ", row " << t;
}

TEST(HttpTeacher, SaysItsLikeliestTokens) {
  Teaching server([](const Json& body, int) {
    EXPECT_EQ(body["prompt_logprobs"], 2);
    Json tokens = Json::array({nullptr});
    for (size_t t = 1; t < body["prompt"].size(); ++t)
      tokens.push_back({{std::to_string(body["prompt"][t].get<int32_t>()), {{"logprob", -7.5}, {"rank", 90}}},
                        {"1000", {{"logprob", -1.25}, {"rank", 2}}},
                        {"2000", {{"logprob", -0.5}, {"rank", 1}}}});
    return server::HttpResponse{.body = Json{{"choices", {{{"text", ""}, {"prompt_logprobs", tokens}}}}}.dump()};
  });
  HttpTeacher teacher({.address = server.address()}, 1);
  const std::vector<train::Datum> datums = batch();
  const auto answers = teacher.answer({.datums = datums, .top = 2}, {});
  for (size_t i = 0; i < datums.size(); ++i)
    for (size_t t = 0; t < datums[i].tokens.size(); ++t) {
      const bool asked = datums[i].weights[t] > 0;
      EXPECT_EQ(answers[i].top[2 * t], asked ? 2000 : -1);
      EXPECT_EQ(answers[i].top[2 * t + 1], asked ? 1000 : -1);
      EXPECT_EQ(answers[i].top_logprob[2 * t + 1], asked ? -1.25f : 0.0f);
      EXPECT_EQ(answers[i].logprob[t], asked ? -7.5f : 0.0f);
    }
  const std::vector<std::vector<int32_t>> candidates(datums.size());
  expect_error<ConfigError>([&] { teacher.answer({.datums = datums, .candidates = candidates}, {}); },
                            {"likeliest tokens only", "/generate"});
  expect_error<FormatError>(
      [&] {
        read_answer(TeacherDialect::completions,
                    R"({"choices": [{"prompt_logprobs": [null, {"2": {"logprob": -1}}]}]})",
                    {.datum = train::make_datum({1, 2}, {0, 1}), .top = 2}, "there");
      },
      {"1 of the 2 likeliest tokens at place 1"});
}

// SGLang's /generate as miles asks it: everything is listed at every place, or each place's own.
TEST(HttpTeacher, SpeaksSGLangsDialect) {
  for (const bool per_position : {false, true}) {
    Teaching server([per_position](const Json& body, int) {
      EXPECT_EQ(body["sampling_params"]["max_new_tokens"], 0);
      EXPECT_EQ(body["logprob_start_len"], 0);
      EXPECT_EQ(body["top_logprobs_num"], 1);
      EXPECT_EQ(body.contains("token_ids_logprob"), !per_position);
      const Json& ids = body["input_ids"];
      Json itself = Json::array({{nullptr, ids[0], nullptr}}), top = Json::array({nullptr}), others = top;
      for (size_t t = 1; t < ids.size(); ++t) {
        itself.push_back({Teaching::logprob(ids[t].get<int32_t>(), t), ids[t], nullptr});
        top.push_back({{-0.5, 9000 + t, nullptr}});
        Json said = Json::array();
        for (const Json& id : per_position ? body["token_ids_logprob_positions"][t] : body["token_ids_logprob"])
          said.push_back({Teaching::logprob(id.get<int32_t>(), t), id, nullptr});
        others.push_back(said.empty() ? Json() : said);
      }
      return server::HttpResponse{.body = Json{{"text", ""},
                                               {"meta_info",
                                                {{"input_token_logprobs", itself},
                                                 {"input_top_logprobs", top},
                                                 {"input_token_ids_logprobs", others}}}}
                                              .dump()};
    });
    net::Address address = server.address();
    address.prefix = "/generate";
    HttpTeacher teacher({.address = address, .per_position = per_position}, 1);
    const std::vector<train::Datum> datums = batch();
    std::vector<std::vector<int32_t>> candidates;
    for (size_t i = 0; i < datums.size(); ++i) {
      candidates.emplace_back();
      for (int32_t t = 0; t < datums[i].size(); ++t) candidates.back().insert(candidates.back().end(), {t + 50, -1});
    }
    const auto answers = teacher.answer({.datums = datums, .top = 1, .candidates = candidates}, {});
    for (size_t i = 0; i < datums.size(); ++i)
      for (size_t t = 0; t < datums[i].tokens.size(); ++t) {
        const bool asked = datums[i].weights[t] > 0;
        const auto token = static_cast<int32_t>(t);
        EXPECT_EQ(answers[i].logprob[t], asked ? Teaching::logprob(datums[i].targets[t], t + 1) : 0.0f);
        EXPECT_EQ(answers[i].top[t], asked ? 9001 + token : -1);
        EXPECT_EQ(answers[i].candidate_logprob[2 * t], asked ? Teaching::logprob(token + 50, t + 1) : 0.0f);
        EXPECT_EQ(answers[i].candidate_logprob[2 * t + 1], 0.0f);
      }
  }
}

// It stands behind the path of each request, and does not hide which dialect the path asks for.
TEST(HttpTeacher, AnAddressMayHaveAQuery) {
  Teaching server({}, "key=hunter2");
  const auto at = [&](const char* path) {
    return net::parse_address("http://" + server.address().authority() + path, "x");
  };
  HttpTeacher teacher({.address = at("/?key=hunter2")}, 1);
  const std::vector<train::Datum> datums = batch();
  EXPECT_EQ(teacher.logprobs(datums, {}).size(), datums.size());
  expect_error<ConfigError>([&] { HttpTeacher({.address = at("")}, 1); }, {"401"});
  Teaching refusing(
      [](const Json& body, int) {
        EXPECT_TRUE(body.contains("input_ids"));
        return server::HttpResponse{.status = 400, .body = "no"};
      },
      "key=hunter2");
  HttpTeacher generate(
      {.address = net::parse_address("http://" + refusing.address().authority() + "/generate?key=hunter2", "x")}, 1);
  expect_error<ConfigError>([&] { generate.logprobs(datums, {}); }, {"/generate?key=***", "400: no"});
}

TEST(NamedTeachers, EachRowHasItsOwn) {
  class Constant : public Teacher {
   public:
    explicit Constant(float value) : value_(value) {}
    std::vector<train::RowOutputs> answer(const TeacherQuestion& question, const train::Progress&) override {
      std::vector<train::RowOutputs> all;
      for (const train::Datum& datum : question.datums)
        all.push_back({.logprob = std::vector<float>(datum.tokens.size(), value_), .entropy = {}});
      return all;
    }

   private:
    const float value_;
  };
  const auto teachers = [](bool with_default) {
    std::map<std::string, std::unique_ptr<Teacher>> all;
    all["math"] = std::make_unique<Constant>(-1.0f);
    all["code"] = std::make_unique<Constant>(-2.0f);
    if (with_default) all["default"] = std::make_unique<Constant>(-3.0f);
    return NamedTeachers(std::move(all));
  };
  const std::vector<train::Datum> datums(4, train::make_datum({1, 2}, {0, 1}));
  const std::vector<std::string> names = {"code", "", "math", "law"};
  NamedTeachers three = teachers(true), two = teachers(false);
  const auto answers = three.answer({.datums = datums, .teachers = names}, {});
  const float wanted[] = {-2, -3, -1, -3};
  for (size_t i = 0; i < datums.size(); ++i) EXPECT_EQ(answers[i].logprob[0], wanted[i]);
  expect_error<DataError>([&] { two.answer({.datums = datums, .teachers = names}, {}); },
                          {"teacher that the run does not have", "sample 1", "default"});
}

TEST(HttpTeacher, IsWaitedForWhileItIsDown) {
  Teaching server([](const Json& body, int number) {
    return number % 3 == 0 ? server::HttpResponse{.status = 503, .body = "busy"} : Teaching::said(body);
  });
  HttpTeacher teacher({.address = server.address(), .timeout = std::chrono::milliseconds(30'000)}, 1);
  server.stop();
  std::thread back([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.start();
  });
  EXPECT_EQ(teacher.logprobs(batch(), {}).size(), 40u);
  back.join();
  EXPECT_GT(server.count, 40);
}

TEST(HttpTeacher, WhatItCannotSayIsAnError) {
  using std::chrono::milliseconds;
  const auto fails = [](const Teaching::Answer& answer, const auto& expect,
                        milliseconds timeout = milliseconds(60'000)) {
    Teaching server(answer);
    HttpTeacher teacher({.address = server.address(), .model = "big", .timeout = timeout}, 1);
    expect(teacher);
  };
  fails([](const Json&, int) { return server::HttpResponse{.status = 400, .body = "no prompt_logprobs"}; },
        [](HttpTeacher& teacher) {
          expect_error<ConfigError>([&] { teacher.logprobs(batch(), {}); },
                                    {"refuses", "status 400", "no prompt_logprobs"});
        });
  fails([](const Json&, int) { return server::HttpResponse{.status = 500, .body = "down"}; },
        [](HttpTeacher& teacher) {
          expect_error<ResourceError>([&] { teacher.logprobs(batch(), {}); }, {"does not answer", "attempts"});
        },
        milliseconds(300));
  for (const char* body :
       {R"({"choices": []})", R"({"choices": [{"text": "x"}]})", R"({"choices": [{"prompt_logprobs": [null]}]})",
        R"({"choices": [{"prompt_logprobs": [null, {"9": {"logprob": -1}}, null, null]}]})"})
    fails([body](const Json&, int) { return server::HttpResponse{.body = body}; },
          [](HttpTeacher& teacher) {
            expect_error<FormatError>([&] { teacher.logprobs(batch(), {}); }, {"no log-probs of the prompt"});
          });
}

TEST(HttpTeacher, ReportsAtTemperatureOne) {
  Teaching server;
  expect_error<ConfigError>([&] { HttpTeacher({.address = server.address()}, 0.7f); }, {"temperature"});
}

TEST(HttpTeacher, CanBeStopped) {
  Teaching server;
  HttpTeacher teacher({.address = server.address()}, 1);
  EXPECT_THROW(teacher.logprobs(batch(), [](int64_t) { throw Cancelled({.what = "stop"}); }), Cancelled);
}

}  // namespace
}  // namespace lockstep::rl
