#include "rl/python_reward.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace lockstep::rl {

namespace {

constexpr const char* kShim = R"py(
import asyncio, importlib, inspect, json, math, os, sys, types

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
path, groups, input_key, metadata_key = sys.argv[1], sys.argv[2] == "1", sys.argv[3], sys.argv[4]
sys.path.insert(0, os.getcwd())


class Sample(types.SimpleNamespace):
    pass


def slime_sample(given):
    row = given.get("row") or {}
    return Sample(
        prompt=given["prompt"], response=given["response"], label=row_label(given), tokens=given["tokens"],
        response_length=given["response_length"], metadata=row.get(metadata_key) or {}, reward=None,
        status="truncated" if given["truncated"] else "completed", index=given["index"], group_index=given["group"],
        rollout_id=given["rollout"])


def row_label(given):
    return given["label"]


def call(function, *arguments, **keywords):
    result = function(*arguments, **keywords)
    return asyncio.run(result) if inspect.isawaitable(result) else result


def as_slime(function, samples):
    args = types.SimpleNamespace(custom_rm_path=path, group_rm=groups, input_key=input_key, metadata_key=metadata_key)
    samples = [slime_sample(sample) for sample in samples]
    return list(call(function, args, samples)) if groups else [call(function, args, sample) for sample in samples]


def as_verl(function, samples):
    rewards = []
    for sample in samples:
        row = sample.get("row") or {}
        truth = (row.get("reward_model") or {}).get("ground_truth", sample["label"])
        rewards.append(call(function, data_source=row.get("data_source"), solution_str=sample["response"],
                            ground_truth=truth, extra_info=row.get("extra_info")))
    return rewards


def as_trl(function, samples):
    rows = [sample.get("row") or {} for sample in samples]
    prompts = [row.get(input_key, sample["prompt"]) for row, sample in zip(rows, samples)]
    completions = [
        [{"role": "assistant", "content": sample["response"]}] if isinstance(prompt, list) else sample["response"]
        for prompt, sample in zip(prompts, samples)]
    columns = {key: [row.get(key) for row in rows] for row in rows for key in row}
    for key in ("prompt", "prompts", "completion", "completions", "completion_ids"):
        columns.pop(key, None)
    return list(call(function, prompts=prompts, completions=completions,
                     completion_ids=[sample["tokens"] for sample in samples], **columns))


def load():
    module, name = path.rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)
    names = list(inspect.signature(function).parameters)
    if "solution_str" in names:
        return function, as_verl
    if "completions" in names:
        return function, as_trl
    if len(names) >= 2 and names[0] == "args":
        return function, as_slime
    raise TypeError(f"{path}{inspect.signature(function)} is neither slime's fn(args, sample), nor verl's "
                    "fn(data_source, solution_str, ground_truth, extra_info), nor TRL's fn(prompts, completions, ...)")


def plain(value):
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]  # no number, and shown as it is
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int):
        return value
    return float(value) if isinstance(value, float) and math.isfinite(value) else None


try:
    loaded = load()
except BaseException as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(127)  # as a shell for a program that is not there
for line in sys.stdin:
    request = json.loads(line)
    samples = request["samples"] if groups else [request]
    rewards, failure = [None] * len(samples), None
    try:
        given = [plain(reward) for reward in loaded[1](loaded[0], samples)]
        if len(given) != len(samples):
            raise ValueError(f"wrong number of rewards: {len(given)} for {len(samples)} samples")
        rewards = given
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    answer = {"id": request["id"], "failure": failure}
    answer["rewards" if groups else "reward"] = rewards if groups else rewards[0]
    print(json.dumps(answer), file=answers, flush=True)
)py";

// Within double quotes of a shell nothing of it means anything.
bool is_plain(const std::string& text) {
  return std::ranges::all_of(text,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; });
}

}  // namespace

void run_python(net::LinePoolOptions& pool, const std::string& path, bool groups, const std::string& input_key,
                const std::string& metadata_key) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == path.size() || !is_plain(path) || path.front() == '-')
    throw ConfigError({.what = "a reward function is named by its module and its name",
                       .where = "RewardConfig::python_path",
                       .got = path,
                       .wanted = "module.function, as Python imports it from the working directory or PYTHONPATH"});
  pool.environment = {{"LOCKSTEP_REWARD_SHIM", kShim},
                      {"LOCKSTEP_INPUT_KEY", input_key},
                      {"LOCKSTEP_METADATA_KEY", metadata_key},
                      {"PYTHONUNBUFFERED", "1"}};
  pool.command = std::string("python3 -c \"$LOCKSTEP_REWARD_SHIM\" ") + path + (groups ? " 1" : " 0") +
                 " \"$LOCKSTEP_INPUT_KEY\" \"$LOCKSTEP_METADATA_KEY\"";
}

}  // namespace lockstep::rl
