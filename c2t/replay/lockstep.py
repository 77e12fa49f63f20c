"""Exact replay: the rounds of a live run without running the target once per round.

Under the target-only rule the text does not depend on the draft. So it is written once, plainly and in one batch. The
rounds that a live run would visit are then drafted in lock step, one row per unfinished text, and the accepted path is
read off by matching the text. It is `decoding.decode` with another verifier: same policies, same drafts, same Steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.decoding import Committed, DraftModel, Step, Verdict, append, cut, decode, first_step
from c2t.kernels.noise import Noise
from c2t.models.target.target import Target, check_logits
from c2t.policies.plain import Plain
from c2t.protocols import Policy, Root
from c2t.sampling import Sampling, noise_at, stream_key
from c2t.tree import Tree
from c2t.verification.sampler import DRAFT, number
from c2t.verification.target_verifier import generate, pad
from c2t.verify import target_only


class Continuation(NamedTuple):
    """Continuation of one prompt by the target.

    tokens: the prompt, then new tokens up to `end` (where the text is cut: at `limit`, or at an end of sequence before
    it), then enough further ones to judge the last tree. features[i]: the target's features after tokens[i], for all
    tokens but the last. judged: for each new token of an engine's text, how far its logit lies
    below the target's largest; how many nats less probable it is than the target's own tokens on average (at
    temperature 0: 1 if the target would take another token, else 0); and the variance of that in its own texts.
    """

    tokens: Int[Tensor, " n"]
    features: Float[Tensor, "n-1 H"]
    prompt: int
    end: int
    limit: int
    judged: Float[Tensor, "m 3"] | None = None


@torch.no_grad()  # not inference mode: callers may use texts and features in training
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
    """Write the target's own texts, `beyond` tokens past each cut; judging the last round takes levels + 1 of the
    deepest tree.

    EOS cuts the text but does not stop generation: a live round looks past it too.
    """
    new: list[list[int]] = [[] for _ in prompts]
    steps = generate(
        target, None, Plain(), prompts, max_new_tokens=max_new_tokens + beyond, sampling=sampling, sequences=sequences
    )
    for step in steps:
        for prompt, tokens in step.by_row():
            new[prompt] += tokens
    ends = [len(cut(tokens, max_new_tokens, eos)) for tokens in new]
    texts = [[*prompt, *tokens[: end + beyond]] for prompt, tokens, end in zip(prompts, new, ends, strict=True)]
    # One teacher-forced pass gives the features of every position.
    tokens, lengths = pad(texts, target.device)
    features = target.session().prefill(tokens, lengths).features
    return [
        Continuation(tokens[row, :length], features[row, : length - 1], start, start + end, start + max_new_tokens)
        for row, (length, start, end) in enumerate(zip(lengths.tolist(), map(len, prompts), ends, strict=True))
    ]


@torch.no_grad()
def read_continuations(
    target: Target,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    beyond: int,
    sampling: Sampling,
    eos: frozenset[int] = frozenset(),
) -> list[Continuation]:
    """Return an engine's texts, judged by the target at this sampling's temperature: one
    forward over all of them, as `write_continuations` makes, and no token is sampled.

    A text is cut as there, and at least `beyond` tokens before its end; it must have one token more than that.
    """
    ends = [min(len(cut([*c], max_new_tokens, eos)), len(c) - beyond) for c in completions]
    assert min(ends) > 0, "texts that are too short are left out"
    texts = [[*prompt, *c[: end + beyond]] for prompt, c, end in zip(prompts, completions, ends, strict=True)]
    tokens, lengths = pad(texts, target.device)
    states, features = target.session().read(tokens, lengths)
    continuations = []
    for row, length in enumerate(lengths.tolist()):
        prompt = len(prompts[row])
        logits = target.logits(states[row, None, prompt - 1 : length - 1])[0]
        judged, end = judge(logits, tokens[row, prompt:length], sampling), prompt + ends[row]
        limit = prompt + max_new_tokens
        continuations.append(
            Continuation(tokens[row, :length], features[row, : length - 1], prompt, end, limit, judged)
        )
    return continuations


def judge(logits: Float[Tensor, "m V"], tokens: Int[Tensor, " m"], sampling: Sampling) -> Float[Tensor, "m 3"]:
    """Return `Continuation.judged` of tokens that stand where the target has these logits."""
    check_logits(logits, "target")
    gap = logits.amax(-1) - logits.gather(1, tokens[:, None])[:, 0]
    if sampling.temperature == 0:
        return torch.stack([gap, gap > 0, torch.zeros_like(gap)], 1).double()
    log_probs = sampling.process(logits).double().log_softmax(-1)
    probs, nats = log_probs.exp(), -log_probs
    entropy, square = ((probs * nats**power).nan_to_num(0.0).sum(-1) for power in (1, 2))  # 0 * inf: excluded tokens
    excess = nats.gather(1, tokens[:, None])[:, 0] - entropy
    return torch.stack([gap.double(), excess, square - entropy**2], 1)


def replay(
    drafter: DraftModel,
    policy: Policy,
    texts: Sequence[Continuation],
    *,
    seed: int = 0,
    sequences: Sequence[int] | None = None,
    temperature: float = 0.0,
    record: Sequence[str] = (),
) -> Iterator[Step]:
    """Yield the Steps of a live run over these texts: round by round, all unfinished texts in one batch.

    It is exact under the target-only rule. `seed`, `sequences` and `temperature` must be those that the texts were
    sampled with; temperature 0 for an engine's texts.
    """
    texts_of = TextVerifier(texts, seed=seed, sequences=sequences, temperature=temperature)
    return decode(texts_of, drafter, policy, record)


class TextVerifier:
    """Verifier that reads the target's choices from a text that the target has written.

    tokens, features: of each row's text, padded. position: the place of each row's root, at first just after the
    prompt.
    """

    live = False

    def __init__(
        self,
        texts: Sequence[Continuation],
        *,
        seed: int = 0,
        sequences: Sequence[int] | None = None,
        temperature: float = 0.0,
    ):
        device = texts[0].tokens.device
        self.tokens, _ = pad([text.tokens.tolist() for text in texts], device)
        self.features = torch.nn.utils.rnn.pad_sequence([text.features for text in texts], batch_first=True)
        self.position, self.ends, self.limit = torch.tensor(
            [(text.prompt, text.end, text.limit) for text in texts], device=device
        ).T
        self.rows = torch.arange(len(texts), device=device)
        self.seed, self.temperature, self.sequence = seed, temperature, number(len(texts), sequences, device)

    @classmethod
    def at(
        cls, text: Continuation, row: int, positions: Int[Tensor, " B"], sequence: int, **sampled: Any
    ) -> "TextVerifier":
        """Return a verifier of rounds at B positions of one text, which is number `row` of its batch. sampled: its seed
        and temperature."""
        verifier = cls([text], sequences=[sequence], **sampled)
        for name in ("tokens", "features", "sequence"):
            whole = getattr(verifier, name)
            setattr(verifier, name, whole.expand(len(positions), *whole.shape[1:]))
        verifier.position, verifier.rows = positions, torch.full_like(positions, row)
        return verifier

    def prefill(self) -> tuple[Step, Committed]:
        """Return the Step with the first roots, and the prompts as committed tokens."""
        committed = self._committed(torch.zeros_like(self.position), self.position)
        return first_step(self.rows, self.position, self._token(self.position)), committed

    def root(self) -> Root:
        """Return the root of the coming round."""
        return Root(self._token(self.position), stream_key(self.seed, self.sequence, self.position, DRAFT))

    @property
    def stochastic(self) -> bool:
        """See `c2t.decoding.Verifier`."""
        return self.temperature > 0

    def noise(self) -> Noise | None:
        """See `c2t.decoding.Verifier.noise`."""
        return noise_at(self.position, self.temperature, self.seed, self.sequence) if self.stochastic else None

    def left(self) -> list[int]:
        """See `c2t.decoding.Verifier.left`."""
        return (self.limit - 1 - self.position).tolist()

    @property
    def prefix(self) -> list[int]:
        """See `c2t.decoding.Verifier`."""
        return self.position.tolist()

    def completed(self, tree: Tree) -> Tree:
        """See `c2t.decoding.Verifier.completed`; a replay has no constraints."""
        return tree

    def verify(self, tree: Tree) -> Verdict:
        """Accept the path of the tree that agrees with the text."""
        start = self.position

        def choose(rows: Int[Tensor, " b"], slots: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
            return self.tokens[rows, start[rows] + tree.depth[rows, slots] + 2]

        accepted = target_only(tree, choose)
        count = accepted.length + 1
        self.position = start + count
        return Verdict(self.rows, start, accepted, self._committed(start, count))

    def unfinished(self, step: Step) -> list[int]:
        """Return the batch rows whose texts go on."""
        return (self.position + 1 < self.ends).nonzero()[:, 0].tolist()

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        for name in ("tokens", "features", "position", "ends", "limit", "rows", "sequence"):
            setattr(self, name, getattr(self, name)[rows])

    def _token(self, position: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        return self.tokens.gather(1, position[:, None])[:, 0]

    def _committed(self, start: Int[Tensor, " B"], count: Int[Tensor, " B"]) -> Committed:
        """Return the text's tokens and features from `start` on, and the new root after them."""
        index = start[:, None] + torch.arange(int(count.max()), device=start.device)
        index = index.clamp(max=self.features.shape[1] - 1)
        features = self.features.gather(1, index[..., None].expand(-1, -1, self.features.shape[2]))
        return Committed(append(self.tokens.gather(1, index), self._token(start + count), count), features, count)
