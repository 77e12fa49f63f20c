"""Classifiers on other targets and drafts."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from c2t.classifier import TreeClassifier
from c2t.models.loading.load import load_pair
from c2t.policies import C2T, Eagle2
from pipelines.papers import study as paper
from pipelines.papers import transfer
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check, counts_in, decoded
from tests.rounding import figure


@pytest.mark.parametrize("other", [None, pytest.param("llama2-7b", marks=pytest.mark.slow)])
def test_table2_counts_what_live_decoding_costs(other: str | None, study: Study, here: Path) -> None:
    folder = here / "data" / "prompts" / "tiny"
    files = {"prompts": (folder / "code.jsonl",), "harvest_prompts": (folder / "harvest" / "code.jsonl",)}
    settings = replace(study.settings, **files, same="tiny-small", other=other or "tiny-qwen")
    source = Study(study.pair, settings)
    report = check(transfer.table2(source))
    assert "left out, not built: a pair of the same family" in report.notes
    ours = [row[0] for row in report.rows if row[3] is not None]
    assert ours == ["tiny, EAGLE-2", "tiny, C2T"] + [f"{other}, {m}" for m in ("EAGLE-2", "C2T", "C2T*") if other]
    frozen = C2T(source.classifier(), transfer.FAR_BETA, W=None)
    judged = paper.relative(source, other) if other else source
    (setting,) = (row[1] for row in report.rows if row[0] == f"{other or 'tiny'}, C2T")
    assert counts_in(report, f"{other or 'tiny'}, C2T", setting) == decoded(judged, frozen)


def test_who_is_judged_stays_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, moved = TreeClassifier(), []
    rows = SimpleNamespace(validation=SimpleNamespace(x=torch.zeros(2, classifier.config.inputs)))
    monkeypatch.setattr(TreeClassifier, "cpu", lambda self: moved.append(self) or self)
    monkeypatch.setattr(transfer, "NodeData", lambda *_: rows)
    monkeypatch.setattr(transfer, "evaluate", lambda logits, _: logits.tolist())
    study = SimpleNamespace(harvest=lambda: SimpleNamespace(folder=None))
    assert transfer.judged(classifier, study) == classifier.logits(rows.validation.x).tolist()
    assert [copied is classifier for copied in moved] == [False]


@pytest.mark.slow
def test_table7_of_the_same_head_under_two_names(study: Study, here: Path) -> None:
    draft = str(here / "checkpoints" / "tiny" / "draft")
    other = Study(load_pair("tiny", draft=draft), replace(study.settings, draft=draft))
    report = check(transfer.table7(other))
    assert len(report.rows) == 12
    trees = decoded(study, Eagle2(K=15, levels=10, N=90))
    assert counts_in(report, "EAGLE EAGLE-2", "N=90") == counts_in(report, "draft EAGLE-2", "N=90") == trees
    pruned = decoded(study, C2T(study.classifier(), 0.5))
    assert counts_in(report, "EAGLE C2T", "beta=0.5") == counts_in(report, "draft C2T", "beta=0.5") == pruned


@pytest.mark.slow
def test_figure7_starts_from_the_transferred_classifier(study: Study, here: Path) -> None:
    report = check(transfer.figure7(Study(study.pair, replace(study.settings, same="tiny", same_draft="lm"))))
    rows = {row[0]: dict(zip(report.columns, row, strict=True)) for row in report.rows}
    assert list(rows) == [transfer.BEFORE, transfer.AFTER]
    other = paper.relative(study, "tiny", "lm")
    tau, verified, _ = decoded(other, C2T(study.classifier(), 0.5))
    assert (rows[transfer.BEFORE]["tau 0.5"], rows[transfer.BEFORE]["gamma 0.5"]) == (figure(tau), verified)
