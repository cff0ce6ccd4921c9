"""How two servers' answers to one case are compared: status, shape, greedy tokens, log-probs."""
import re

TIE = 1e-3        # two best logits closer than this may be decided either way
TOLERANCE = 2e-3  # of log-probs; both servers compute in float32, in another order


# Shapes

def differences(theirs, ours, path=""):
    """What of `ours` a client written for `theirs` would stumble over, one line each: 'path: what'."""
    if theirs == ours:
        return []
    if isinstance(theirs, str) or isinstance(ours, str):
        return [f"{path}: {named(ours)} instead of {named(theirs)}"]
    kind, = theirs
    if kind not in ours:
        return [f"{path}: {named(ours)} instead of {named(theirs)}"]
    mine, other = ours[kind], theirs[kind]
    if kind in ("list", "map"):
        return of_elements(other, mine, path + ("[]" if kind == "list" else "{}"))
    found = []
    for key in sorted({*mine, *other}):
        inside = f"{path}.{key}"
        if kind == "stream":
            found += of_elements(other.get(key, []), mine.get(key, []), f"{path}event")
        elif key not in mine:
            found.append(f"{inside}: missing")
        elif key not in other:
            found.append(f"{inside}: extra")
        else:
            found += differences(other[key], mine[key], inside)
    return found


def of_elements(theirs, ours, path):
    """Each element's shape beside the nearest of the other server's."""
    if not theirs or not ours:
        return [f"{path}: {'elements' if ours else 'no element'}"] if theirs or ours else []
    found = []
    for one in ours:
        found += min((differences(other, one, path) for other in alike(theirs, one)), key=distance)
    for other in theirs:
        found += min((differences(other, one, path) for one in alike(ours, other)), key=distance)
    return list(dict.fromkeys(found))


def distance(found):
    """What is more than asked for counts least."""
    return sum(not line.endswith(": extra") for line in found), len(found)


def alike(shapes, one):
    """Those of its kind, if there are any."""
    return [shape for shape in shapes if named(shape) == named(one)] or shapes


def named(shape):
    return shape if isinstance(shape, str) else next(iter(shape))


def not_allowed(found, case, allowed):
    """`allowed`: (case pattern, difference pattern, reason), both matched whole."""
    return [line for line in found
            if not any(re.fullmatch(cases, case) and re.fullmatch(lines, line) for cases, lines, _ in allowed)]


# Values

def greedy_values(path, answer):
    """Of each choice its text, tokens, log-probs and the best log-probs at each token, descending."""
    parts = [answer.json()] if answer.content_type == "application/json" else \
        [event for event in answer.events() if event != "[DONE]"]
    chat = path.endswith("chat/completions")
    choices = {}
    for part in parts:
        for choice in part["choices"]:
            value = choices.setdefault(choice["index"], {"text": "", "token_ids": [], "tokens": [], "logprobs": [], "top": [],
                                                         "finish_reason": None, "stop_reason": None, "prompt": []})
            message = choice.get("message") or choice.get("delta") or {}
            value["text"] += (message.get("content") if chat else choice["text"]) or ""
            value["token_ids"] += choice.get("token_ids") or []
            add_logprobs(value, choice.get("logprobs"), chat)
            for key in ("finish_reason", "stop_reason"):
                value[key] = choice.get(key) if choice.get(key) is not None else value[key]
            for position in choice.get("prompt_logprobs") or []:
                value["prompt"].append(position and {token: entry["logprob"] for token, entry in position.items()})
    return [choices[index] for index in sorted(choices)]


def add_logprobs(value, logprobs, chat):
    if not logprobs:
        return
    if chat:
        for entry in logprobs["content"]:
            value["tokens"].append(entry["token"])
            value["logprobs"].append(entry["logprob"])
            value["top"].append(sorted((top["logprob"] for top in entry["top_logprobs"]), reverse=True))
    else:
        value["tokens"] += logprobs["tokens"]
        value["logprobs"] += logprobs["token_logprobs"]
        value["top"] += [sorted(top.values(), reverse=True) if top else [] for top in logprobs["top_logprobs"]]


def assert_same_values(theirs, ours):
    assert len(ours) == len(theirs)
    for wanted, got in zip(theirs, ours):
        assert_same_prompt(wanted["prompt"], got["prompt"])
        if same_tokens(wanted, got):
            for key in ("text", "token_ids", "finish_reason", "stop_reason"):
                assert got[key] == wanted[key], key


def same_tokens(wanted, got):
    """False: they part at a tie."""
    for step, (token, other) in enumerate(zip(wanted["tokens"], got["tokens"])):
        best = wanted["top"][step]
        if token != other:
            assert best[0] - best[1] < TIE, f"step {step}: token {other!r} instead of {token!r}; the best are {best}"
            return False
        assert_close(wanted, got, step)
    assert len(got["tokens"]) == len(wanted["tokens"])
    return True


def assert_close(wanted, got, step):
    here, there = wanted["logprobs"][step], got["logprobs"][step]
    assert (here is None) == (there is None), f"log-prob {step}: {there}, wanted {here}"
    if here is None:
        return
    assert abs(here - there) < TOLERANCE, f"log-prob {step}: {there}, wanted {here}"
    best, other = wanted["top"][step], got["top"][step]
    assert len(best) == len(other) and all(abs(a - b) < TOLERANCE for a, b in zip(best, other)), \
        f"best log-probs at {step}: {other}, wanted {best}"


def assert_same_prompt(wanted, got):
    assert len(wanted) == len(got)
    for position, (here, there) in enumerate(zip(wanted, got)):
        assert (here is None) == (there is None)
        if here is not None:
            # The last of the list may be another where two are as likely.
            assert len(here.keys() ^ there.keys()) <= 2, f"prompt position {position}: {there}, wanted {here}"
            best, other = (sorted(entry.values()) for entry in (here, there))
            assert len(best) == len(other) and all(abs(a - b) < TOLERANCE for a, b in zip(best, other)), \
                f"prompt position {position}: {there}, wanted {here}"


# Metrics

def metric_families(text):
    """{name: [type, sorted label names]} of what vLLM calls its own; without `le`."""
    families = {}
    for line in text.splitlines():
        if line.startswith("# TYPE vllm:"):
            _, _, name, kind = line.split()
            families[name] = [kind, set()]
        elif line.startswith("vllm:"):
            name = re.match(r"[^{ ]+", line)[0]
            family = next(known for known in (name, re.sub(r"_(bucket|sum|count|created)$", "", name)) if known in families)
            families[family][1] |= set(re.findall(r'[{,](\w+)="', line)) - {"le"}
    return {name: [kind, sorted(labels)] for name, (kind, labels) in families.items()}
