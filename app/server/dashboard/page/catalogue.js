// Which charts there are. To add one, add a line: [title, [series...], options]. A metric that no line names gets a chart of
// its own under "Other", so that a new metric needs no change here.
//
//   series    names of metrics.jsonl; "*" stands for anything and makes a chart of each; several are drawn in one chart
//   band      [low, high] or [deviation]: names, "*" as in series, drawn around the first series
//   stacked   the series are parts of a whole
//   unit      "bytes" or "ms"
//   absent    what the chart says of a run whose last lines have no number in the first series, but null

const kNoDifference =
  "The sampler's version is older than the trainer's, or there is dropout: comparing takes one more forward pass of a " +
  "step's samples. --true-on-policy-mode (equal bits, or the run ends) and --ci-train-rollout-logprob-abs-diff-threshold X (at most X) measure it.";

export const catalogue = [
  ["Result", [
    ["Reward", ["reward"], { band: ["reward_std"] }],
    ["Reward of *", ["reward/*"], { band: ["reward/*_std"] }],
    ["Evaluation: accuracy on *", ["eval/*/accuracy"]],
    ["Loss", ["loss"]],
    ["Evaluation: loss on *", ["eval/*/loss"]],
    ["Evaluation: perplexity on *", ["eval/*/perplexity"]],
    ["Evaluation: token accuracy on *", ["eval/*/token_accuracy"]],
    ["Rewards: chosen, rejected", ["rewards/chosen", "rewards/rejected"]],
    ["Rewards: chosen minus rejected", ["rewards/margins"]],
    ["Pairs in the right order", ["rewards/accuracies"]],
    ["Evaluation: rewards on *: chosen, rejected", ["eval/*/rewards/chosen", "eval/*/rewards/rejected"]],
    ["Evaluation: rewards on *: chosen minus rejected", ["eval/*/rewards/margins"]],
    ["Evaluation: pairs in the right order on *", ["eval/*/rewards/accuracies"]],
    ["pass@k", ["passrate/pass@1", "passrate/pass@2", "passrate/pass@4", "passrate/pass@8", "passrate/pass@16"]],
    ["Unknown rewards", ["reward_unknown"]],
  ]],
  ["Samples", [
    ["Response length", ["response_len"], { band: ["response_len_min", "response_len_max"] }],
    ["Truncated responses", ["truncated"]],
    ["Groups with equal rewards", ["frac_reward_zero_std"]],
    ["Entropy", ["entropy"]],
    ["Staleness: mean, largest", ["staleness", "staleness_max"]],
    ["Groups: ready, under way, too old", ["async/ready_groups", "async/running_groups", "async/stale_groups"]],
    ["Samples that several versions drew", ["async/followed_samples"]],
    ["Partial rollouts: groups under way", ["partial/groups_under_way"]],
    ["Tokens that earlier rollouts drew", ["partial/older_tokens"]],
  ]],
  ["Policy", [
    ["KL to the reference", ["kl"]],
    ["KL of the step (old - new)", ["ppo_kl"]],
    ["Policy loss", ["pg_loss"]],
    ["Clipped tokens", ["pg_clipfrac", "tis_clipfrac", "opsm_clipfrac"]],
    ["Log-prob difference: mean, largest", ["logprob_diff", "logprob_diff_max"], { absent: kNoDifference }],
    ["Mismatch of sampler and old policy: mean, largest", ["mismatch_mean", "mismatch_max"]],
    ["Gradient norm", ["grad_norm"]],
    ["Learning rate", ["lr"]],
    ["Log-probs: chosen, rejected", ["logps/chosen", "logps/rejected"]],
    ["Evaluation: log-probs on *: chosen, rejected", ["eval/*/logps/chosen", "eval/*/logps/rejected"]],
  ]],
  ["Machine", [
    ["Time of a step by phase", ["rollout_ms", "reward_ms", "train_ms", "publish_ms"], { stacked: true, unit: "ms" }],
    ["Tokens per second", ["tokens_per_s"]],
    ["Tokens of a step", ["tokens"]],
    ["Tokens of the longest rank over the mean", ["rank_imbalance"]],
    ["Memory: process, GPU", ["memory_bytes", "gpu_memory_bytes"], { unit: "bytes" }],
  ]],
];
const kSilent = new Set(["version", "epoch", "response_len_min", "response_len_max", "reward_min", "reward_max"]);

// The charts for these names of metrics: {section, title, series: [...], band: [...], ...}. `unknown`: names without a number.
export function chartsFor(names, unknown) {
  const used = new Set(kSilent), charts = [];
  const fill = (pattern, star) => (star === null ? pattern : pattern.replace("*", star));
  for (const [section, entries] of catalogue)
    for (const [title, series, options = {}] of entries) {
      const stars = series[0].includes("*") ? starsOf(series[0], names) : [null];
      for (const star of stars) {
        const there = series.map((name) => fill(name, star)).filter((name) => names.has(name));
        if (there.length === 0 && !(options.absent && unknown.has(series[0]))) continue;
        const band = (options.band ?? []).map((name) => fill(name, star));
        for (const name of [...there, ...band]) used.add(name);
        charts.push({ ...options, section, title: fill(title, star), first: fill(series[0], star), series: there, band: band.every((name) => names.has(name)) ? band : [] });
      }
    }
  for (const name of [...names].sort())
    if (!used.has(name)) charts.push({ section: "Other", title: name, series: [name], band: [] });
  return charts;
}

function starsOf(pattern, names) {
  const [head, tail] = pattern.split("*");
  const found = [];
  for (const name of names)
    if (name.startsWith(head) && name.endsWith(tail) && name.length > head.length + tail.length && !(tail === "" && name.endsWith("_std")))
      found.push(name.slice(head.length, name.length - tail.length));
  return found.sort();
}
