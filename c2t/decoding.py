"""Tree speculative decoding: the one place where a target, a draft, a policy and verification meet.

A round builds a tree of cheap guesses under the last committed token (the root), runs the target once over all of its
nodes, walks down as long as the target's own choice is among the guesses, and commits that path plus the target's next
token. The text is exactly what the target alone would have written; a good tree only makes rounds fewer. (MCSD+'s
trees, which start from several tokens of the target's own, are the exception: see `c2t.verify`.)
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.errors import InputError
from c2t.models.draft import DraftSession, NoDraft
from c2t.models.target import Target, Verified
from c2t.protocols import Draft, Root
from c2t.sampling import Sampling
from c2t.target_sampler import TargetSampler
from c2t.tree import Tree
from c2t.verify import Accepted

# What a policy's candidates are -> the rules that they can be verified by, the default first.
RULES = {
    "ranked": ("target-only",),
    "sampled": ("residual", "target-only"),
    "target-initialised": ("longest-fork",),
}


@runtime_checkable
class Policy(Protocol):
    """A tree construction; see `c2t.policies`."""

    proposal: str  # where its candidates come from, a key of RULES
    exact: bool  # whether the text keeps the target's law
    levels: int  # layers of drafted nodes at most

    def __call__(self, draft: Draft, root: Root) -> Tree: ...


@runtime_checkable
class DraftModel(Protocol):
    """A draft model; see `c2t.models`."""

    def session(self) -> DraftSession: ...


class Step(NamedTuple):
    """What one round did to each of its B rows.

    rows: which prompt each row serves. position: the root's absolute position (committed tokens without the root).
    tree, accepted: what was verified and which path of it was accepted; both None for the prefill, which draws the
    first root. tokens: the new tokens, count[r] real ones in row r (accepted ones, then the bonus token).
    draft_passes: draft forwards of the round.
    """

    rows: Int[Tensor, " B"]
    position: Int[Tensor, " B"]
    tree: Tree | None
    accepted: Accepted | None
    tokens: Int[Tensor, "B m"]
    count: Int[Tensor, " B"]
    draft_passes: Int[Tensor, " B"]


@torch.inference_mode()
def generate(
    target: Target,
    drafter: DraftModel | None,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eos: frozenset[int] = frozenset(),
    sequences: Sequence[int] | None = None,
    rule: str | None = None,
) -> Iterator[Step]:
    """Decode all prompts as one batch and yield a Step per round, the prefill first.

    A row leaves the batch with the round in which it emits an `eos` token or its `max_new_tokens`-th token; that
    round's tokens may run past the cut (see `cut`). `sequences` number the rows' random streams (default 0, 1, ...).
    `rule`: how text is verified (see RULES). Without a drafter only the plain policy works.
    """
    rule = check_rule(policy, rule)
    session, draft = target.session(), drafter.session() if drafter and policy.levels else NoDraft()
    tokens, lengths = pad(prompts, target.device)
    sampler = TargetSampler(sampling, target.config.vocab_size, tokens, lengths, sequences)
    rows, emitted = torch.arange(len(prompts), device=target.device), [0] * len(prompts)

    verified = session.prefill(tokens, lengths)  # the prompt, and the first root, which no tree has guessed
    root = sampler.sample(verified.logits[:, 0], lengths)
    news = Committed(append(tokens, root, lengths), verified.features, lengths)
    step = Step(rows, lengths, None, None, root[:, None], torch.ones_like(root), torch.zeros_like(root))
    if policy.proposal == "target-initialised":
        sampler.look_ahead(root, session.peek(root))  # one more forward (MCSD+, section 3.1)
    while True:
        yield step
        going = still_going(step, emitted, max_new_tokens, eos)
        if not len(going):
            return
        if len(going) < len(rows):
            rows, root, news = rows[going], root[going], Committed(*(part[going] for part in news))
            for state in (session, draft, sampler):
                state.select(going)

        draft.observe(*news)
        position = session.lengths
        tree = policy(draft, sampler.root(root, position))  # guess: a tree of tokens under the root
        draft.refuse_nan()  # once a round, when the tree is there: a look at every level would wait for the device
        verified = session.verify(tree)  # verify: one target forward over all of them
        accepted = sampler.accept(tree, verified.logits, position, rule)  # accept: the path that the target chooses
        news = settle(tree, verified, accepted)
        session.commit(accepted.slots, news.count)  # commit: that path stays in the cache
        root = accepted.bonus  # and the target's next token is the new root
        step = Step(rows, position, tree, accepted, news.tokens[:, 1:], news.count, draft.passes)


class Committed(NamedTuple):
    """What a target forward has settled, for the draft to observe: the previous root and the count[r] tokens after it,
    the new root last; the target's features of all of them but the new root."""

    tokens: Int[Tensor, "B m+1"]
    features: Float[Tensor, "B m H"]
    count: Int[Tensor, " B"]


def settle(tree: Tree, verified: Verified, accepted: Accepted) -> Committed:
    """Tokens and features of the accepted path, and the bonus token behind it."""
    path, count = accepted.slots.clamp(min=0), accepted.length + 1
    tokens = append(tree.token.gather(1, path), accepted.bonus, count)
    features = verified.features.gather(1, path[..., None].expand(-1, -1, verified.features.shape[2]))
    return Committed(tokens, features, count)


def check_rule(policy: Policy, rule: str | None) -> str:
    """The verification rule to use; InputError for an unknown one and for unsound pairings."""
    name, sound = type(policy).__name__, RULES[policy.proposal]
    rule = rule or sound[0]
    known = list(dict.fromkeys(rule for rules in RULES.values() for rule in rules))
    if rule not in known:
        raise InputError(f"no verification rule is called {rule!r}; known: {', '.join(known)}")
    if rule == "residual" and policy.proposal == "ranked":
        raise InputError(f"{name} ranks its candidates: the residual rule would change the text's law; use target-only")
    if rule not in sound:
        raise InputError(f"{name} has {policy.proposal} candidates, for which {rule} is no rule; use {sound[0]}")
    return rule


def pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "B P"], Int[Tensor, " B"]]:
    """Prompts as one tensor, padded on the right, and their lengths."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(list(prompt))
    return tokens, lengths


def append(tokens: Int[Tensor, "B m"], last: Int[Tensor, " B"], count: Int[Tensor, " B"]) -> Int[Tensor, "B m+1"]:
    """tokens[r, :count[r]] followed by last[r]."""
    return torch.cat([tokens, last[:, None]], 1).scatter(1, count[:, None], last[:, None])


def still_going(step: Step, emitted: list[int], max_new_tokens: int, eos: frozenset[int]) -> Int[Tensor, " b"]:
    """Batch rows that neither ended with this step nor reached the limit; counts the new tokens in `emitted`."""
    going = []
    new = zip(step.rows.tolist(), step.tokens.tolist(), step.count.tolist(), strict=True)
    for row, (prompt, tokens, count) in enumerate(new):
        emitted[prompt] += count
        if emitted[prompt] < max_new_tokens and eos.isdisjoint(tokens[:count]):
            going.append(row)
    return torch.tensor(going, dtype=torch.long, device=step.rows.device)


def cut(tokens: list[int], max_new_tokens: int, eos: frozenset[int]) -> list[int]:
    """New tokens where plain decoding ends: with the first `eos` token, or after max_new_tokens."""
    tokens = tokens[:max_new_tokens]
    ends = [place for place, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
