"""The comparison of a model on prompts: transformers' model with its modules, or c2t's target."""

import inspect
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from c2t import decoding
from c2t.cuda_graphs.target import StaticTarget
from c2t.errors import InputError, check_whole
from c2t.models.loading.chat_templates import token_ids
from c2t.models.target.positions import positions_of
from c2t.models.target.target import Target
from c2t.study.parity.activations import Activations
from c2t.study.parity.compare import ModuleGroup, ParityRow, compare, grouped
from c2t.study.parity.kernels import OwnTarget
from c2t.study.parity.stock import StockModel

BRANCHES = 4  # most children of a node of a tree
MOST_ROWS = 1024  # of one forward


class ParityResult(NamedTuple):
    """The comparison at each number of nodes; the activations that differ by themselves there, grouped; and the modules
    that were not compared."""

    rows: list[ParityRow]
    groups: list[list[ModuleGroup]]
    unseen: list[str]

    @property
    def figures(self) -> dict[str, Any]:
        """The result for JSON. differing: numbers of the layers where a module
        differs by itself, "" for a module of no layer."""
        rows = []
        for row, groups in zip(self.rows, self.groups, strict=True):
            modules = [group._asdict() | {"differing": group.layers} for group in groups]
            rows.append({**row._asdict(), "activations": modules})
        return {"rows": rows, "unseen": self.unseen}


@torch.inference_mode()
def parity(
    model: PreTrainedModel | Target | StaticTarget,
    prompts: Sequence[Sequence[int]],
    rows: Sequence[int],
    chain: bool = False,
) -> ParityResult:
    """Compare one-token decoding after each prompt with one forward over M nodes of a tree, or of a chain.

    rows: the numbers M. InputError for numbers out of range, for texts longer than the model's positions, for a model
    that cannot be compared (`StockModel`), and for one that is not deterministic.
    """
    check_rows(rows)
    limit = positions_of(model.config.get_text_config(decoder=True))
    if (longest := max(map(len, prompts))) + max(rows) > limit:
        raise InputError(
            f"a prompt of {longest} tokens and {max(rows)} nodes may need more than the model's {limit} positions; "
            "choose a smaller --prefix or fewer --rows"
        )
    branches = 1 if chain else BRANCHES
    if isinstance(model, Target | StaticTarget):
        results = [compare(OwnTarget(model, prompt), rows, branches) for prompt in prompts]
        return ParityResult(_together(results), [[] for _ in rows], [])
    results = []
    for prompt in prompts:
        with Activations(model) as activations:
            results.append(compare(StockModel(model, activations, prompt, chain), rows, branches, activations))
    together = _together(results)
    groups = [grouped(row.activations, activations.order) for row in together]
    return ParityResult(together, groups, sorted(activations.unseen))


def check_rows(rows: Sequence[int]) -> None:
    """Raise InputError unless these numbers of nodes fit one forward."""
    for count in rows:
        check_whole("rows", count, least=1, most=MOST_ROWS)


def _together(results: Sequence[list[ParityRow]]) -> list[ParityRow]:
    return [reduce(ParityRow.with_prompt, rows) for rows in zip(*results, strict=True)]


def prompt_ids(tokenizer: Any, texts: Sequence[str], length: int) -> list[list[int]]:
    """Return at most so many tokens of each text; without texts, as many of a text of this package. InputError where
    no text has a token."""
    if texts:
        prompts = [ids for text in texts if (ids := token_ids(tokenizer, text)[:length])]
        if not prompts:
            raise InputError("no prompt has a token: give a text to continue")
        return prompts
    text = inspect.getsource(decoding)
    ids = token_ids(tokenizer, text)
    return [token_ids(tokenizer, text * -(-length // len(ids)))[:length]]


def lines(result: ParityResult) -> Iterator[str]:
    """Return the result as lines for people."""
    for row, groups in zip(result.rows, result.groups, strict=True):
        said = f"M = {row.rows}: logits of {row.differing} of {row.nodes} nodes differ"
        if row.differing:
            gaps = "" if not row.flips else f" (gaps {', '.join(f'{gap:.4g}' for gap in sorted(row.flips)[:5])})"
            said += f", by up to {row.ulp:.2g} ulp; {len(row.flips)} other argmax{gaps}"
        yield said if row.first is None else f"{said}; first: {row.first}"
        if row.rows == 1 and row.differing:
            yield "    one node alone differs: the call itself, as by its mask, runs other code than plain decoding"
        for group in groups:
            yield (
                f"    {group.name:40} {len(group.differing):3} of {group.count:3} layers, up to {group.ulp:.2g} ulp, "
                f"{group.rows} rows"
            )
            if "*" in group.name and len(group.differing) <= 3:
                yield f"        {', '.join(group.differing)}"
    if result.unseen:
        yield f"not compared, because their tensors have no row for each token: {', '.join(result.unseen)}"
