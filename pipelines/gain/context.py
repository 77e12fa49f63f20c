"""Facts that a round knows besides its draft, as columns of harvested nodes: tokens that followed the same ones earlier
in the text, the target's distribution at the root, and the outcome of the round before. None of it costs a forward."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.harvest.harvest import HarvestSettings
from c2t.models.pairs import Pair
from c2t.prompts import Prompt, conversation
from c2t.replay.cache import cached_continuations
from c2t.sampling import Sampling
from pipelines.gain.subtrees import Nodes, along

GRAMS = 4  # tokens of the longest n-gram
SHRINK = 1.0  # a gram's share weighs as much as the shorter gram's if its beginning occurs so often
PRIOR_WEIGHTS = (4, 16, 48)  # the same, where the shares are mixed with the draft's probability
NEVER = 8.0  # minus the nearness of a gram that does not occur: farther than any text here is long


class Texts(NamedTuple):
    """Prompts with the target's continuations, joined to one row of tokens. start: where each text begins."""

    token: Int[np.ndarray, " m"]
    start: Int[np.ndarray, " n"]

    @classmethod
    def joined(cls, tokens: Sequence[Int[Tensor, " t"]]) -> "Texts":
        """Return texts as one row."""
        return cls(torch.cat(list(tokens)).numpy(), np.cumsum([0, *map(len, tokens)])[:-1])


class Laws(NamedTuple):
    """Entropy of the distribution that each token of texts was drawn from, and the log of its highest probability (0 in
    the prompts)."""

    entropy: Float[np.ndarray, " m"]
    peak: Float[np.ndarray, " m"]


def read_texts(pair: Pair, prompts: Sequence[Prompt], settings: HarvestSettings) -> tuple[Texts, Laws]:
    """Return the texts that a harvest of these prompts (of one turn each) follows, and what they were drawn from. The
    pair's features must be the target's last states, which EAGLE-3's are not; texts do not depend on the draft."""
    sampling = Sampling(settings.temperature, seed=settings.seed)
    tokens, entropies, peaks = [], [], []
    for first in range(0, len(prompts), settings.batch):
        group = prompts[first : first + settings.batch]
        found = cached_continuations(
            pair,
            [conversation(pair.tokenizer, pair.template, prompt.turns) for prompt in group],
            max_new_tokens=settings.max_new_tokens,
            beyond=settings.levels + 1,
            sampling=sampling,
            sequences=range(first, first + len(group)),
        )
        for text in found:
            law = pair.target.logits(text.features[None, text.prompt - 1 :])[0].log_softmax(-1)
            quiet = torch.zeros(text.prompt)
            tokens.append(text.tokens)
            entropies.append(torch.cat([quiet, -(law.exp() * law).sum(-1)]))
            peaks.append(torch.cat([quiet, law.amax(-1)]))
    laws = Laws(*(torch.cat(column).double().numpy() for column in (entropies, peaks)))
    return Texts.joined(tokens), laws


def with_context(nodes: Nodes, texts: Texts, laws: Laws) -> Nodes:
    """Return the nodes with the columns of their context."""
    return nodes._replace(columns=nodes.columns | copied(nodes, texts) | rooted(nodes, texts, laws) | before(nodes))


def copied(nodes: Nodes, texts: Texts) -> dict[str, Float[np.ndarray, " n"]]:
    """Return columns that say whether the token follows the same tokens (on the path, then in the text) earlier in the
    text too.

    count_n: log(1 + occurrences of the last n tokens). share_n: share of those among the occurrences of the first n - 1
    of them, drawn to the shorter gram's by SHRINK. match: tokens of the longest gram that occurs. nearness: minus the
    log of the distance to the last occurrence of the longest gram, of at least 2 tokens. mixed_d: log of the path's
    probability where each token's by the draft is mixed with its shares as if the draft had seen it d times.
    """
    prob = np.exp(nodes.columns["log_prob"])
    share, match, nearness = np.zeros(len(prob)), np.zeros(len(prob)), np.full(len(prob), -NEVER)
    mixed = dict.fromkeys(PRIOR_WEIGHTS, prob)
    columns = {}
    for length, (seen, begun, distance) in enumerate(grams(nodes, texts), 1):
        share = (seen + SHRINK * share) / (begun + SHRINK)
        match = np.where(seen > 0, length, match)
        if length > 1:
            mixed = {
                prior_weight: (seen + prior_weight * one) / (begun + prior_weight)
                for prior_weight, one in mixed.items()
            }
            nearness = np.where(seen > 0, -np.log1p(distance), nearness)
        columns |= {f"count_{length}": np.log1p(seen), f"share_{length}": share}
    paths = {
        f"mixed_{prior_weight}": along(np.log(one), nodes.above, nodes.depth) for prior_weight, one in mixed.items()
    }
    return columns | paths | {"match": match, "nearness": nearness}


def grams(nodes: Nodes, texts: Texts) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for 1 to GRAMS tokens that end with the node: how often they occur in the text up to the root, how often
    all but the last of them occur with a token after them, and the distance from the root to the last occurrence.

    A gram's number is that of its beginning and its last token; the empty gram's is the prompt's.
    """
    root = texts.start[nodes.prompt] + nodes.position
    size = len(texts.token)
    here = np.searchsorted(texts.start, np.arange(size), "right") - 1
    mine, parent = nodes.prompt, nodes.prompt
    width = 1 + max(texts.token.max(), nodes.token.max())
    for length in range(1, GRAMS + 1):
        begun = _upto(here, parent, root - 1)[0]
        begins = np.r_[0, here[:-1]] if length > 1 else here
        known, here = np.unique(begins * width + texts.token, return_inverse=True)
        wanted = parent * width + nodes.token
        place = np.searchsorted(known, wanted).clip(max=len(known) - 1)
        mine = np.where((known[place] == wanted) & (parent >= 0), place, -1)
        seen, last = _upto(here, mine, root)
        yield seen, begun, root - last
        parent = np.where(nodes.above < 0, here[root], mine[nodes.above])


def _upto(numbers: np.ndarray, wanted: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each wanted number stands in `numbers` up to the place `end`, and its last place (-1:
    nowhere)."""
    size = len(numbers)
    order = np.sort(numbers * size + np.arange(size))
    upper = np.searchsorted(order, wanted * size + end, "right")
    count = np.where(wanted < 0, 0, upper - np.searchsorted(order, wanted * size))
    return count, np.where(count > 0, order[upper - 1] % size, -1)


def rooted(nodes: Nodes, texts: Texts, laws: Laws) -> dict[str, Float[np.ndarray, " n"]]:
    """Return columns of the target's distribution at the root, known since the last verification."""
    root = texts.start[nodes.prompt] + nodes.position
    return {"root_entropy": laws.entropy[root], "root_peak": laws.peak[root]}


def before(nodes: Nodes) -> dict[str, Float[np.ndarray, " n"]]:
    """Return columns of the round before: the number of accepted tokens, and the share of them that the draft ranked
    first; 0 in a text's first round."""
    first = np.unique(nodes.tree, return_index=True)[1]
    place = np.cumsum(np.isin(np.arange(len(nodes.tree)), first)) - 1
    accepted = np.bincount(place, nodes.accepted)
    top = np.bincount(place, nodes.accepted & (nodes.columns["rank"] == 0)) / np.maximum(accepted, 1)
    goes_on = np.r_[False, nodes.prompt[first][1:] == nodes.prompt[first][:-1]]
    return {
        name: np.where(goes_on, np.roll(values, 1), 0.0)[place]
        for name, values in (("last_accepted", accepted), ("last_top", top))
    }
