// Distillation against tools/golden/distillation_cases.py, which writes it from its formulas in double precision; and
// the stages around it with a trainer and teachers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json.h"
#include "rl/ask_teacher.h"
#include "rollout/tiny_model.h"
#include "support/temp_directory.h"
#include "train/train_step.h"

namespace lockstep::rl {
namespace {

using namespace rollout::testing_models;
using testing::expect_error;
using train::DistillKind;
using train::DistillTerm;

constexpr double kTolerance = 1e-6;
constexpr size_t kTop = 4;

const Json& golden() {
  static const Json cases = read_json(LOCKSTEP_SOURCE_DIR "/tests/golden/rl/distillation.json");
  return cases;
}

// Of a policy that the file names, what it says of each of these tokens of row t.
std::vector<float> said(const Json& sample, const char* policy, const char* tokens, size_t t) {
  std::vector<float> values;
  for (const Json& token : sample.at(tokens)[t])
    values.push_back(sample.at(policy)[t][token.get<size_t>()].get<float>());
  return values;
}

TEST(TopDifference, IsThatOfTheFormulas) {
  EXPECT_EQ(golden().at("differences").size(), 15u);
  for (const Json& wanted : golden().at("differences")) {
    const Distillation how{.coef = 1,
                           .top = kTop,
                           .tokens = token_set_of(wanted.at("tokens")),
                           .weight = token_weight_of(wanted.at("weight"))};
    EXPECT_EQ(token_set_name(how.tokens), wanted.at("tokens"));
    EXPECT_EQ(token_weight_name(how.weight), wanted.at("weight"));
    for (size_t i = 0; i < golden().at("rollout").size(); ++i) {
      const Json& sample = golden().at("rollout")[i];
      for (size_t t = 0; t < sample.at("weights").size(); ++t) {
        const auto tokens = [&](const char* name) { return sample.at(name)[t].get<std::vector<int32_t>>(); };
        const std::vector<int32_t> student = tokens("student_top"), teacher = tokens("teacher_top");
        const auto own = said(sample, "student", "student_top", t), its = said(sample, "teacher", "teacher_top", t);
        const auto cross = said(sample, "teacher", "student_top", t), back = said(sample, "student", "teacher_top", t);
        const double got = top_difference(how, {.student = student,
                                                .teacher = teacher,
                                                .student_logprob = own,
                                                .teacher_logprob = its,
                                                .teacher_on_student = cross,
                                                .student_on_teacher = back});
        EXPECT_NEAR(got, wanted.at("difference")[i][t].get<double>(), kTolerance)
            << wanted.at("tokens") << " " << wanted.at("weight") << ", sample " << i << ", row " << t;
      }
    }
  }
  EXPECT_EQ(top_difference({.top = 2, .tokens = TokenSet::intersection}, {}), 0.0);
  expect_error<ConfigError>([] { token_set_of("all"); }, {"all"});
  expect_error<ConfigError>([] { token_weight_of("both"); }, {"both"});
}

struct LossCase {
  std::vector<train::Datum> datums;
  std::vector<float> logprob, candidate_logprob, entropy;
  train::PolicyLoss loss;
  train::LossScale scale;

  explicit LossCase(const Json& wanted) {
    const std::string mode = wanted.at("mode");
    DistillTerm& term = loss.distill;
    term = {.kind = mode.starts_with("forward_kl_topk") ? DistillKind::forward_kl_topk : DistillKind::estimator,
            .coef = wanted.at("coef"),
            .max_value = wanted.at("max_value"),
            .min_logprob = wanted.at("min_logprob"),
            .tail = mode == "forward_kl_topk_tail",
            .tail_eps = wanted.at("tail_eps")};
    if (term.kind == DistillKind::estimator) term.estimator = train::parse_kl_type(mode);
    for (const Json& sample : golden().at("rollout")) add(sample);
    const std::string how = wanted.at("reduction");
    scale.num_samples = static_cast<int64_t>(datums.size());
    scale.weight_total = 0;
    for (const train::Datum& datum : datums) scale.weight_total += datum.weight_sum();
    scale.per_token = how != "seq-mean-token-mean";
    if (how == "token-sum") scale.divisor = 1;
  }

  void add(const Json& sample) {
    const bool candidates = loss.distill.kind == DistillKind::forward_kl_topk;
    train::Datum datum;
    datum.weights = sample.at("weights").get<std::vector<float>>();
    const size_t rows = datum.weights.size();
    datum.tokens.assign(rows, 1);
    datum.advantages.assign(rows, 0.0f);  // so that the policy gradient adds nothing
    for (size_t t = 0; t < rows; ++t) {
      const auto target = sample.at("target")[t].get<size_t>();
      datum.targets.push_back(datum.weights[t] > 0 ? static_cast<int32_t>(target) : -1);
      logprob.push_back(sample.at("now")[t][target]);
      datum.policy_logprobs.push_back(logprob.back());
      if (!candidates) datum.teacher_logprobs.push_back(sample.at("teacher")[t][target]);
      if (!candidates) continue;
      for (const float value : said(sample, "now", "teacher_top", t)) candidate_logprob.push_back(value);
      for (const float value : said(sample, "teacher", "teacher_top", t)) datum.teacher_logprobs.push_back(value);
      for (const Json& token : sample.at("teacher_top")[t]) datum.candidates.push_back(token);
    }
    datum.sampled_logprobs = datum.policy_logprobs;
    entropy.resize(logprob.size());
    datums.push_back(std::move(datum));
  }

