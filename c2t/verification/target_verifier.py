"""The target as the verifier of trees, and `generate`, the decoding loop with it."""

import copy
from collections.abc import Container, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from c2t.caches.ragged import SlotLogits
from c2t.decoding import Committed, DraftModel, Step, Verdict, append, decode, first_step
from c2t.grammars.constraints import Constraints
from c2t.grammars.forced import completed
from c2t.grammars.row_constraint import RowConstraint
from c2t.kernels.noise import Noise
from c2t.models.target.target import TargetSession
from c2t.protocols import Policy, Root
from c2t.sampling import Sampling
from c2t.tree import Tree
from c2t.verification.compatibility import check_rule
from c2t.verification.logprobs import of_path, of_prompt
from c2t.verification.mixed_sampler import MixedSampler
from c2t.verification.sampler import Processors, TargetSampler
from c2t.verify import Accepted


@runtime_checkable
class TargetModel(Protocol):
    """A target: `c2t.models.target.target.Target`, or its form for CUDA graphs."""

    @property
    def config(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...

    def session(self) -> TargetSession: ...


@runtime_checkable
class Rule(Protocol):
    """A policy's own verification rule (`TargetVerifier.judge`), with state for each row of the batch."""

    def accept(self, tree: Tree, logits: SlotLogits, root: Int[Tensor, " B"]) -> Accepted:
        """Return the accepted paths; root: the positions of the roots."""
        ...

    def select(self, rows: Int[Tensor, " b"]) -> None: ...

    def join(self, other: Any) -> None: ...


class TargetVerifier:
    """Verifies trees with one target forward per round, and commits the accepted paths.

    A sequence ends after the round in which it gets an `eos` token or its `max_new_tokens`-th token. That round's
    tokens may extend past the end (see `c2t.decoding.cut`).

    sequences: numbers of the rows' random streams (default 0, 1, ...). rule: see `c2t.verification.compatibility`.
    processors: applied to the target's logits. constraints: of the rows, None for a row without one. keep_logits: each
    Verdict has the target's logits (B, n, V) of every slot as "logits". stopped: numbers of prompts whose texts the
    caller has ended, read after each Step. judge: a policy's own rule, which its session may set; None: that of the
    sampler. generated: how many of each prompt's last tokens were generated, which penalties count; by default none.

    logprobs: with how many most probable tokens each Step has the new tokens' log-probabilities, as "logprobs": a list
    for each row (`c2t.verification.logprobs`). prompt_logprobs: the same for the prompts' tokens, in the prefill's
    Step. None: no such list, or an empty one. That Step has the number of cached tokens of each prompt as "cached", if
    there are any.

    max_new_tokens, eos, sampling and both numbers of log-probabilities may be lists with an entry per prompt. Rows can
    `join` a verifier only if both have a list of samplings.
    """

    live = True

    def __init__(
        self,
        target: TargetModel,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int | list[int],
        sampling: Sampling | list[Sampling],
        eos: frozenset[int] | list[frozenset[int]] = frozenset(),
        sequences: Sequence[int] | None = None,
        rule: str | None = None,
        processors: Processors | None = None,
        constraints: Sequence[RowConstraint | None] | None = None,
        keep_logits: bool = False,
        stopped: Container[int] = (),
        generated: Sequence[int] | None = None,
        logprobs: int | list[int | None] | None = None,
        prompt_logprobs: int | list[int | None] | None = None,
    ):
        self.rule, self.keep_logits, self.stopped = check_rule(policy, rule), keep_logits, stopped
        self.policy, self.sampled = policy, policy.proposal == "sampled"
        count = len(prompts)
        self.max_new_tokens, self.eos = of_each(max_new_tokens, count), of_each(eos, count)
        self.logprobs, self.prompt_logprobs = of_each(logprobs, count), of_each(prompt_logprobs, count)
        self.session = target.session()
        self.prompts, self.lengths = pad(prompts, target.device)
        vocabulary = target.config.vocab_size
        texts = self.prompts, self.lengths, sequences
        self.sampler: TargetSampler | MixedSampler
        self.fixed = isinstance(sampling, Sampling)  # True if no row can join later
        if isinstance(sampling, Sampling):
            self.sampler = TargetSampler(sampling, vocabulary, *texts, processors, generated)
        else:
            assert processors is None, "rows with settings of their own have no processors"
            self.sampler = MixedSampler(sampling, vocabulary, *texts, generated)
        unconstrained = None if self.fixed else Constraints([None] * count)  # rows with constraints may join
        self.constraints = unconstrained if constraints is None else Constraints(constraints)
        self.judge: Rule | None = None
        self.rows, self.emitted = torch.arange(count, device=target.device), [0] * count
        self.prefix = [len(prompt) - 1 for prompt in prompts]  # as `emitted` it knows the root once it is counted
        self.token = self.rows.new_zeros(0)  # each row's next root, sampled by `prefill` and by each round

    @property
    def stochastic(self) -> bool:
        """See `c2t.decoding.Verifier`."""
        return not self.fixed or self.sampler.stochastic

    def prefill(self) -> tuple[Step, Committed]:
        """Run the prompts and sample the first roots."""
        whole = [row for row, count in enumerate(self.prompt_logprobs) if count is not None]
        verified = self.session.prefill(self.prompts, self.lengths, *([whole] if whole else []))
        self.token = self.sampler.sample(verified.logits.values, self.lengths, self.constraints)
        tokens = append(self.prompts, self.token, self.lengths)
        extra = self._logprobs(verified.logits, torch.zeros_like(self.token[:, None]), self.token[:, None])
        if verified.cached:
            extra["cached"] = verified.cached
        if whole:
            extra["prompt_logprobs"] = [[] for _ in self.rows]
        for row in whole:
            text = self.prompts[row, : self.lengths[row]]
            states = verified.hidden[row, : len(text)]
            extra["prompt_logprobs"][row] = of_prompt(self.session, text, states, self.prompt_logprobs[row])
        step = first_step(self.rows, self.lengths, self.token)._replace(extra=extra)
        return step, Committed(tokens, verified.features, self.lengths)

    def root(self) -> Root:
        """Return the roots of the next round's trees."""
        return Root(self.token, self.sampler.key(self.session.lengths) if self.sampled else None)

    def noise(self) -> Noise | None:
        """See `c2t.decoding.Verifier.noise`."""
        return self.sampler.noise(self.session.lengths) if self.sampler.stochastic else None

    def left(self) -> list[int] | None:
        """See `c2t.decoding.Verifier.left`."""
        return self._unwritten() if self.fixed else None

    def _unwritten(self) -> list[int]:
        return [limit - new for limit, new in zip(self.max_new_tokens, self.emitted, strict=True)]

    def completed(self, tree: Tree) -> Tree:
        """See `c2t.decoding.Verifier.completed`."""
        if not (self.constraints and self.policy.levels):
            return tree
        grown = completed(tree, self.constraints, self._unwritten())
        trimmed = getattr(self.policy, "trimmed", None)
        return grown if trimmed is None or grown is tree else trimmed(grown, self)

    def verify(self, tree: Tree) -> Verdict:
        """Run the target over the trees, accept a path of each, and commit it to the cache."""
        position = self.session.lengths
        verified = self.session.verify(tree)
        if self.judge is None:
            accepted = self.sampler.accept(tree, verified.logits, position, self.rule, self.constraints)
        else:
            accepted = self.judge.accept(tree, verified.logits, position)
        committed = Committed.along(tree, verified.features, accepted)
        self.session.commit(accepted.slots, committed.count)
        self.token = accepted.bonus  # the target's next token is the new root
        extra = self._logprobs(verified.logits, accepted.slots, committed.tokens[:, 1:])
        if self.keep_logits:
            extra["logits"] = verified.logits.padded()
        return Verdict(self.rows, position, accepted, committed, extra)

    def fork(self, session: TargetSession) -> "TargetVerifier":
        """Return a copy that continues with another session over the same cache, and with the same random numbers.

        What the copy commits does not change this verifier, but it does change the cache and the constraints.
        `roll_back` them before this verifier continues.
        """
        fork = copy.copy(self)
        if self.constraints is not None:
            self.constraints.look_ahead()
        fork.session, fork.sampler = session, self.sampler.fork()
        fork.emitted, fork.prefix, fork.keep_logits = list(self.emitted), list(self.prefix), False
        fork.logprobs = [None] * len(self.logprobs)
        return fork

    def roll_back(self, lengths: Int[Tensor, " B"]) -> None:
        """Discard what a fork has committed; lengths: those of the cache before."""
        self.session.cache.return_to(lengths)
        if self.constraints is not None:
            self.constraints.look_back()

    def unfinished(self, step: Step) -> list[int]:
        """Count the step's new tokens; return the rows whose sequences have not ended."""
        unfinished, by_row = [], step.by_row()
        if self.constraints:
            self.constraints.advance([tokens for _, tokens in by_row])
        for row, (prompt, tokens) in enumerate(by_row):
            self.emitted[row] += len(tokens)
            self.prefix[row] += len(tokens)
            ended = prompt in self.stopped or not self.eos[row].isdisjoint(tokens)
            if self.emitted[row] < self.max_new_tokens[row] and not ended:
                unfinished.append(row)
        return unfinished

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.rows, self.token, old = self.rows[rows], self.token[rows], rows.tolist()
        for column in ("max_new_tokens", "eos", "emitted", "prefix", "logprobs"):
            values = getattr(self, column)
            setattr(self, column, [values[row] for row in old])
        for state in (self.session, self.sampler, self.constraints, self.judge):
            if state is not None:
                state.select(rows)

    def join(self, other: "TargetVerifier") -> None:
        """Append the rows of another verifier of the same target and policy; their numbers in `rows` stay the same.
        InputError if the policy's own rule takes no further rows."""
        if self.judge is not None:
            self.judge.join(other.judge)
        self.rows, self.token = torch.cat([self.rows, other.rows]), torch.cat([self.token, other.token])
        self.max_new_tokens = self.max_new_tokens + other.max_new_tokens  # not in place: the lists are the caller's
        self.eos, self.emitted = self.eos + other.eos, self.emitted + other.emitted
        self.prefix = self.prefix + other.prefix
        self.logprobs = self.logprobs + other.logprobs
        self.session.join(other.session)
        self.sampler.join(other.sampler)
        if self.constraints is not None:
            self.constraints.join(other.constraints)

    def _logprobs(self, logits: SlotLogits, slots: Int[Tensor, "B m"], tokens: Int[Tensor, "B m"]) -> dict[str, Any]:
        """Return the new tokens' log-probabilities for a Step; nothing if no row asks for them."""
        if all(count is None for count in self.logprobs):
            return {}
        return {"logprobs": of_path(logits, slots, tokens, self.logprobs)}


def generate(
    target: TargetModel,
    drafter: DraftModel | None,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int | list[int],
    sampling: Sampling,
    eos: frozenset[int] = frozenset(),
    sequences: Sequence[int] | None = None,
    rule: str | None = None,
    constraints: Sequence[RowConstraint | None] | None = None,
    record: Sequence[str] = (),
    stopped: Container[int] = (),
    logprobs: int | None = None,
) -> Iterator[Step]:
    """Decode prompts with the target as verifier; see `TargetVerifier` and `decode` for the arguments.

    record: may also name "logits", the target's logits (B, n, V) of every slot.
    """
    verifier = TargetVerifier(
        target,
        policy,
        prompts,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        eos=eos,
        sequences=sequences,
        rule=rule,
        constraints=constraints,
        keep_logits="logits" in record,
        stopped=stopped,
        logprobs=logprobs,
    )
    return decode(verifier, drafter, policy, [name for name in record if name != "logits"])


def pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "B P"], Int[Tensor, " B"]]:
    """Return prompts as one tensor, padded on the right, and their lengths."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(list(prompt), device=device)
    return tokens, lengths


def of_each(value: Any, count: int) -> list[Any]:
    """Return a list as it is, and any other value `count` times."""
    return value if isinstance(value, list) else [value] * count
