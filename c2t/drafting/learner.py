"""A head that learns from the target's texts, for as many seconds as there are, and the mean of its latest weights."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from c2t.drafting.kinds import HeadKind
from c2t.drafting.library import Text
from c2t.drafting.losses import index_in_text
from c2t.drafting.rows import best_of, epoch, rows_of, thinned
from c2t.kernels.decoder_layers import bf16_is_faster
from c2t.models.drafts.eagle import Head

ROWS = 8
# Tokens that heads draft from: those that are most frequent in the texts, at a part of the LM head's cost.
FREQUENT = 8192
# Sampled tokens that a step compares besides the frequent ones and those of its texts. A head for which only frequent
# ones were compared agreed at 0.27 where MT-bench's answers have a rare token, at 0.62 elsewhere, and guessed rare ones
# where the target says frequent ones. The number was not tuned: half of FREQUENT.
SAMPLED = 4096
# With Muon: 1e-3 gave an agreement of 0.12 after 46 steps on SmolLM2's texts, this one 0.31, 1.5e-2 as much.
RATE = 6e-3
WARMUP = 40  # steps
FALLING = 0.4  # share of the time in which the learning rate falls
AVERAGED = 10  # the mean is over one step in so many


def frequent(texts: list[Text], vocabulary: int, most: int = FREQUENT) -> Int[Tensor, " v"]:
    """Return the tokens that the target generated most often, in the order of their ids: `most` of a vocabulary that is
    more than twice as large, else all."""
    if vocabulary <= 2 * most:
        return torch.arange(vocabulary)
    counts = torch.cat([text.answer for text in texts]).bincount(minlength=vocabulary)
    return counts.sort(descending=True, stable=True).indices[:most].sort().values


def compared_tokens(frequent: Int[Tensor, " v"], batch: list[Text], vocabulary: int) -> Int[Tensor, " c"]:
    """Return the tokens whose logits a step compares: frequent ones, those of its texts, and SAMPLED others. Both sides
    are renormalised over them, so they are equal where the whole distributions are, whichever tokens are compared."""
    chosen = torch.zeros(vocabulary, dtype=torch.bool)
    for tokens in (frequent, *(text.ids.long() for text in batch), torch.randint(vocabulary, (SAMPLED,))):
        chosen[tokens] = True
    return chosen.nonzero()[:, 0]


def compute(device: torch.device) -> torch.autocast:
    """Return the context for the matrix products: bf16 on a GPU and on CPUs that are faster by it, else float32."""
    fast = device.type != "cpu" or bf16_is_faster()
    return torch.autocast(device.type, torch.bfloat16, enabled=fast)


def optimisers_of(
    matrices: list[Tensor], others: list[Tensor], lr: float, decay: float = 0.0, matrix_decay: float = 0.0
) -> list[torch.optim.Optimizer]:
    """Return Muon for matrices, which takes fewer epochs until the text is memorised, and AdamW for all else."""
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=lr, weight_decay=matrix_decay, adjust_lr_fn="match_rms_adamw")
    ]
    if others:
        optimisers.append(torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=decay, fused=True))
    return optimisers


class Learner:
    """A head, its optimisers, and the mean of its latest weights, which is what is judged and stored.

    lm_head: of the target. tokens: those that the head drafts from. mean: weights by name; one step in AVERAGED counts.
    steps, positions: learned so far; repeated positions count again, those of questions do not.
    """

    def __init__(self, head: Head, kind: HeadKind, lm_head: nn.Module, rate: float):
        self.head, self.kind, self.lm_head, self.rate = head, kind, lm_head, rate
        self.trained = kind.learned(head)
        self.mean = {name: weight.detach().clone() for name, weight in self.trained.items()}
        matrices = [name for name, p in self.trained.items() if p.ndim == 2 and not name.startswith(kind.tables)]
        others = [p for name, p in self.trained.items() if name not in matrices]
        self.optimisers = optimisers_of([self.trained[name] for name in matrices], others, rate)
        self.steps = self.positions = self.warm = 0
        self.batches: list[list[Text]] = []

    def rows(self, tokens: Int[Tensor, " c"]) -> Float[Tensor, "c D"]:
        """Return what gives these tokens' logits with the head's states: rows of the LM head, for most kinds."""
        weight: Any = self.lm_head.weight
        return self.kind.rows(self.head, weight[tokens.to(weight.device)].float(), tokens)

    def learn(
        self,
        texts: list[Text],
        tokens: Int[Tensor, " v"],
        begin: int,
        until: float,
        share: Callable[[], float],
        report: Callable[[], None],
    ) -> None:
        """Learn until `time.monotonic` says so. tokens: the frequent ones. begin: tokens that all texts begin with.
        share(): part of the time that has passed; over the last FALLING of it the rate falls to a hundredth. A head
        with a vocabulary of its own compares that only."""
        self.batches = []  # there may be new texts
        device = self.lm_head.weight.device
        while time.monotonic() < until:
            self.batches = self.batches or epoch(texts, ROWS, self.steps)
            batch = self.batches.pop()
            torch.manual_seed(self.steps)
            fall = max(min(1.0, (1.0 - share()) / FALLING), 0.01)
            rate = self.rate * min(1.0, (self.warm + 1) / WARMUP) * fall
            for group in (group for optimiser in self.optimisers for group in optimiser.param_groups):
                group["lr"] = rate
            compared = tokens if self.kind.own_tokens else compared_tokens(tokens, batch, len(self.lm_head.weight))
            # Questions teach as answers do where what is learned is the next state after a token that is given.
            rows = rows_of(batch, None if self.kind.answers else begin).to(device)
            with compute(device):
                losses = self.kind.losses(self.head, self.rows(compared), rows)
            losses.total.backward()
            nn.utils.clip_grad_norm_(self.trained.values(), 0.5)
            for optimiser in self.optimisers:
                optimiser.step()
                optimiser.zero_grad()
            self.steps, self.warm = self.steps + 1, self.warm + 1
            self.positions += sum(len(text.answer) for text in batch)
            with torch.no_grad():
                for name, weight in self.trained.items():
                    self.mean[name].lerp_(weight, AVERAGED / (AVERAGED + self.steps))
            report()

    @contextmanager
    def averaged(self) -> Iterator[Head]:
        """Yield the head with the mean of its weights."""
        with torch.no_grad():
            latest = {name: weight.detach().clone() for name, weight in self.trained.items()}
            try:
                self.give(self.mean)
                yield self.head
            finally:
                self.give(latest)

    @torch.no_grad()
    def give(self, weights: dict[str, Tensor]) -> None:
        """Set the weights that the head learns."""
        for name, parameter in self.trained.items():
            parameter.copy_(weights[name])

    def state(self) -> dict[str, Tensor]:
        """Return the weights and their mean, by name, on the CPU."""
        latest = {f"latest.{name}": weight.detach().cpu() for name, weight in self.trained.items()}
        return latest | {f"mean.{name}": weight.cpu() for name, weight in self.mean.items()}

    @torch.no_grad()
    def take(self, state: dict[str, Tensor], steps: int, positions: int) -> None:
        """Go on from a `state` after so many steps. Raises KeyError and RuntimeError for another head's."""
        for name, weight in self.trained.items():
            weight.copy_(state[f"latest.{name}"])
            self.mean[name].copy_(state[f"mean.{name}"])
        self.steps, self.positions = steps, positions

    @torch.no_grad()
    def agreement(self, texts: list[Text], tokens: Int[Tensor, " v"]) -> float:
        """Return the share of the answers' positions, or of one in `kind.every`, where the head's most probable one of
        these tokens, `kind.ahead` tokens after the next one, is the target's of all."""
        device, same, count = self.lm_head.weight.device, 0, 0
        tokens = tokens.to(device)
        with self.averaged() as head, compute(device):
            lm_head = self.rows(tokens)
            for batch in epoch(texts, ROWS, 0):
                rows = thinned(rows_of(batch), self.kind.every)
                best, rows = best_of(batch, rows.judged).to(device), rows.to(device)
                states = self.kind.states(head, rows)
                later = (index_in_text(rows) >= self.kind.ahead).nonzero()[:, 0]
                guess = tokens[(head.readable(states[later - self.kind.ahead]) @ lm_head.T).argmax(-1)]
                same += int((guess == best[later]).sum())
                count += len(later)
        return same / max(1, count)
