// `lockstep merge`: a base and an adapter become one model (load/merge.h).
#include "load/merge.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "commands/files/commands.h"
#include "commands/files/output_directory.h"
#include "recipes/adapter.h"
#include "recipes/run_log.h"

namespace lockstep::commands {

namespace {

// An adapter that names its base must lie on this one.
void check_merge_base(const checkpoint::PeftDirectory& adapter, const MergeOptions& options, Stream& stream,
                      const recipes::Control& control) {
  const auto& metadata = adapter.metadata();
  if (!metadata || metadata->base_fingerprint.empty()) {
    *control.info << fmt::format("note    {} does not say which base it belongs to: judged by names and shapes\n",
                                 adapter.path().string());
    return;
  }
  recipes::print_notes(check_base(adapter, load::identify_base(options.base.hf_checkpoint, stream,
                                                               load::caches_below(options.base.home))),
                       control);
}

}  // namespace

void run_merge(const MergeOptions& options, const recipes::Control& control) {
  const Stopwatch watch;
  Stream stream({.threads = options.base.stream.threads, .isa = options.base.stream.isa});
  const fs::Path base_path = load::model_directory(options.base.hf_checkpoint, load::caches_below(options.base.home)),
                 adapter_path = load::require_adapter_directory(options.adapter_path);
  const OutputDirectory output(
      options.output, {.overwrite = options.overwrite, .marker = "config.json", .inputs = {base_path, adapter_path}},
      control);
  const checkpoint::PeftDirectory directory(adapter_path);
  check_merge_base(directory, options, stream, control);
  const load::AdapterFactors adapter(directory);
  load::require_finite(adapter);
  checkpoint::HfDirectory base(base_path);
  base.open_weights();
  load::Merge merge({.dtype = options.dtype, .max_shard_bytes = options.max_shard_bytes}, base, adapter, stream);
  const bool many = merge.num_shards() > 1;
  const load::Merge::Watch told{.progress =
                                    [&](double done) {
                                      if (control.terminal)
                                        *control.info << fmt::format("\rmerging {:3.0f} %", 100 * done) << std::flush;
                                    },
                                .written =
                                    [&](const std::string& file) {
                                      if (!control.terminal && many) *control.info << fmt::format("written {}\n", file);
                                    },
                                .stopped = control.interrupted};
  output.write([&](const fs::Path& fresh) {
    try {
      merge.write(fresh, told);
    } catch (const Cancelled& error) {
      // It is written aside: the user knows the output by its name.
      Fault fault = error.fault();
      fault.where = options.output;
      throw Cancelled(std::move(fault));
    }
    if (control.terminal) *control.info << "\r";
  });
  if (merge.untied())
    *control.info << "note    the base's head is its embedding, and the adapter changes one of them: lm_head.weight is "
                     "a tensor of its own, and config.json says tie_word_embeddings false\n";
  const double seconds = watch.ms() / 1000;
  *control.info << fmt::format("merged  {} modules of {} into {}: {} shard{}, {:.0f} MB in {:.1f} s\n",
                               adapter.modules().size(), adapter_path.string(), options.output, merge.num_shards(),
                               merge.num_shards() == 1 ? "" : "s", static_cast<double>(merge.total_bytes()) * 1e-6,
                               seconds);
}

}  // namespace lockstep::commands
