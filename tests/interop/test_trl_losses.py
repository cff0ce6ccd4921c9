"""The formulas that the C++ tests compare with (tools/golden/rl_cases.py, in double) against TRL's own trainers: advantages, and loss and gradient of every row."""
import ast
import collections
import importlib
import inspect
import pathlib
import sys
import textwrap
import types

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
TRL = "0.29."  # whose private functions are called here; others have renamed attributes that they read
if not trl.__version__.startswith(TRL):
    pytest.skip(f"TRL {TRL}x is compared with, and this is {trl.__version__}: tools/interop/setup.sh VENV trl", allow_module_level=True)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/golden"))
import rl_cases as twin  # noqa: E402

TOLERANCE = 1e-6
ROLLOUT = twin.make_rollout()
LENGTH = max(len(sample["weights"]) for sample in ROLLOUT)


def padded(field):
    """The trained rows of every sample, in front, then zeros."""
    rows = [[sample[field][t] for t in twin.rows(sample)] for sample in ROLLOUT]
    return torch.tensor([r + [0.0] * (LENGTH - len(r)) for r in rows], dtype=torch.float64)


def spread(gradient):
    """The gradient of padded rows, as rl_cases lists it."""
    flat = []
    for sample, values in zip(ROLLOUT, gradient.tolist()):
        places = {t: i for i, t in enumerate(twin.rows(sample))}
        flat += [values[places[t]] if t in places else 0.0 for t in range(len(sample["weights"]))]
    return flat


MASK = torch.tensor([[1.0] * len(twin.rows(s)) + [0.0] * (LENGTH - len(twin.rows(s))) for s in ROLLOUT], dtype=torch.float64)

CASES = {
    "grpo": ({"objective": "vanilla"}, {}),
    "bnpo": ({"objective": "vanilla", "reduction": "token-mean"}, {"loss_type": "bnpo"}),
    "dapo": ({"objective": "vanilla", "reduction": "token-mean", "weights": True}, {"loss_type": "dapo", "use_vllm": True}),
    "dr_grpo": ({"objective": "vanilla", "reduction": "seq-mean-token-sum-norm"}, {"loss_type": "dr_grpo"}),
    "gspo": ({"objective": "gspo"}, {"importance_sampling_level": "sequence"}),
    "cispo": ({"objective": "cispo_absolute", "reduction": "token-mean"}, {"loss_type": "cispo", "epsilon_high": 1.25}),
    "sapo": ({"objective": "sapo"}, {"loss_type": "sapo"}),
    "kl": ({"objective": "vanilla", "kl": "k3"}, {"beta": twin.f32(0.1)}),
    "unbiased_kl": ({"objective": "vanilla", "kl": "k3", "unbiased": True}, {"beta": twin.f32(0.1), "unbiased": True}),
}


def trl_loss(options, logprobs):
    from trl import GRPOTrainer
    outputs = (logprobs, padded("entropy"), None)  # TRL 1 also wants the loss of a mixture's router
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: outputs if "aux_loss" in inspect.getsource(GRPOTrainer._compute_loss) else outputs[:2],
        entropy_coef=0.0, use_adaptive_entropy=False, _entropy_bonus_enabled=False,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level=options.get("importance_sampling_level", "token"),
        beta=options.get("beta", 0.0), loss_type=options.get("loss_type", "grpo"), epsilon_low=twin.LOW, epsilon_high=options.get("epsilon_high", twin.HIGH),
        args=types.SimpleNamespace(use_bias_correction_kl=options.get("unbiased", False), delta=None, sapo_temperature_pos=1.0, sapo_temperature_neg=twin.f32(1.05)),
        use_vllm=options.get("use_vllm", False), vllm_importance_sampling_correction=True, model=types.SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1, max_completion_length=16, aux_loss_enabled=False,
        accelerator=types.SimpleNamespace(num_processes=1, gather=lambda x: x), _metrics=collections.defaultdict(lambda: collections.defaultdict(list)))
    ids = torch.zeros(len(ROLLOUT), LENGTH, dtype=torch.long)
    return GRPOTrainer._compute_loss(trainer, None, {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": MASK, "advantages": padded("advantages"),
        "old_per_token_logps": padded("policy_logprobs"), "ref_per_token_logps": padded("ref_logprobs"),
        "importance_sampling_ratio": padded("policy_weights"), "num_items_in_batch": MASK.sum()})


@pytest.mark.parametrize("name", CASES)
def test_policy_losses(name):
    case, options = CASES[name]
    wanted = twin.evaluate(ROLLOUT, case)
    logprobs = padded("logprob").requires_grad_()
    loss = trl_loss(options, logprobs)
    loss.backward()
    assert abs(loss.item() - wanted["loss"]) < TOLERANCE
    assert spread(logprobs.grad) == pytest.approx(wanted["d_logprob"], abs=TOLERANCE)


def kto_trainer():
    for name in ("trl.experimental.kto.kto_trainer", "trl.trainer.kto_trainer"):  # TRL 0.29 (the other one forwards to it), TRL 1
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module.KTOTrainer, "kto_loss"):
            return module
    pytest.skip("this TRL has no KTOTrainer.kto_loss")


