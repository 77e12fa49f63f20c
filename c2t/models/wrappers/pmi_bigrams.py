"""Pointwise mutual information of bigrams as a correction: how much more often a token follows another than any.

    score(y | x) = log p(y) + POWER log [(c(x, y) + PRIOR u(y)) / ((c(x) + PRIOR) u(y))]

p is the draft's marginal, c counts the texts' pairs and tokens, u is a token's share of the texts. Nothing is
trained: it is the baseline of `path_correction`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path as File

import torch
from jaxtyping import Float, Int, Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from c2t.errors import InputError, one_line
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.registry import ENDINGS, PATH, Ending
from c2t.models.target.offloaded import check_in_memory
from c2t.models.target.target import Target
from c2t.models.wrappers.reweighted import Path, ReweightedDraft
from c2t.storage.atomic import new_file

POWER, PRIOR = 0.7, 30.0  # best of a search on training texts
UNSEEN = 0.5  # added to each token's count, so that no share is 0
MANY = 255  # largest count in the column `counts`; larger ones are in `many`
BIGRAMS = "+bigrams"  # end of a draft's name
FILE = "bigrams.safetensors"  # in the folder of a draft's weights


@dataclass(frozen=True)
class PmiBigrams:
    """Pairs of tokens, as first x vocabulary + second in rising order, how often each was counted, and how often each
    token was first and second of one."""

    pairs: Int[Tensor, " n"]
    counts: Int[Tensor, " n"]
    first: Float[Tensor, " V"]
    second: Float[Tensor, " V"]

    @classmethod
    def counted(cls, texts: Iterable[Int[Tensor, " _"]], vocabulary: int) -> "PmiBigrams":
        """Count the pairs of texts; InputError if there are none."""
        parts = [text[:-1].long() * vocabulary + text[1:].long() for text in texts if len(text) > 1]
        if not parts:
            raise InputError("there are no pairs of tokens to count; generate some texts first")
        pairs, counts = torch.cat(parts).unique(return_counts=True)
        return cls.of(pairs, counts, vocabulary)

    @classmethod
    def of(cls, pairs: Int[Tensor, " n"], counts: Int[Tensor, " n"], vocabulary: int) -> "PmiBigrams":
        """Return the table of these pairs and their counts."""
        first, second = (
            torch.zeros(vocabulary, dtype=torch.float64, device=pairs.device).index_add(0, token, counts.double())
            for token in (pairs // vocabulary, pairs % vocabulary)
        )
        return cls(pairs, counts, first, second)

    def ratio(self, x: Int[Tensor, "*B"], y: Int[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """Return the log of how much more often y follows x than any token."""
        wanted = x * len(self.second) + y
        index = torch.searchsorted(self.pairs, wanted).clamp(max=len(self.pairs) - 1)
        count = torch.where(self.pairs[index] == wanted, self.counts[index], 0)
        share = (self.second[y] + UNSEEN) / (self.second.sum() + UNSEEN * len(self.second))
        return ((count + PRIOR * share) / ((self.first[x] + PRIOR) * share)).log()

    def __call__(
        self, path: Path, tokens: Int[Tensor, "B F C"], log_probs: Float[Tensor, "B F C"]
    ) -> tuple[Float[Tensor, "B F C"], Float[Tensor, "B F 1"]]:
        """See `c2t.models.wrappers.reweighted.Correction`."""
        score = log_probs + POWER * self.ratio(path.token[..., None].expand_as(tokens), tokens).to(log_probs)
        return score, torch.zeros_like(score[..., :1])

    def save(self, folder: File) -> None:
        """Write the table to the folder of a draft's weights: how many different tokens follow each one, which, and
        how often. The few counts from MANY on are in `many`."""
        vocabulary = len(self.first)
        table = {
            "different": torch.bincount(self.pairs // vocabulary, minlength=vocabulary),
            "followers": self.pairs % vocabulary,
            "many": self.counts[self.counts >= MANY],
        }
        table = {name: part.to(torch.uint16 if (part < 2**16).all() else torch.int32) for name, part in table.items()}
        table["counts"] = self.counts.clamp(max=MANY).to(torch.uint8)
        with new_file(folder / FILE) as new:
            save_file({name: part.contiguous() for name, part in table.items()}, new)

    @classmethod
    def load(cls, folder: File, vocabulary: int, device: torch.device) -> "PmiBigrams":
        """Read a draft's table; InputError if there is none, or one that is not for this vocabulary."""
        path = folder / FILE
        try:
            table = load_file(path)
            different, followers, counts, many = (
                table[name].long() for name in ("different", "followers", "counts", "many")
            )
        except (OSError, SafetensorError, KeyError) as error:
            reason = one_line(error)
            raise InputError(
                f"{path}: no counts of pairs can be read ({reason}); count texts again or leave +bigrams out"
            ) from error
        pairs = pairs_of(different, followers, vocabulary)
        often = counts == MANY
        fits = pairs is not None and counts.shape == pairs.shape and many.shape == counts[often].shape
        if not fits or counts.min() < 1 or counts.max() > MANY or (many < MANY).any():
            raise InputError(f"{path}: not counts of pairs of {vocabulary} tokens; count the target's own texts again")
        return cls.of(pairs.to(device), counts.masked_scatter(often, many).to(device), vocabulary)


def pairs_of(
    different: Shaped[Tensor, "..."], followers: Shaped[Tensor, "..."], vocabulary: int
) -> Int[Tensor, " n"] | None:
    """Return pairs of tokens from how many different ones follow each, and which ones; None where that is no table."""
    if different.shape != (vocabulary,) or followers.dim() != 1 or not len(followers):
        return None
    fits = different.min() >= 0 and different.max() <= len(followers) and different.sum() == len(followers)
    if not fits or followers.min() < 0 or followers.max() >= vocabulary:
        return None
    pairs = torch.arange(vocabulary, device=different.device).repeat_interleave(different) * vocabulary + followers
    return pairs if (pairs[1:] > pairs[:-1]).all() else None


def _with_bigrams(draft: BaseDraft, number: None, folder: File, target: Target) -> ReweightedDraft:
    check_in_memory(target.embed_tokens, "embedding")
    device = target.embed_tokens.weight.device
    return ReweightedDraft(draft, PmiBigrams.load(folder, target.config.vocab_size, device))


ENDINGS[BIGRAMS] = Ending(
    _with_bigrams, PATH, FILE, summary="Condition a parallel draft on the path, by counts of pairs."
)