  train::LossOutput evaluate(std::vector<float>& d_logprob, std::vector<float>& d_candidates) const {
    d_logprob.assign(logprob.size(), NAN);
    d_candidates.assign(candidate_logprob.size(), NAN);
    return train::evaluate_loss(loss, scale, datums,
                                {.logprob = logprob, .entropy = entropy, .candidate_logprob = candidate_logprob},
                                {.logprob = d_logprob, .candidate_logprob = d_candidates});
  }
};

TEST(DistillLoss, ValuesAndGradientsAreThoseOfTheFormulas) {
  EXPECT_EQ(golden().at("losses").size(), 18u);
  for (const Json& wanted : golden().at("losses")) {
    const LossCase c(wanted);
    std::vector<float> d_logprob, d_candidates;
    const train::LossOutput output = c.evaluate(d_logprob, d_candidates);
    const std::string shown = wanted.at("mode").dump() + " " + wanted.at("max_value").dump();
    EXPECT_NEAR(output.loss, wanted.at("loss").get<double>(), kTolerance) << shown;
    EXPECT_GT(output.metrics.distillation, 0) << shown;
    ASSERT_EQ(d_candidates.size(), wanted.at("d_candidates").size());
    for (size_t i = 0; i < d_logprob.size(); ++i)
      EXPECT_NEAR(d_logprob[i], wanted.at("d_logprob")[i].get<double>(), kTolerance) << shown << ", row " << i;
    for (size_t i = 0; i < d_candidates.size(); ++i)
      EXPECT_NEAR(d_candidates[i], wanted.at("d_candidates")[i].get<double>(), kTolerance) << shown << ", entry " << i;
  }
}

TEST(DistillLoss, WhatItCannotReadIsAnError) {
  const Json& wanted = golden().at("losses")[0];
  std::vector<float> a, b;
  LossCase c(wanted);
  c.datums[1].teacher_logprobs.pop_back();
  expect_error<DataError>([&] { c.evaluate(a, b); }, {"candidate tokens", "sample 1"});
  LossCase one(wanted);
  one.datums[0].teacher_logprobs[2 * kTop] = -INFINITY;
  expect_error<DataError>([&] { one.evaluate(a, b); }, {"teacher", "sample 0, row 2"});
  LossCase lost(wanted);
  lost.candidate_logprob[2 * kTop] = NAN;
  expect_error<DataError>([&] { lost.evaluate(a, b); }, {"teacher's token", "sample 0, row 2"});
  LossCase cut(wanted);
  cut.candidate_logprob.pop_back();
  EXPECT_THROW(cut.evaluate(a, b), ShapeError);
  LossCase k1(golden().at("losses")[4]);
  k1.loss.distill.estimator = train::KlType::k1;
  expect_error<ConfigError>([&] { k1.evaluate(a, b); }, {"k1"});
  LossCase below(wanted);
  below.loss.distill.max_value = -1;
  expect_error<ConfigError>([&] { below.evaluate(a, b); }, {"max_value"});
  LossCase no_tail(wanted);
  no_tail.loss.distill.tail_eps = 0;
  expect_error<ConfigError>([&] { no_tail.evaluate(a, b); }, {"tail_eps"});
}

// A trainer whose adapter has moved, its base as the teacher.
struct World {
  Stream stream{{.threads = 1}};
  const model::ModelSpec config = qwen3_config();
  const std::shared_ptr<const model::Model> model = random_model(config, stream);
  const lora::AdapterVersion start = random_adapter(config, 0, 1);
  train::Trainer trainer{model, start.layout, start.weights, {.max_tokens = 20, .temperature = 0.7f}, stream};
  AdapterTeacher base{trainer, std::nullopt};
  ModelTeacher apart{model, 0.7f, 15, stream};  // the same, in passes of its own

