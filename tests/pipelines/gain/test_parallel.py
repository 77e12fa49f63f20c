"""Drafts on the same texts: ratios of their tokens at equal tau, draft temperature, and the command on few and short
texts."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from c2t.errors import InputError
from c2t.models.scaled import ScaledDraft
from c2t.policies import Eagle2
from c2t.prompts import Prompt
from c2t.storage.paths import find
from c2t.study.points import Point
from pipelines.gain import parallel
from pipelines.gain.__main__ import app
from tests.models.test_medusa import DRAFT, observed
from tests.rounding import as_printed, assert_same_network, figure
from tests.toys import PROMPTS, root_of


def front(draft: str, dearer: float) -> list[Point]:
    """Trees of 1 to 4 accepted tokens a round, at 4 tokens each, on 30 prompts of 10 rounds."""
    every = [10] * 30
    verified = [tuple(round(4 * tau * dearer * rounds) for rounds in every) for tau in (1, 2, 3, 4)]
    return [
        Point(draft, f"{draft} {tau}", "", None, tuple(every), (tau * 10,) * 30, tokens, (10,) * 30)
        for tau, tokens in enumerate(verified, 1)
    ]


def test_ratios_are_the_subjects_tokens_over_each_others() -> None:
    factors = (0.5, 2.0, 1.5, 1.0, 1.6, 1.75, 1.2, 1.25, 2.25, 2.5, 2.75)
    dearer = dict(zip(parallel.DRAFTS, factors, strict=True))
    dearer |= dict.fromkeys(parallel.RIVALS, 3.0)
    dearer[parallel.MARGINALS + parallel.BIGRAMS + parallel.SCALED] = 1.1  # cheaper than without the factor
    points = [point for draft, factor in dearer.items() for point in front(draft, factor)]
    dearer |= {
        name: min(dearer[one] for one in families if one in dearer) for name, families in parallel.TOGETHER.items()
    }
    for subject in parallel.SUBJECTS:
        rows = parallel.ratios(points, subject)
        scaled = {name for name in dearer if name.endswith(parallel.SCALED)}
        block = subject == parallel.BLOCK + parallel.BIGRAMS
        wanted = {*parallel.TOGETHER} if subject in parallel.TRUSTING else {*dearer} - {subject} - scaled
        assert {row["rival"] for row in rows} == ({parallel.BLOCK} if block else wanted)
        for row in rows:
            assert row["draft"] == subject
            if row["tau"] < 1:
                assert row["ratio"][0] is None
            else:
                wanted = dearer[subject] / dearer[row["rival"]]
                assert row["ratio"] == [as_printed(wanted, 4)] * 3
                assert row["gamma"] == figure(4 * row["tau"] * dearer[subject])


def test_the_cheapest_front_is_taken_where_all_are() -> None:
    assert parallel.cheapest([front("a", 2.0), front("b", 1.5), front("c", 3.0)]) == 1
    beyond = [point._replace(accepted=tuple(8 * n for n in point.accepted)) for point in front("d", 1.0)]
    assert parallel.cheapest([front("a", 2.0), beyond]) == 0  # no tau that both of them reach


def test_settings_are_searched_on_other_prompts_than_are_judged_on() -> None:
    prompts = [Prompt(number, "x", [f"{number}", "and then?"], "f") for number in range(30)]
    halves = parallel.halved(prompts, 20)
    judged, searched = ({prompt.question_id for prompt in half} for half in halves.__dict__.values())
    assert len(judged) == 20
    assert len(searched) == 10
    assert not judged & searched
    assert all(prompt.turns == [f"{prompt.question_id}"] for prompt in halves.judged)
    with pytest.raises(InputError, match="leave none of 30 to search settings on"):
        parallel.halved(prompts, 30)


@pytest.mark.parametrize(("drafts", "said"), [("medusa,x", "is called x; there are"), ("medusa", "take medusa.fit or")])
def test_drafts_that_cannot_be_compared_are_refused(drafts: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        parallel.main(data=tmp_path, drafts=drafts)


@torch.no_grad()
def test_a_scaled_draft_has_the_power_of_its_distributions() -> None:
    text = PROMPTS[1]
    plain, features = observed(text)
    session = ScaledDraft(DRAFT, 1.4).session()
    session.observe(torch.tensor([text]), features, torch.tensor([len(text) - 1]))
    tree = Eagle2(K=2, levels=2, N=None)(session, root_of(text[-1]))
    for slots in (torch.tensor([[0]]), torch.tensor([[1, 2]])):
        rows, wanted = session.expand(tree, slots), plain.expand(tree, slots)
        assert_same_network(rows.log_probs, (1.4 * wanted.log_probs).log_softmax(-1))


@pytest.mark.slow
@pytest.mark.skipif(find("smollm2", "target") is None, reason="the target of smollm2 is not installed here")
def test_command_on_few_and_short_texts_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "GRID", "opttree:N=3|8,delta=0,K=8,levels=3")
    monkeypatch.setattr(parallel, "SEARCH_GRID", "opttree:N=3|8,delta=0,K=8,levels=3")
    here = parallel.SUBJECTS[:2]  # no block drafter comes with the pair
    monkeypatch.setattr(parallel, "DRAFTS", ("medusa", *here))
    monkeypatch.setattr(parallel, "SEARCHED", ("medusa",))
    monkeypatch.setattr(parallel, "FACTORS", (1.0, 1.4))
    monkeypatch.setattr(parallel, "SETS", ("gsm8k", "mt_bench"))
    monkeypatch.setattr(parallel, "STATIC", (3, 8))
    monkeypatch.setattr(parallel, "MEASURED_ON", 2)
    few = {"caddtree": "caddtree:slope=0.1,K=8,levels=3", "gate": "gate:of=opttree:N=8,delta=0,K=8,levels=3"}
    monkeypatch.setattr(parallel, "OTHERS", few)
    monkeypatch.setattr(parallel, "RIVALS", rivals := ("medusa, static", "medusa, caddtree", "medusa, gate"))
    for name in parallel.SETS:
        (tmp_path / name).mkdir()
        asked = [{"question_id": i, "category": "x", "turns": [f"What is {i} + 4?"]} for i in range(3)]
        (tmp_path / name / "question.jsonl").write_text("\n".join(map(json.dumps, asked)))
    arguments = ["parallel", "--data", str(tmp_path), "--max-new-tokens", "8", "--out", str(tmp_path / "lines.jsonl")]
    arguments += ["--points", str(tmp_path / "points.jsonl"), "--prompts", "2"]
    arguments += ["--drafts", ",".join(parallel.DRAFTS)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [line["configuration"]["set"] for line in lines] == list(parallel.SETS)
    assert {row["draft"] for line in lines for row in line["figures"]["rows"]} == set(here)
    judged = {row["rival"] for line in lines for row in line["figures"]["rows"]}
    assert judged >= {*rivals, parallel.ON_MARGINALS, parallel.TRAINING_FREE}  # there are no other drafts here
    assert all(line["configuration"]["factors"]["medusa"] in parallel.FACTORS for line in lines)
    assert "gsm8k, T = 0, 2 prompts" in done.stdout
    known = (tmp_path / "points.jsonl").read_text()
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    again = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert (tmp_path / "points.jsonl").read_text() == known  # nothing was counted twice
    assert [line["figures"] for line in again[2:]] == [line["figures"] for line in lines]
