"""vLLM's own acceptance estimator and C2T's on the same chains: tokens accepted per token verified at equal budgets.

The pair's own draft drafts chains as vLLM's EAGLE does, `batch` prompts at a time; the target's texts say what is
accepted (`c2t.replay`). Then each estimator scores them in the order of a server that verifies everything, and vLLM's
rule spends each round's budget on the (request, position) pairs of highest survival.

    PYTHONPATH=.:integrations/vllm/src python integrations/vllm/compare.py --pair tiny
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np
import torch
import typer
from c2t_vllm.estimator import accepted_given_parent, distribution
from c2t_vllm.network import Network
from torch import Tensor

from c2t.models.loading.load import Pair, load_pair
from c2t.policies.limits import Size
from c2t.protocols import Draft, Root
from c2t.replay.lockstep import replay
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage.paths import CLASSIFIER, resolve, root
from c2t.storage.results import append_line, result_line
from c2t.study.evaluate import continuations, encode
from c2t.study.interval import bootstrap
from c2t.tree import Tree

RESULTS = root() / "data" / "results" / "vllm-acceptance.jsonl"
LENGTH = 7  # drafted tokens a round
BUDGETS = (1, 2, 3, 4, 5)  # of them verified, for each request in the mean
ONLINE = "vLLM's online estimator"


class Round(NamedTuple):
    """One round of b requests: the prompts, what was known of each drafted token, and how many were accepted."""

    prompts: Tensor  # (b)
    max_log_prob: Tensor  # (b, LENGTH)
    entropy: Tensor  # (b, LENGTH)
    accepted: Tensor  # (b)

    @property
    def right(self) -> Tensor:
        """Whether each drafted token is accepted, with all before it (b, LENGTH)."""
        return torch.arange(LENGTH) < self.accepted[:, None]


@dataclass
class RecordedChain:
    """Chain of LENGTH most probable tokens that keeps what the estimators read of the last round."""

    M: int | None
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    proposal = "ranked"
    exact = True
    levels = LENGTH
    size = Size(1 + LENGTH, 1)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        tree, self.seen = Tree.root(root.token), []
        for level in range(LENGTH):
            slots = torch.full_like(root.token, level)[:, None]
            rows = draft.expand(tree, slots)
            self.seen.append(distribution(rows.logits[:, 0], self.M))
            tree = tree.extend(tree.children(slots, *rows.topk_entropy(1, 0)))
        return tree


def recorded(
    pair: Pair, purpose: Literal["harvest", "bench"], limit: int, batch: int, M: int | None, tokens: int, at: Sampling
) -> list[Round]:
    """Return the rounds of prompts of a pair, `batch` prompts at a time."""
    prompts = spread([p for path in default_prompts(pair.name, purpose) for p in read_prompts(path)], limit)
    texts = continuations(pair, encode(pair, prompts, tokens, at).ids, tokens, LENGTH, at)
    rounds = []
    for start in range(0, len(texts), batch):
        policy = RecordedChain(M)
        for step in replay(pair.draft, policy, texts[start : start + batch], seed=at.seed):
            if step.tree is not None:
                max_log_prob, entropy = (torch.stack(columns, 1) for columns in zip(*policy.seen, strict=True))
                rounds.append(Round(start + step.rows, max_log_prob, entropy, step.count - 1))
    return rounds


class Estimator(Protocol):
    """Estimates, for a round's tokens, the probability of acceptance given that those before are (b, LENGTH); then
    learns what became of them."""

    def predict(self, round: Round) -> Tensor: ...

    def learn(self, round: Round) -> None: ...


class Learned:
    """C2T's classifier, trained beforehand."""

    def __init__(self, network: Network):
        self.network = network

    def predict(self, round: Round) -> Tensor:
        requests = len(round.prompts)
        found, log_joint, survival = [], torch.zeros(requests), torch.ones(requests)
        for step in range(LENGTH):
            depth = torch.full((requests,), step)
            one, log_joint, survival = accepted_given_parent(
                self.network, round.max_log_prob[:, step], round.entropy[:, step], depth, log_joint, survival
            )
            found.append(one)
        return torch.stack(found, 1)

    def learn(self, round: Round) -> None: ...


