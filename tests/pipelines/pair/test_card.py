"""The card is made of the stages' records and logs."""

import json
from pathlib import Path

import pytest

from pipelines.pair.build import CORPUS
from pipelines.pair.card import MODELS, aim, log, write_card


def line(domain: str, share: float) -> dict:
    known = {"domain": domain, "category": "known", "T": 0.4}
    return known | {"texts": 20, "tau eagle": 2.51, "agreement eagle": share}


def stages(build: Path) -> None:
    last = {"step": 100.0, "loss": 2.0, "agreement": 0.5}
    records = {name: {"parameters": 1234, "steps": 50, "seconds": 120, "last": last} for name in MODELS}
    records["corpus"] = {"sha256": "feed"}
    records["tokenizer"] = {"tokens": {"trained": 7000, "heldout": 3000}}
    records["texts"] = {"written_tokens": 5000}
    records["report"] = {"lines": [line(domain, share) for domain, share in (("code", 0.62), ("doctest", 0.72))]}
    for name, record in records.items():
        (build / f"{name}.json").write_text(json.dumps(record))
    for name in MODELS:
        (build / name).mkdir()
        lines = "step,seconds,loss,agreement", "50,9,3.0,0.1", "100,20,2.0,0.5", "50,10,2.5,0.2"
        (build / name / "log.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of the stages' records and of the pair."""
    build, out = tmp_path / "build", tmp_path / "out"
    build.mkdir()
    out.mkdir()
    return build, out


def test_card_and_provenance_hold_the_figures(places: tuple[Path, Path]) -> None:
    build, out = places
    stages(build)
    write_card(out, build, CORPUS)
    card = (out / "README.md").read_text()
    table = ("| 1,234 | 50 steps, 2 min |", "| code | known | 0.40 | 20 | 2.51 |")
    for figure in (*table, "feed", "7,000 tokens", "agreement 0.500"):
        assert figure in card
    said = "The aim of 70% agreement is reached on doctest only (known, T = 0.4, `eagle`: code 0.62, "
    assert f"{said}doctest 0.72)" in " ".join(card.split())
    assert {path.stem for path in (out / "losses").glob("*.png")} == set(MODELS)
    assert json.loads((out / "provenance.json").read_text())["texts"]["written_tokens"] == 5000


@pytest.mark.parametrize(
    ("shares", "where"), [((0.6, 0.6), "nowhere"), ((0.8, 0.7), "everywhere"), ((0.6, 0.7), "on doctest only")]
)
def test_the_aim_is_told_where_it_is_reached(shares: tuple[float, float], where: str) -> None:
    assert f"is reached {where} (" in aim([line(*one) for one in zip(("code", "doctest"), shares, strict=True)])


def test_the_committed_card_is_what_its_records_make(places: tuple[Path, Path]) -> None:
    committed, (build, out) = CORPUS.parents[2] / "checkpoints" / "tiny", places
    for name, record in json.loads((committed / "provenance.json").read_text()).items():
        (build / f"{name}.json").write_text(json.dumps(record))
    (build / "sources.json").unlink()
    write_card(out, build, CORPUS)
    assert (out / "README.md").read_text() == (committed / "README.md").read_text()


def test_a_step_that_was_done_twice_counts_once(tmp_path: Path) -> None:
    stages(tmp_path)
    assert [(line["step"], line["loss"]) for line in log(tmp_path / "draft")] == [(50, 2.5), (100, 2.0)]
