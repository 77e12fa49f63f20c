"""The function in C against the twin in torch, which tests/models/wrappers/test_ngrams.py holds against the
definition."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from c2t.caches.ragged import Ragged
from c2t.kernels.native import kernels
from c2t.kernels.ngrams import Paths, Prior, Trust, mix, raise_followers, serves
from c2t.protocols import DraftVocabulary, NextTokenDistributions
from c2t.tree import Tree
from tests.rounding import assert_same_sums

ROWS, TOKENS = 5, 4  # few tokens, so that long contexts are found too
IDS = torch.tensor([*range(1, TOKENS), *range(40, 90)])  # of the draft's vocabulary; texts have token 0 too
COUNTS = Prior(1, (8.0, 4.0, 2.0, 1.0, 0.5))
TRUSTED = Prior(2, (8.0, 2.0, 0.5), Trust(0.5, 0.25, -0.5))
LONG = Prior(1, (64.0, 8.0, 9.0, 6.0, 11.0, 4.0, 5.0, 2.0), Trust(0.9, 0.1, 1.3))
pytestmark = pytest.mark.skipif(kernels() is None, reason="no C kernels here")


def tree_of(root: Tensor, levels: int = 3) -> Tree:
    """Trees in which every node has two children, of random tokens."""
    tree, slots = Tree.root(root), torch.zeros(len(root), 1, dtype=torch.long)
    for _ in range(levels):
        tokens = torch.randint(TOKENS, (*slots.shape, 2))
        nodes = tree.children(slots, tokens, torch.zeros(tokens.shape), torch.zeros(slots.shape))
        slots = tree.size + torch.arange(nodes.size).expand(len(root), -1)
        tree = tree.extend(nodes)
    return tree


class Level(NamedTuple):
    paths: Paths
    slots: Tensor
    logits: Tensor


def level(seed: int, longest: int = 60) -> Level:
    """Random texts with trees behind them, some slots of every level, and what a draft says there."""
    torch.manual_seed(seed)
    text, lengths = torch.randint(TOKENS, (ROWS, longest)), torch.randint(1, longest + 1, (ROWS,))
    tree = tree_of(text.gather(1, lengths[:, None] - 1)[:, 0])
    slots = torch.randint(-1, tree.size, (ROWS, 7))
    logits = torch.randn(int((slots >= 0).sum()), len(IDS)).mul(3)
    return Level(Paths(text, lengths, tree.token, tree.parent), slots, logits)


def in_c(level: Level, ids: Tensor | None = IDS, own: Tensor | None = None, prior: Prior = TRUSTED) -> Tensor:
    changed, rows = level.logits.clone(), Ragged.of(level.slots >= 0)
    assert serves(changed)
    raise_followers(level.paths, rows.row, rows.take(level.slots), changed, ids, own, prior)
    return changed


def distributions(slots: Tensor, logits: Tensor, ids: Tensor | None = IDS, own: Tensor | None = None) -> Tensor:
    """Log-probabilities of all tokens at these slots."""
    known = None if ids is None else DraftVocabulary(ids, 100, own)
    return NextTokenDistributions(logits.double(), None, known, Ragged.of(slots >= 0)).log_probs


OWN = torch.tensor([[95, 0], [0, -1], [-1, -1], [0, 96], [97, -1]])  # token 0 is not among the draft's


def with_own(level: Level) -> Level:
    """A level whose logits have those of OWN, too."""
    theirs = torch.randn(len(level.logits), 2).mul(3).masked_fill(OWN[Ragged.of(level.slots >= 0).row] < 0, -torch.inf)
    return level._replace(logits=torch.cat([level.logits, theirs], 1))


@pytest.mark.parametrize("ids", [IDS, None], ids=["part of the vocabulary", "all of it"])
@pytest.mark.parametrize("prior", [COUNTS, TRUSTED, LONG], ids=["counts", "trusted", "long"])
def test_distributions_are_those_of_torch(prior: Prior, ids: Tensor | None) -> None:
    """Those of a text's own tokens, too; a text of one token has no followers, and a long one has some often."""
    own, changed = None if ids is None else OWN, 0
    for seed in range(12):
        given = level(seed, (1, 8, 60, 700)[seed % 4])
        given = given if own is None else with_own(given)
        paths, slots, logits = given
        found = in_c(given, ids, own, prior)
        wanted = mix(paths, slots, distributions(slots, logits, ids, own), prior).log_softmax(-1)
        real = slots >= 0
        assert_same_sums(distributions(slots, found, ids, own)[real].exp().float(), wanted[real].exp(), 100)
        changed += int((found != logits).any(1).sum())
    assert changed >= 100


