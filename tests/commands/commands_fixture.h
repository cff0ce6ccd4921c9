// A temporary directory with models and adapters, and what commands print.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "load/loading.h"
#include "recipes/adapter.h"
#include "recipes/rl.h"
#include "recipes/sft.h"

namespace lockstep::commands {

using testing::kArith, testing::kTiny;

class Commands : public testing::Loading {
 protected:
  Commands() {
    control_.out = &out_;
    control_.info = &info_;
  }

  std::string taken(std::ostringstream& stream) {
    std::string text = stream.str();
    stream.str("");
    return text;
  }

  recipes::SftOptions sft() const {
    recipes::SftOptions options;
    options.base = {.hf_checkpoint = kTiny, .stream = {.threads = 1}, .device = "cpu"};
    options.adapter.config.rank = 4;
    options.adapter.config.target_modules = {"all-linear"};
    options.training.global_batch_size = 4;
    options.prompt_data = path("absent.jsonl");
    return options;
  }

  std::vector<Json> lines() {
    std::vector<Json> rows;
    std::istringstream text(taken(out_));
    for (std::string line; std::getline(text, line);) rows.push_back(Json::parse(line));
    return rows;
  }

  std::ostringstream out_, info_;
  recipes::Control control_;
};

}  // namespace lockstep::commands