class Online:
    """`OnlineAcceptanceEstimator` of vLLM 0.33, rebuilt from its source: a logistic regression on the log-odds of the
    most probable token, one slope and an intercept for each position, refitted by a damped Newton step every
    REFIT_INTERVAL rounds. It does not matter here that vLLM sees only the tokens that it verified: it sees all."""

    REFIT_INTERVAL, DAMPING, L2, MAX_LOG_ODDS = 100, 50.0, 1e-3, 40.0

    def __init__(self) -> None:
        self.slope, self.intercepts = torch.tensor(0.5), torch.full((LENGTH,), -0.2)
        self.rounds = 0
        self._clear()

    def _clear(self) -> None:
        self.a, self.g0 = torch.zeros(LENGTH), torch.zeros(LENGTH)
        self.b, self.c, self.g1, self.count = (torch.zeros(LENGTH) for _ in range(4))

    def _log_odds(self, round: Round) -> Tensor:
        return (-torch.expm1(-round.max_log_prob).log()).clamp(-self.MAX_LOG_ODDS, self.MAX_LOG_ODDS)

    def predict(self, round: Round) -> Tensor:
        return torch.sigmoid(self.slope * self._log_odds(round) + self.intercepts)

    def learn(self, round: Round) -> None:
        feature, p = self._log_odds(round), self.predict(round)
        observed = (torch.arange(LENGTH) <= round.accepted[:, None]).float()
        weight, residual = observed * p * (1 - p), observed * (round.right.float() - p)
        self.a, self.b, self.c = (
            kept + (weight * feature**power).sum(0) for kept, power in ((self.a, 2), (self.b, 1), (self.c, 0))
        )
        self.g0, self.g1 = self.g0 + (residual * feature).sum(0), self.g1 + residual.sum(0)
        self.count = self.count + observed.sum(0)
        self.rounds += 1
        if self.rounds % self.REFIT_INTERVAL == 0:
            self._refit()
            self._clear()

    def _refit(self) -> None:
        c = self.c + self.L2
        step = (self.g0.sum() - (self.b * self.g1 / c).sum()) / (self.a.sum() + self.L2 - (self.b**2 / c).sum())
        step = step * self.count.sum() / (self.count.sum() + self.DAMPING)
        if not torch.isfinite(step) or self.slope + step < 0:
            step = torch.tensor(0.0)
        self.slope = self.slope + step
        self.intercepts = self.intercepts + (self.g1 - self.b * step) / c * self.count / (self.count + self.DAMPING)


class EqualDepth:
    """The same depth for every request: what a fixed number of speculative tokens does."""

    def predict(self, round: Round) -> Tensor:
        return torch.full_like(round.max_log_prob, 0.5)

    def learn(self, round: Round) -> None: ...


class Oracle:
    """Knows what will be accepted: no estimator can do better."""

    def predict(self, round: Round) -> Tensor:
        return round.right.float()

    def learn(self, round: Round) -> None: ...


class Outcome(NamedTuple):
    """Result of an estimator. accepted, admitted: by budget and prompt. log_loss: mean over the tokens whose parents
    were accepted, in nats."""

    accepted: np.ndarray
    admitted: np.ndarray
    log_loss: float


def admitted(estimate: Tensor, budget: int) -> Tensor:
    """Return which tokens of a round (b, LENGTH) vLLM verifies: the `budget` of highest survival in the whole batch
    (`_assign_draft_token_budget`), the shallower of equal ones, so that chains stay chains."""
    order = estimate.cumprod(1).T.flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros(estimate.numel(), dtype=torch.bool).index_fill(0, order[:budget], True)
    return chosen.view(LENGTH, -1).T


