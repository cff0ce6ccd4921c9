// Runs over several ranks, each a thread of the test.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "data/compression.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {

using Change = std::function<void(int rank, Control& control)>;

class RanksOfThreads : public Training {
 protected:
  // Nine pairs, with a set held out.
  SftOptions dpo(const std::string& save) {
    std::string rows;
    for (int i = 0; i < 9; ++i)
      rows += fmt::format("{{\"prompt\": \"{}+{}=\", \"chosen\": \"{}\", \"rejected\": \"{}\"}}\n", i, i + 1, 2 * i + 1,
                          2 * i + 3);
    SftOptions options = sft(save);
    options.base.hf_checkpoint = kArith;
    options.prompt_data = dir_.write("pairs.jsonl", rows).string();
    options.loss = train::DpoLoss{.beta = 0.5f};
    options.eval_sets = {{"held_out", options.prompt_data}};
    options.eval_interval = 2;
    return options;
  }

  // What each rank threw: "nothing", or kind and message.
  template <class Options>
  std::vector<std::string> run_on(int size, const Options& options, void (*run)(const Options&, const Control&),
                                  const Change& change = {}) {
    std::vector<std::unique_ptr<parallel::Group>> groups = parallel::threads(size, {.call = std::chrono::minutes(2)});
    std::vector<std::string> thrown(groups.size(), "nothing");
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] {
        std::ostringstream said;
        Control control{.out = &said, .info = &said, .rank = rank};
        control.join = [&](const parallel::Identity&) { return std::move(groups[static_cast<size_t>(rank)]); };
        if (change) change(rank, control);
        Options mine = options;
        mine.base.stream.threads = 1;
        try {
          run(mine, control);
        } catch (const Error& error) {
          thrown[static_cast<size_t>(rank)] = fmt::format("{} {}: {}", error.kind(), error.exit_code(), error.what());
        }
      });
    for (std::thread& rank : ranks) rank.join();
    return thrown;
  }
  template <class Options>
  void run_well_on(int size, const Options& options, void (*run)(const Options&, const Control&)) {
    for (const std::string& error : run_on(size, options, run)) EXPECT_EQ(error, "nothing") << size << " ranks";
  }

  // What is kept of each rollout: all files, by name.
  std::map<std::string, std::string> samples(const std::string& save) const {
    std::map<std::string, std::string> files;
    const fs::Path directory = dir_.path() / save / "samples";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      if (entry.is_regular_file())
        files[std::filesystem::relative(entry.path(), directory).string()] = fs::read_file(entry.path());
    return files;
  }

  static std::string plain(const std::string& bytes) {
    std::string text;
    bool given = false;
    data::decompress(
        data::detect_compression(bytes),
        [&] { return std::exchange(given, true) ? std::string_view() : std::string_view(bytes); }, "samples",
        [&](std::string_view piece) { text += piece; });
    return text;
  }

  void expect_same(const std::string& save, const std::string& wanted, int64_t iteration) const {
    EXPECT_EQ(adapter_bytes(save, iteration), adapter_bytes(wanted, iteration)) << save;
    EXPECT_EQ(results(save), results(wanted)) << save;
  }
};

}  // namespace lockstep::recipes
