"""Pages say what the result lines say: tables are rendered, none is typed, and the picture is a real round."""

import re
from pathlib import Path

import pytest
import torch

from c2t import C2T, SpeculativeDecoder, TreeClassifier
from c2t.models.loading import load_pair
from pipelines.docs import bars, tree
from pipelines.docs.pages import ROOT, names, pages, render, typed_numbers
from pipelines.docs.result_lines import lines
from pipelines.docs.tables import PARTS
from tests.rounding import roughly

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_result_lines(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert render(text, PARTS) == text, "run python -m pipelines.docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_number_is_typed_into_a_table(page: Path) -> None:
    assert typed_numbers(page.read_text(encoding="utf-8")) == []


def test_every_part_has_a_place() -> None:
    assert {name for page in PAGES for name in names(page.read_text(encoding="utf-8"))} == set(PARTS)


def test_a_changed_number_and_a_typed_one_are_noticed() -> None:
    page = "<!-- table: one -->\n| a |\n| 1 |\n<!-- end -->\n"
    assert render(page, {"one": lambda: "\n| a |\n| 1 |\n"}) == page
    assert render(page, {"one": lambda: "\n| a |\n| 2 |\n"}) != page
    assert typed_numbers(page) == []
    assert typed_numbers(page + "\n| b | 0.5 |\n") == ["| b | 0.5 |"]


def test_the_picture_is_a_real_round() -> None:
    pair = load_pair("tiny", dtype=torch.float32)
    policy = C2T(TreeClassifier.from_pretrained("tiny"), beta=tree.BETA, K=tree.K, levels=tree.LEVELS)
    found = tree.rounds(SpeculativeDecoder(pair, tree.RecordingPolicy(policy)), tree.PROMPT)
    output = SpeculativeDecoder(pair, policy).generate(tree.PROMPT, max_new_tokens=64)
    # The last rounds may be cut by the text's end.
    assert [len(one.accepted) for one in found[:-1]] == output.statistics[0].accepted[:-1]
    assert [len(one.kept) + 1 for one in found] == output.statistics[0].verified
    assert all(one.kept <= set(one.drafted) for one in found)
    picture = (ROOT / "docs" / "images" / "tree.svg").read_text(encoding="utf-8")
    drawn = tree.drawn(found)
    for kind, count in (("drafted", len(drawn.drafted)), ("kept", len(drawn.kept)), ("accepted", len(drawn.accepted))):
        assert re.search(rf">{count} {kind}", picture)
    tokens = {drawn.root, *(token for path in drawn.drafted for token in path)}
    assert tree.svg(drawn, {token: pair.tokenizer.decode([token]) for token in tokens}) == picture


def test_the_bars_are_those_of_the_result_lines() -> None:
    found = [line["figures"] for line in lines("breakdown.jsonl")]
    picture = (ROOT / "docs" / "images" / "round.svg").read_text(encoding="utf-8")
    assert bars.svg(found) == picture, "run python -m pipelines.docs bars"
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="26"', picture)]
    parts = [milliseconds for one in found for milliseconds in one["parts"].values()]
    assert len(widths) == len(parts)
    assert max(widths) / sum(widths) == roughly(max(parts) / sum(parts), 0.01)


def test_a_site_that_is_opened_from_the_folder_can_be_searched_without_a_network() -> None:
    """The plug-in would load a script from unpkg.com, unless one of that name is there."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(r"^plugins: \[search, offline\]$", settings, re.MULTILINE)
    [script] = re.findall(r"^  polyfills: \[(.*iframe-worker.*)\]$", settings, re.MULTILINE)
    assert (ROOT / "docs" / script).is_file()