def run(estimator: Estimator, rounds: Sequence[Round], prompts: int) -> Outcome:
    """Let an estimator score rounds in their order, learn from each, and spend every budget."""
    accepted, spent = np.zeros((2, len(BUDGETS), prompts))
    loss, tokens = 0.0, 0.0
    for round in rounds:
        estimate, served = estimator.predict(round), round.prompts.numpy()
        observed = torch.arange(LENGTH) <= round.accepted[:, None]
        right = round.right[observed].float()
        loss += float(torch.nn.functional.binary_cross_entropy(estimate[observed], right, reduction="sum"))
        tokens += len(right)
        for place, budget in enumerate(BUDGETS):
            chosen = admitted(estimate, budget * len(round.prompts))
            accepted[place, served] += (chosen & round.right).sum(1).numpy()
            spent[place, served] += chosen.sum(1).numpy()
        estimator.learn(round)
    return Outcome(accepted, spent, loss / tokens)


def over(one: Outcome, other: Outcome) -> list[tuple[float | None, ...]]:
    """Return, for each budget, accepted per verified token of one over that of the other, with the 95 % interval by
    prompt."""
    size = len(BUDGETS)

    def ratio(sums: np.ndarray) -> np.ndarray:
        a, n, b, m = (sums[start : start + size] for start in range(0, 4 * size, size))
        return (a / n) / (b / m)

    return [tuple(found) for found in bootstrap(np.concatenate([*one[:2], *other[:2]]), ratio)]


def main(
    pair: Annotated[str, typer.Option(help="NAME of a pair with prompts for harvest and bench.")] = "tiny",
    classifier: Annotated[str | None, typer.Option(help="Classifier.", show_default="the pair's own")] = None,
    limit: Annotated[int, typer.Option(help="Bench prompts: the classifier did not learn from them.")] = 64,
    warm: Annotated[int, typer.Option(help="Harvest prompts that the warm online estimator has seen before.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
    batch: Annotated[int, typer.Option(help="Requests served together.")] = 8,
    temperature: Annotated[float, typer.Option(help="Temperature of the target.")] = 0.0,
    out: Annotated[Path, typer.Option(help="File to append the result line to.")] = RESULTS,
) -> None:
    """Compare acceptance estimators on chains of a pair, at equal budgets of verified tokens."""
    loaded, at = load_pair(pair), Sampling(temperature)
    network = Network.load(resolve(classifier or pair, CLASSIFIER))
    rounds = recorded(loaded, "bench", limit, batch, network.M, max_new_tokens, at)
    before = recorded(loaded, "harvest", warm, batch, network.M, max_new_tokens, at)
    warmed = Online()
    while warmed.rounds < 20 * Online.REFIT_INTERVAL:  # again and again, until the coefficients stand
        for round in before:
            warmed.learn(round)
    warm_name = f"{ONLINE}, warm"
    estimators: dict[str, Estimator] = {
        "C2T's classifier": Learned(network),
        warm_name: warmed,
        f"{ONLINE}, cold": Online(),
        "equal depth": EqualDepth(),
        "oracle": Oracle(),
    }
    prompts = int(max(round.prompts.max() for round in rounds)) + 1
    outcomes = {name: run(each, rounds, prompts) for name, each in estimators.items()}
    rows = [
        {
            "estimator": name,
            "log_loss": outcome.log_loss,
            "accepted_per_verified": (outcome.accepted.sum(1) / outcome.admitted.sum(1)).tolist(),
            "over_warm": over(outcome, outcomes[warm_name]),
        }
        for name, outcome in outcomes.items()
    ]
    for row in rows:
        shares = "  ".join(f"{share:.3f}" for share in row["accepted_per_verified"])
        ratios = "  ".join(f"{low or 0:.3f}-{high or 0:.3f}" for _, low, high in row["over_warm"])
        print(f"{row['estimator']:32} log loss {row['log_loss']:.3f}  accepted a token {shares}  over warm {ratios}")
    requests = sum(len(round.prompts) for round in rounds)
    figures = {"prompts": prompts, "rounds": len(rounds), "chains": requests, "budgets": BUDGETS, "rows": rows}
    run_of = {"pair": pair, "classifier": classifier or pair, "warm": warm, "length": LENGTH}
    run_of |= {"max_new_tokens": max_new_tokens, "batch": batch, "temperature": temperature}
    append_line(out, result_line("vllm acceptance", figures, run_of))


if __name__ == "__main__":
    typer.run(main)
