"""Pages say what the result lines say: tables are rendered, none is typed, and the picture is a real round. Pages are
few and short, and so are their sentences."""

import re
from pathlib import Path

import pytest
import torch

from c2t import C2T, SpeculativeDecoder, TreeClassifier
from c2t.models.loading.load import load_pair
from pipelines.docs import bars, lengths, tree
from pipelines.docs.pages import ROOT, names, pages, render, typed_numbers
from pipelines.docs.result_lines import lines
from pipelines.docs.tables import PARTS
from tests.prose import entries, long_tables, of_the_past, sentences, typed_decimals, words
from tests.rounding import roughly

PAGES = pages()
DOCS, LOG = ROOT / "docs", ROOT / "docs" / "LOG.md"
RESULTS = sorted((DOCS / "results").glob("*.md"))
MANUAL = [page for page in sorted(DOCS.glob("*.md")) if page != LOG]
KB = 1024
BOUND = [ROOT / "README.md", *MANUAL]


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


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


@pytest.mark.parametrize("page", BOUND, ids=by_name)
def test_a_page_is_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) <= 8 * KB, "longer tables stand in docs/results"
    assert long_tables(text, most=12) == [], "longer tables stand in docs/results"


@pytest.mark.parametrize("page", [*BOUND, *RESULTS], ids=by_name)
def test_a_sentence_has_at_most_thirty_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [sentence for sentence in sentences(text) if words(sentence) > 30] == []


@pytest.mark.parametrize("page", BOUND, ids=by_name)
def test_a_page_describes_today(page: Path) -> None:
    assert of_the_past(page.read_text(encoding="utf-8")) == [], "commits, dates and what had been stand in docs/LOG.md"


@pytest.mark.parametrize("page", [*BOUND, *RESULTS], ids=by_name)
def test_a_decimal_in_prose_is_rendered(page: Path) -> None:
    assert typed_decimals(page.read_text(encoding="utf-8")) == [], "render it: <!-- value: NAME --><!-- end -->"


def size(*files: Path) -> int:
    return sum(len(page.read_bytes()) for page in files)


def test_results_have_a_limit() -> None:
    assert size(*RESULTS) <= 60 * KB


def test_the_manual_has_a_limit() -> None:
    assert len(MANUAL) <= 24
    assert size(*MANUAL) <= 120 * KB


def test_the_log_is_brief() -> None:
    text = LOG.read_text(encoding="utf-8")
    assert size(LOG) <= 25 * KB
    assert [entry[0] for entry in entries(text) if len(entry) > 8] == []


def test_what_breaks_the_rules_of_a_page_is_noticed() -> None:
    long = "It says " + "so many " * 15 + "words."
    page = f"""# Title of 0.5

{long} A short one follows, e.g. this. `threshold=0.1` is code, and `a`, `b`, `c` and `d` are one word.

    c2t tune 0.25

- An item of Llama, Qwen, Gemma and Phi at 1.75 times, in Python 3.11 (arXiv 2405.12345).
- It had been slower on 2026-11-27 (commit 1ba7ac1).

<!-- value: one -->0.33<!-- end --> <sub>commit e782efc; 2026-11-26</sub>
"""
    assert [words(sentence) for sentence in sentences(page)][:4] == [33, 6, 8, 11]
    assert typed_decimals(page) == ["1.75"]
    assert of_the_past(page) == ["1ba7ac1", "2026-11-27", "had been"]
    table = "| a |\n|---|\n" + "| b |\n" * 13
    assert long_tables(table, 12) == ["| a |"]
    assert long_tables(table, 13) == []
    log = "# Log\n\n## Drafts\n\n**One.** Tried,\nand kept.\n\n- Two.\n"
    assert entries(log) == [["## Drafts"], ["**One.** Tried,", "and kept."], ["- Two."]]


def test_the_picture_is_a_real_round() -> None:
    pair = load_pair("tiny", dtype=torch.float32)
    policy = C2T(TreeClassifier.from_pretrained("tiny"), beta=tree.BETA, K=tree.K, levels=tree.LEVELS)
    rounds = tree.rounds(SpeculativeDecoder(pair, tree.RecordingPolicy(policy)), tree.PROMPT)
    output = SpeculativeDecoder(pair, policy).generate(tree.PROMPT, max_new_tokens=64)
    # The last rounds may be cut by the text's end.
    assert [len(shown.accepted) for shown in rounds[:-1]] == output.statistics[0].accepted[:-1]
    assert [len(shown.verified) + 1 for shown in rounds] == output.statistics[0].verified
    assert all(shown.verified <= set(shown.drafted) for shown in rounds)
    picture = (ROOT / "docs" / "images" / "tree.svg").read_text(encoding="utf-8")
    drawn = tree.drawn(rounds)
    for kind in ("drafted", "verified", "accepted"):
        assert f">{len(getattr(drawn, kind))} {kind}<" in picture
    tokens = {drawn.root, *(token for path in drawn.drafted for token in path)}
    assert tree.svg(drawn, {token: pair.tokenizer.decode([token]) for token in tokens}) == picture


def test_the_lengths_are_those_of_the_result_lines() -> None:
    found = [line["figures"] for line in lines("lengths.jsonl")]
    picture = (ROOT / "docs" / "images" / "lengths.svg").read_text(encoding="utf-8")
    assert lengths.svg(found) == picture, "run python -m pipelines.docs lengths"
    assert picture.count("<polyline") == len({row["way"] for row in found})
    assert picture.count("<circle") == len(found)
    assert lengths.apart([10, 12, 90]) == [10, 10 + lengths.APART, 90]


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
