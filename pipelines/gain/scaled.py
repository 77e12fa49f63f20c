"""Pairs whose draft's temperature is another one."""

from dataclasses import replace

from c2t.models.pairs import Pair
from c2t.models.scaled import ScaledDraft


def scaled(pair: Pair, factor: float) -> Pair:
    """Return the pair with its draft's logits multiplied by `factor`; 1 leaves it as it is."""
    if factor == 1:
        return pair
    sources = pair.sources | {"draft": tuple(f"{source}*{factor:g}" for source in pair.sources["draft"])}
    return replace(pair, draft=ScaledDraft(pair.draft, factor), sources=sources)