def test_kto():
    kto = kto_trainer()
    wanted = twin.kto(ROLLOUT)
    logprobs = padded("logprob").requires_grad_()
    sums = {name: (padded(name) * MASK).sum(-1) for name in ("ref_logprobs", "sampled_logprobs")}
    policy, desirable = (logprobs * MASK).sum(-1), torch.tensor([i % 3 != 0 for i in range(len(ROLLOUT))])
    trainer = types.SimpleNamespace(calculate_KL=True, loss_type="kto", beta=twin.BETA, desirable_weight=twin.WEIGHTS[0], undesirable_weight=twin.WEIGHTS[1],
                                    accelerator=types.SimpleNamespace(gather_for_metrics=lambda x: x, device="cpu"))
    losses, _, _, kl = kto.KTOTrainer.kto_loss(
        trainer, policy[desirable], policy[~desirable], sums["sampled_logprobs"],
        sums["ref_logprobs"][desirable], sums["ref_logprobs"][~desirable], sums["ref_logprobs"])
    loss = losses.nanmean()
    loss.backward()
    assert abs(kl.item() - wanted["kl"]) < TOLERANCE
    assert abs(loss.item() - wanted["loss"]) < TOLERANCE
    assert spread(logprobs.grad) == pytest.approx(wanted["d_logprob"], abs=TOLERANCE)


def test_mismatched_pairs_of_kto():
    """src/train/mismatched.h: each prompt gets the completion before it, the first the last one's."""
    kto = kto_trainer()
    batch = {"answer_input_ids": [[3, 4], [6], [10, 11, 12]], "answer_attention_mask": [[1, 1], [1], [1, 1, 1]]}
    assert kto._get_kl_dataset(batch)["answer_input_ids"] == [[10, 11, 12], [3, 4], [6]]


REWARDS = [[1, 0, 0.25, 1], [0.5, 0.5, 0.5, 0.5], [-0.5, 2, 0.75, 0.375]]  # TRL's groups have one size
TRL_EPS = 1e-4  # added to the standard deviation; --advantage-eps


def trl_advantages(trainer_class, **settings):
    """What the trainer's own statements make of REWARDS: those of _generate_and_score_completions between the rewards and the
    choice of this process's part, run by themselves, because the method also generates."""
    method = trainer_class._generate_and_score_completions
    statements = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0].body
    names = [[t.id for t in getattr(s, "targets", []) if isinstance(t, ast.Name)] for s in statements]
    first = names.index(["rewards_per_func"]) + 1
    last = names.index(["process_slice"])
    values = torch.tensor(REWARDS, dtype=torch.float64)
    trainer = types.SimpleNamespace(multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1), reward_funcs=[None],
                                    normalize_advantages=False, beta=0.0, reward_clip_range=None, num_generations=values.shape[1], **settings)
    scope = {"self": trainer, "rewards_per_func": values.view(-1, 1), "mode": "train", "device": "cpu"}
    exec(compile(ast.Module(statements[first:last], []), inspect.getsourcefile(method), "exec"), {**method.__globals__, **scope}, scope)  # noqa: S102
    return scope["advantages"].view(values.shape).tolist()


def test_advantages_of_grpo():
    from trl import GRPOTrainer
    rewards = [r for group in REWARDS for r in group]
    cases = {"group": twin.grpo(eps=TRL_EPS), "none": twin.grpo(divide=False), "batch": twin.grpo(eps=TRL_EPS, batch=twin.std(rewards))}
    for scale, formula in cases.items():
        for got, group in zip(trl_advantages(GRPOTrainer, scale_rewards=scale), REWARDS):
            assert got == pytest.approx(formula(group, None), abs=TOLERANCE), scale


def test_advantages_of_rloo():
    from trl import RLOOTrainer
    for got, group in zip(trl_advantages(RLOOTrainer), REWARDS):
        assert got == pytest.approx(twin.rloo(group, None), abs=TOLERANCE)


def test_advantages_of_ppo():
    """GAE: experimental.ppo's loop over the tokens, run by itself as above."""
    ppo = pytest.importorskip("trl.experimental.ppo.ppo_trainer")
    import ppo_cases
    loop = next(node for node in ast.walk(ast.parse(inspect.getsource(ppo))) if isinstance(node, ast.For)
                and "lastgaelam" in ast.unparse(node) and "reversed" in ast.unparse(node.iter))
    rng = twin.random.Random(5)
    draw = lambda: [rng.uniform(-1, 1) for _ in range(7)]
    rollout = [{"weights": [1] * 7, "values": draw(), "policy_logprobs": draw(), "ref_logprobs": draw(), "reward": draw()[0]} for _ in range(3)]
    case = {"gamma": 0.9, "lambda": 0.8, "kl_coef": 0.05, "whiten": False}
    kl = [[a - b for a, b in zip(s["policy_logprobs"], s["ref_logprobs"])] for s in rollout]
    rewards = torch.tensor([[-0.05 * k for k in row] for row in kl], dtype=torch.float64)
    rewards[:, -1] += torch.tensor([s["reward"] for s in rollout], dtype=torch.float64)
    scope = {"rewards": rewards, "values": torch.tensor([s["values"] for s in rollout], dtype=torch.float64), "gen_length": 7, "lastgaelam": 0,
             "advantages_reversed": [], "args": types.SimpleNamespace(gamma=0.9, lam=0.8)}
    exec(compile(ast.Module([loop], []), inspect.getsourcefile(ppo), "exec"), {**vars(ppo), **scope}, scope)  # noqa: S102
    got = torch.stack(scope["advantages_reversed"][::-1], dim=1).tolist()
    for row, wanted in zip(got, ppo_cases.gae(rollout, case)["advantages"]):
        assert row == pytest.approx(wanted, abs=TOLERANCE)