def test_tokens_that_only_a_text_has_are_raised_in_it() -> None:
    """Of three texts of five token 0 is their own."""
    raised = 0
    for seed in range(10):
        given = with_own(level(seed))
        raised += int((in_c(given, IDS, OWN) != given.logits)[:, len(IDS) :].sum())
    assert raised >= 5


def test_a_token_with_hundreds_of_followers_counts_each_of_them() -> None:
    """In slots of several rows, whose followers must not be taken for each other's."""
    torch.manual_seed(0)
    vocabulary = 50_000
    following = torch.randint(1, vocabulary, (2, 400)).repeat_interleave(2, 1)
    following[:, 1::2] = 0  # every second token is the same
    text = torch.cat([torch.zeros(2, 1, dtype=torch.long), following], 1)
    tree = Tree.root(text[:, -1])
    paths = Paths(text, torch.tensor([801, 601]), tree.token, tree.parent)
    logits = torch.randn(4, vocabulary)
    found = logits.clone()
    slots = torch.zeros(4, dtype=torch.long)
    raise_followers(paths, torch.tensor([0, 1, 0, 1]), slots, found, None, None, COUNTS)
    wanted = mix(paths, slots.view(2, 2), logits.double()[[0, 2, 1, 3]].view(2, 2, -1).log_softmax(-1), COUNTS)
    found = found.double().log_softmax(-1)[[0, 2, 1, 3]].view(2, 2, -1)
    assert_same_sums(found.exp().float(), wanted.log_softmax(-1).exp(), 100)


def test_own_tokens_of_other_texts_do_not_count() -> None:
    """They make the row longer, by tokens without probability; its bits stay."""
    own, differ = torch.full((ROWS, 1), 0), 0
    for seed in range(10):
        given = level(seed)
        narrow = torch.cat([given.logits, torch.randn(len(given.logits), 1)], 1)
        wide = given._replace(logits=torch.nn.functional.pad(narrow, (0, 20), value=-torch.inf))
        found = in_c(given._replace(logits=narrow), IDS, own)
        assert in_c(wide, IDS, torch.nn.functional.pad(own, (0, 20), value=-1))[:, :-20].equal(found)
        differ += int((found != narrow).sum())
    assert differ >= 30


def test_a_row_does_not_depend_on_the_others() -> None:
    paths, slots, logits = level(1)
    together = in_c(Level(paths, slots, logits))
    for row in range(ROWS):
        own = Paths(*(part[row : row + 1] for part in paths))
        own = own._replace(text=own.text[:, : int(own.lengths)])
        mine = (slots >= 0).nonzero()[:, 0] == row
        assert in_c(Level(own, slots[row : row + 1], logits[mine])).equal(together[mine])


def test_excluded_tokens_stay_excluded_and_nan_stays_nan() -> None:
    given = level(3)
    given.logits[:, 0] = -torch.inf
    assert (in_c(given)[:, 0] == -torch.inf).all()
    given.logits[:, 1:] = -torch.inf
    assert in_c(given).equal(given.logits)
    given.logits[:, -1] = torch.nan
    assert in_c(given)[:, -1].isnan().all()


def test_rows_of_a_text_may_be_one_in_memory() -> None:
    """As those of a fork are."""
    given = level(4)
    shared = given.paths._replace(text=given.paths.text[:1].expand(ROWS, -1))
    copied = shared._replace(text=shared.text.contiguous())
    assert in_c(given._replace(paths=shared)).equal(in_c(given._replace(paths=copied)))
