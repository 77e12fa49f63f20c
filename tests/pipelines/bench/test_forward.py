"""The timed forwards leave the prefix as it is, so that every turn does the same work."""

import torch

from c2t.models.loading.load import Pair
from pipelines.bench.forward import Ours, Stock, measure


def test_every_turn_starts_behind_the_same_prefix(small_pair: Pair) -> None:
    tokens = torch.arange(1, 9)[None]
    ours, stock = Ours(small_pair, tokens), Stock(small_pair.target.model, tokens)
    found = measure({"c2t": ours, "transformers": stock}, (1, 3), repeats=2)
    counts = {way: [len(parts) for parts in sizes] for way, sizes in found.items()}
    assert counts == {"c2t": [2, 2], "transformers": [2, 2]}
    assert all(part > 0 for sizes in found.values() for parts in sizes for part in parts)
    assert ours.session.lengths.tolist() == [stock.cache.get_seq_length()] == [tokens.shape[1]]
