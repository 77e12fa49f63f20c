"""What a round knows besides its draft, against counts made one by one."""

import numpy as np
import pytest
import torch

from c2t.harvest.harvest import HarvestSettings, harvest
from c2t.models.pairs import load_pair
from c2t.prompts import Prompt
from pipelines.gain.context import GRAMS, Laws, Texts, grams, read_texts, with_context
from pipelines.gain.subtrees import Nodes, read_nodes
from tests.rounding import growth

PROMPTS = [Prompt(i, "known", [f"def f{i}(x):\n    return x\n\ndef g{i}(x):"], f"{'ab'[i]}.jsonl") for i in range(2)]
SETTINGS = HarvestSettings(K=4, levels=4, max_new_tokens=10)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Nodes, Texts, Laws]:
    pair = load_pair("tiny")
    folder = harvest(pair, PROMPTS, tmp_path_factory.mktemp("context") / "rows", SETTINGS).folder
    with torch.no_grad():
        return read_nodes(folder), *read_texts(pair, PROMPTS, SETTINGS)


def path_of(nodes: Nodes, row: int) -> list[int]:
    path = [row]
    while nodes.above[path[0]] >= 0:
        path.insert(0, nodes.above[path[0]])
    return path


def test_texts_are_those_of_the_harvest(found: tuple[Nodes, Texts, Laws]) -> None:
    nodes, texts, _ = found
    for row in np.flatnonzero(nodes.accepted):
        place = texts.start[nodes.prompt[row]] + nodes.position[row] + nodes.depth[row] + 1
        assert texts.token[place] == nodes.token[row]


def test_grams_are_counted_up_to_the_root_and_no_further(found: tuple[Nodes, Texts, Laws]) -> None:
    nodes, texts, _ = found
    counted = list(grams(nodes, texts))
    assert len(counted) == GRAMS
    for row in range(0, len(nodes.token), 7):
        start = texts.start[nodes.prompt[row]]
        text = texts.token[start : start + nodes.position[row] + 1].tolist()
        whole = text + nodes.token[path_of(nodes, row)].tolist()
        for length, (seen, begun, distance) in enumerate(counted, 1):
            gram = whole[-length:]
            ends = [end for end in range(length, len(text) + 1) if text[end - length : end] == gram]
            assert seen[row] == len(ends)
            before = range(max(1, length - 1), len(text))
            assert begun[row] == sum(text[end - length + 1 : end] == gram[:-1] for end in before)
            if ends:
                assert distance[row] == len(text) - ends[-1]


def test_columns(found: tuple[Nodes, Texts, Laws]) -> None:
    nodes = with_context(*found)
    assert all(np.isfinite(column).all() for column in nodes.columns.values())
    match, count = nodes.columns["match"], nodes.columns["count_2"]
    assert ((match >= 2) == (count > 0)).all()
    assert (nodes.columns["mixed_48"] <= growth(64, torch.float64)).all()  # the logarithm of a mixture that sums to 1
    first = nodes.tree == nodes.tree[0]
    assert (nodes.columns["last_accepted"][first] == 0).all()
    second = nodes.tree == nodes.tree[0] + 1
    assert (nodes.columns["last_accepted"][second] == nodes.accepted[first].sum()).all()
    assert (nodes.columns["root_peak"] <= 0).all()
    assert (nodes.columns["root_entropy"] > 0).all()
