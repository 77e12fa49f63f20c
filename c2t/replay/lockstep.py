"""Exact replay: the rounds of a live run without running the target once per round.

Under the target-only rule the text does not depend on the draft. So it is written once, plainly and in one batch, and
the rounds that a live run would visit are then drafted in lock step, one row per unfinished text; the accepted path is
read off by matching the text. Same policies, same drafts, same Steps as `decoding.generate`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.decoding import DraftModel, Policy, Step, append, cut, generate, pad
from c2t.models.draft import DraftSession
from c2t.models.target import Target
from c2t.policies.plain import Plain
from c2t.protocols import Root
from c2t.sampling import Sampling, stream_key
from c2t.target_sampler import DRAFT, number
from c2t.verify import target_only


class Continuation(NamedTuple):
    """What the target wrote to one prompt. tokens: prompt, then new tokens up to `end` (where the text is cut), then
    enough further ones to judge the last tree; features[i]: the target's after tokens[i], for all but the last."""

    tokens: Int[Tensor, " n"]
    features: Float[Tensor, "n-1 H"]
    prompt: int
    end: int


@torch.no_grad()  # not inference mode: texts and features are for others to use
def write_continuations(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    beyond: int,
    sampling: Sampling,
    eos: frozenset[int] = frozenset(),
    sequences: Sequence[int] | None = None,
) -> list[Continuation]:
    """The target's own texts, `beyond` tokens past each cut (levels + 1 of the deepest tree judge the last round).

    EOS does not stop the writing, only the cut: a live round looks past it too.
    """
    new: list[list[int]] = [[] for _ in prompts]
    steps = generate(
        target, None, Plain(), prompts, max_new_tokens=max_new_tokens + beyond, sampling=sampling, sequences=sequences
    )
    for step in steps:
        for row, prompt in enumerate(step.rows.tolist()):
            new[prompt] += step.tokens[row, : step.count[row]].tolist()
    ends = [len(cut(tokens, max_new_tokens, eos)) for tokens in new]
    texts = [[*prompt, *tokens[: end + beyond]] for prompt, tokens, end in zip(prompts, new, ends, strict=True)]
    # One teacher-forced pass gives the features of every position.
    tokens, lengths = pad(texts, target.device)
    features = target.session().prefill(tokens, lengths).features
    return [
        Continuation(
            tokens[row, :length], features[row, : length - 1], len(prompts[row]), len(prompts[row]) + ends[row]
        )
        for row, length in enumerate(lengths.tolist())
    ]


@torch.inference_mode()
def replay(
    drafter: DraftModel,
    policy: Policy,
    texts: Sequence[Continuation],
    *,
    seed: int = 0,
    sequences: Sequence[int] | None = None,
) -> Iterator[Step]:
    """The Steps of a live run over these texts: round by round, all unfinished texts in one batch.

    Under the target-only rule, sampled policies included: `seed` and `sequences` are then those of the live run.
    """
    yield (step := first_roots(texts))
    tokens, _ = pad([text.tokens.tolist() for text in texts], texts[0].tokens.device)
    features = torch.nn.utils.rnn.pad_sequence([text.features for text in texts], batch_first=True)
    ends = torch.tensor([text.end for text in texts], device=tokens.device)
    rows, position = step.rows, step.position
    sequence = number(len(texts), sequences, tokens.device)
    draft = drafter.session()

    start, count = torch.zeros_like(position), position
    while True:
        going = (position + 1 < ends).nonzero()[:, 0]
        if len(going) < len(rows):
            if not len(going):
                return
            rows, sequence, position = (x[going] for x in (rows, sequence, position))
            ends, start, count = (x[going] for x in (ends, start, count))
            tokens, features = tokens[going], features[going]
            draft.select(going)
        window = start[:, None] + torch.arange(int(count.max()), device=tokens.device)
        inside = window.clamp(max=features.shape[1] - 1)
        committed = append(tokens.gather(1, inside), tokens.gather(1, position[:, None])[:, 0], count)
        draft.observe(committed, features.gather(1, inside[..., None].expand(-1, -1, features.shape[2])), count)

        yield (step := draft_round(draft, policy, rows, tokens, position, stream_key(seed, sequence, position, DRAFT)))
        count, start, position = step.count, position, position + step.count


def first_roots(texts: Sequence[Continuation]) -> Step:
    """The Step of the prefill, which draws the first roots and belongs to no round."""
    device = texts[0].tokens.device
    position = torch.tensor([text.prompt for text in texts], device=device)
    root = torch.stack([text.tokens[text.prompt] for text in texts])[:, None]
    none = torch.zeros_like(position)
    return Step(torch.arange(len(texts), device=device), position, None, None, root, none + 1, none)


def draft_round(
    draft: DraftSession,
    policy: Policy,
    rows: Int[Tensor, " B"],
    tokens: Int[Tensor, "B n"],
    position: Int[Tensor, " B"],
    key: Int[Tensor, " B"],
) -> Step:
    """One round at these positions of written texts, of which `draft` has observed everything up to the roots."""
    tree = policy(draft, Root(tokens.gather(1, position[:, None])[:, 0], key))
    draft.refuse_nan()
    accepted = target_only(tree, _known(tree, tokens, position))
    count = accepted.length + 1
    new = append(tree.token.gather(1, accepted.slots.clamp(min=0)), accepted.bonus, count)[:, 1:]
    return Step(rows, position, tree, accepted, new, count, draft.passes)


def _known(tree, tokens: Int[Tensor, "B n"], position: Int[Tensor, " B"]):
    """The rule `choose(slots)` of `c2t.verify` on a written text: its next token, whatever the slot's branch."""

    def choose(slots: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        depth = tree.depth.gather(1, slots[:, None])
        return tokens.gather(1, position[:, None] + depth + 2)[:, 0]

    return choose