  std::vector<train::Datum> datums() {
    std::vector<train::Datum> all;
    for (int32_t i = 0; i < 5; ++i) {
      std::vector<int32_t> tokens;
      std::vector<float> mask;
      for (int32_t t = 0; t < 6 + i; ++t) {
        tokens.push_back((7 * t + 3 * i + 1) % static_cast<int32_t>(config.vocab_size));
        mask.push_back(t > 1 && t != 4 ? 1.0f : 0.0f);
      }
      train::Datum datum = train::make_datum(tokens, mask);
      datum.advantages.assign(datum.tokens.size(), 0.25f);
      if (i == 3) datum.weights.assign(datum.tokens.size(), 0.0f);  // its reward is unknown
      all.push_back(std::move(datum));
    }
    const lora::AdapterVersion now = trainer.adapter();
    const auto logprobs = trainer.logprobs(all, &now);
    for (size_t i = 0; i < all.size(); ++i) all[i].policy_logprobs = all[i].sampled_logprobs = logprobs[i];
    return all;
  }
  double distilled(std::vector<train::Datum>& batch, const Distillation& how, Teacher& teacher) {
    return distill(batch, how, {.teacher = teacher}, trainer, trainer.adapter());
  }
};

bool same_advantages(const std::vector<train::Datum>& a, const std::vector<train::Datum>& b) {
  return std::ranges::equal(a, b, {}, &train::Datum::advantages, &train::Datum::advantages);
}

TEST(Distillation, TopOfTheWholeVocabularyIsTheKlDivergence) {
  World world;
  const auto datums = world.datums();
  const lora::AdapterVersion now = world.trainer.adapter();
  const auto all = world.config.vocab_size;
  const auto mine = world.trainer.row_outputs(datums, &now, {.top = all, .only_weighted = true});
  const auto its = world.trainer.row_outputs(datums, nullptr, {.top = all, .only_weighted = true});
  for (const TokenSet set :
       {TokenSet::only_student, TokenSet::only_teacher, TokenSet::intersection, TokenSet::either}) {
    std::vector<train::Datum> changed = datums;
    world.distilled(changed, {.coef = 2, .top = all, .tokens = set}, world.base);
    for (size_t i = 0; i < datums.size(); ++i)
      for (size_t t = 0; t < datums[i].tokens.size(); ++t) {
        double kl = 0;
        const auto row = static_cast<std::ptrdiff_t>(t * static_cast<size_t>(all));
        for (std::ptrdiff_t a = row; a < row + all; ++a)
          for (std::ptrdiff_t b = row; b < row + all; ++b)
            if (datums[i].weights[t] > 0 && mine[i].top[static_cast<size_t>(a)] == its[i].top[static_cast<size_t>(b)])
              kl += std::exp(mine[i].top_logprob[static_cast<size_t>(a)]) *
                    (static_cast<double>(mine[i].top_logprob[static_cast<size_t>(a)]) -
                     its[i].top_logprob[static_cast<size_t>(b)]);
        EXPECT_NEAR(changed[i].advantages[t], 0.25 - 2 * kl, 2e-6) << token_set_name(set);
      }
  }
  std::vector<train::Datum> none = datums;  // nothing is in one list alone
  EXPECT_EQ(world.distilled(none, {.coef = 2, .top = all, .tokens = TokenSet::one_of_them}, world.base), 0.0);
  EXPECT_TRUE(same_advantages(none, datums));
}

TEST(Distillation, TeachersOfOneModelSayTheSame) {
  World world;
  for (const TokenSet set : {TokenSet::only_student, TokenSet::only_teacher, TokenSet::intersection, TokenSet::either,
                             TokenSet::one_of_them})
    for (const int64_t top : {int64_t{0}, int64_t{3}}) {
      std::vector<train::Datum> a = world.datums(), b = a;
      const Distillation how{.coef = 0.5, .top = top, .tokens = set};
      EXPECT_EQ(world.distilled(a, how, world.base), world.distilled(b, how, world.apart));
      EXPECT_TRUE(same_advantages(a, b)) << token_set_name(set) << " " << top;
      EXPECT_FALSE(same_advantages(a, world.datums()));
    }
  std::vector<train::Datum> a = world.datums(), b = a;
  ask_teacher(a, {.kind = DistillKind::forward_kl_topk}, 3, {.teacher = world.base});
  ask_teacher(b, {.kind = DistillKind::forward_kl_topk}, 3, {.teacher = world.apart});
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].candidates, b[i].candidates);
    EXPECT_EQ(a[i].teacher_logprobs, b[i].teacher_logprobs);
    EXPECT_EQ(a[i].num_candidates(), 3);
  }
}

// A student that is told nothing else comes closer to its teacher, by the gradient of all of its likeliest tokens.
TEST(Distillation, LossesThatFlowBringTheStudentToTheTeacher) {
  for (const DistillTerm& term : {DistillTerm{.kind = DistillKind::forward_kl_topk, .max_value = 0, .min_logprob = 0},
                                  DistillTerm{.kind = DistillKind::estimator, .estimator = train::KlType::k2}}) {
    World world;
    std::vector<double> losses;
    for (int step = 0; step < 30; ++step) {
      std::vector<train::Datum> datums = world.datums();
      for (train::Datum& datum : datums) datum.advantages.assign(datum.tokens.size(), 0.0f);
      ask_teacher(datums, term, 8, {.teacher = world.base});
      const train::PolicyLoss loss{.distill = term};
      losses.push_back(train::train_step(world.trainer, datums, loss, 3e-3, {}).metrics.distillation);
    }
    EXPECT_GT(losses.front(), 1e-3);
    EXPECT_LT(losses.back(), 0.5 * losses.front()) << losses.front();
  }
}

}  // namespace
}  // namespace lockstep::rl
