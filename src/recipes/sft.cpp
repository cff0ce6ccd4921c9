#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "recipes/adapter.h"
#include "recipes/bad_rows.h"
#include "recipes/commands.h"
#include "recipes/data_order.h"
#include "recipes/run_log.h"
#include "recipes/sft_rows.h"
#include "recipes/steps.h"

namespace lockstep::recipes {

void run_sft(const SftOptions& options, const Control& control) {
  if (!options.save.save.empty()) fs::require_writable_directory(options.save.save);
  Stream stream(stream_options(options.base));
  const Base base = load_base(options.base, stream, control);
  const SftRows data = read_sft_rows(options.prompt_data, base, options.max_bad_rows);
  const auto num_rows = static_cast<int64_t>(data.rows.size());
  *control.info << fmt::format("data    {} rows from {}\n", num_rows, options.prompt_data);
  report_bad_rows(data.bad_rows, options.max_bad_rows, *control.info);
  if (data.unaligned > 0)
    *control.info << fmt::format(
        "note    {} rows: the prompt's tokens are no prefix of prompt + completion; the mask "
        "covers as many tokens as the prompt alone has\n",
        data.unaligned);

  const int64_t batch = options.training.global_batch_size;
  const int64_t total = options.num_epoch * ((num_rows + batch - 1) / batch);
  TrainingRun run(options.adapter, options.optimizer, options.training, options.save, base, stream, control,
                  {{"rows of --prompt-data", num_rows},
                   {"--global-batch-size", batch},
                   {"--rollout-shuffle", options.shuffle},
                   {"--rollout-seed", options.shuffle_seed},
                   {"--seed", options.training.seed},
                   {"--lora-dropout", options.adapter.config.dropout}});
  run.set_schedule(total);
  DataOrder order(num_rows, options.shuffle, options.shuffle_seed);
  RunLog log(options.save.save, run.saved_iteration(), control);
  if (run.iteration() >= total) *control.info << fmt::format("note    all {} steps were done before\n", total);
  const Pace pace(run.iteration(), total);

  for (int64_t step = run.iteration(); step < total; ++step) {
    const Stopwatch watch;
    std::vector<train::Datum> datums;
    const int64_t left_in_epoch = num_rows - run.data_position() % num_rows;
    for (int64_t row : order.rows(run.data_position(), std::min(batch, left_in_epoch)))
      datums.push_back(data.rows[static_cast<size_t>(row)]);
    const double lr = run.learning_rate();
    const auto on_progress = [&](int64_t done) {
      log.progress(fmt::format("step {}/{}: {}/{} rows", step + 1, total, done, datums.size()));
    };
    const train::StepReport report = run.step(datums, train::SftLoss{}, on_progress);
    const double tokens_per_s = 1000.0 * static_cast<double>(report.tokens) / watch.ms();
    run.completed(static_cast<int64_t>(datums.size()));
    run.set_version(step + 1);
    log.write({{"step", step + 1},
               {"loss", report.loss},
               {"grad_norm", report.grad_norm},
               {"lr", lr},
               {"tokens", report.tokens},
               {"tokens_per_s", tokens_per_s}});
    log.say(fmt::format("step {}/{} | loss {:.5f} | grad_norm {:.3f} | lr {:.2e} | {} tokens | {:.0f} tok/s | {}",
                        step + 1, total, report.loss, report.grad_norm, lr, report.tokens, tokens_per_s,
                        pace.left(step + 1)));
    run.save_if_due();
  }
  run.finish();
}

}  // namespace lockstep::recipes
