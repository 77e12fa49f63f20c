"""Harvests along texts that an engine has written: the target's own give its own rows, others are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from c2t.cli.app import app
from c2t.errors import InputError
from c2t.harvest.harvest import entries, harvest
from c2t.harvest.settings import HarvestSettings
from c2t.harvest.shards import PromptGroup, ShardNumber
from c2t.harvest.texts import judge, read_texts
from c2t.models.loading.load import Pair
from c2t.records.reader import read_columns
from c2t.replay.lockstep import write_continuations
from c2t.replay.prompts import Prompt
from c2t.training.data import conversation_names
from tests.harvests import assert_same_rows
from tests.small_pair import TURNS

PROMPTS = [Prompt(number, "known", [turn], "texts.jsonl") for number, turn in enumerate(TURNS[:6])]
GREEDY = HarvestSettings(K=3, levels=3, M=100, max_new_tokens=14, batch=4, temperature=0.0)
SAMPLED = replace(GREEDY, temperature=0.8, seed=5)


def engine(pair: Pair, settings: HarvestSettings) -> list[dict]:
    """Answers of an engine that goes on behind the end of a text (`ignore_eos`), as token ids."""
    ids = [pair.tokenizer(prompt.turns[0]).input_ids for prompt in PROMPTS]
    lines = []
    for first in range(0, len(ids), settings.batch):
        numbers = list(range(first, min(first + settings.batch, len(ids))))
        texts = write_continuations(
            pair.target,
            [ids[i] for i in numbers],
            max_new_tokens=settings.max_new_tokens + settings.levels + 1,
            beyond=0,
            sampling=settings.sampling,
            sequences=numbers,
        )
        lines += [{"prompt": t.tokens[: t.prompt].tolist(), "completion": t.tokens[t.prompt :].tolist()} for t in texts]
    return lines


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def harvested(pair: Pair, lines: list[dict], folder: Path, settings: HarvestSettings, **more) -> tuple:
    folder.mkdir()
    texts = judge(pair, read_texts(write(folder / "texts.jsonl", lines), pair), settings)
    prompts = [text.prompt for text in texts.texts]
    return texts, harvest(pair, prompts, folder / "rows", settings, texts=texts, **more)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, replace(GREEDY, positions="all")], ids=["0", "0.8", "all"])
def test_the_targets_own_texts_give_its_own_rows(settings: HarvestSettings, small_pair: Pair, tmp_path: Path) -> None:
    lines = engine(small_pair, settings)
    texts, done = harvested(small_pair, lines, tmp_path / "given", settings)
    own = harvest(small_pair, PROMPTS, tmp_path / "own", settings)
    assert min(done.rows, own.rows) > 500
    assert texts.tokens > 50
    assert texts.short == 0
    if settings.temperature:  # its own trees hear its draws
        assert own.positives > done.positives > 0
        assert texts.mismatches > 0
        assert abs(texts.nats / texts.tokens) < 0.5
    else:
        assert_same_rows(own, done)
        assert (texts.mismatches, texts.nats) == (0, None)


def test_words_are_the_users_turn(small_pair: Pair, tmp_path: Path) -> None:
    line = {"prompt": "The sum of", "completion": " two numbers"}
    [text] = read_texts(write(tmp_path / "words", [line]), replace(small_pair, template="vicuna"))
    assert small_pair.tokenizer.decode(text.ids).endswith("USER: The sum of ASSISTANT:")
    assert small_pair.tokenizer.decode(text.completion) == " two numbers"
    assert text.prompt.turns == ["The sum of"]


def test_turns_of_one_question_are_one_conversation(small_pair: Pair, tmp_path: Path) -> None:
    """Training must not validate on a turn whose earlier turns it has learned from."""
    numbers = [("a", [1, 2]), ("b", [1, 2]), ("a", [1, 2, 3, 4]), (None, [1, 2, 3]), (None, [1, 2, 3, 5])]
    lines = [{"prompt": ids, "completion": [1]} | ({"question_id": name} if name else {}) for name, ids in numbers]
    texts = read_texts(write(tmp_path / "turns", lines), small_pair)
    prompts = [entry for text in texts for entry in entries(PromptGroup(0, [text.prompt]))]
    names = conversation_names(prompts)
    assert [names.index(name) for name in names] == [0, 0, 0, 3, 4]


def test_texts_that_end_early_are_cut_where_a_tree_can_still_be_judged(small_pair: Pair, tmp_path: Path) -> None:
    lines = engine(small_pair, GREEDY)
    beyond = GREEDY.levels + 1
    for line, kept in ((lines[0], beyond), (lines[1], beyond + 3)):
        line["completion"] = line["completion"][:kept]
    texts, done = harvested(small_pair, lines, tmp_path / "given", GREEDY)
    assert texts.short == 1
    assert done.too_long == 0
    columns = read_columns(done.folder, ["prompt", "position"])
    assert set(columns["prompt"]) == {1, 2, 3, 4, 5}
    roots = columns["position"][columns["prompt"] == 1] - len(lines[1]["prompt"])
    assert roots.max() <= 1  # three tokens: roots at the first two of them


@pytest.mark.parametrize(("near", "found"), [(0.0, 0), (1e9, 2)])
def test_near_ties_are_counted(
    near: float, found: int, small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last token of two texts is another one."""
    monkeypatch.setattr("c2t.harvest.texts.NEAR", near)
    settings = replace(GREEDY, levels=12)
    lines = engine(small_pair, settings)
    for line in lines[:2]:
        line["completion"] = line["completion"][: settings.levels + 3]
        line["completion"][-1] = (line["completion"][-1] + 1) % 320
    texts = judge(small_pair, read_texts(write(tmp_path / "t", lines), small_pair), settings)
    assert (texts.mismatches, texts.near) == (2, found)
    assert f"2 of {texts.tokens} tokens are not the target's choices, {found} of them at near-ties" in str(texts)


@pytest.mark.slow
def test_judged_tokens_and_features_come_from_one_forward(
    small_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, calls = engine(small_pair, SAMPLED), []
    forward = type(small_pair.target).forward
    monkeypatch.setenv("C2T_CACHE", str(tmp_path / "cache"))

    def counted(*given):
        calls.append(len(given[1]))
        return forward(*given)

    monkeypatch.setattr(type(small_pair.target), "forward", counted)
    for name in ("given", "again"):
        harvested(small_pair, lines, tmp_path / name, SAMPLED)
        assert calls in ([], [4, 2])  # [] where it runs packed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "what"), [(GREEDY, r"\d+ of \d+ tokens"), (SAMPLED, r"its \d+ tokens are \d\.\d\d nats less")]
)
def test_texts_of_another_model_are_refused(
    settings: HarvestSettings, what: str, small_pair: Pair, tmp_path: Path
) -> None:
    """Before the folder is touched, and with the number of the line."""
    settings = replace(settings, max_new_tokens=60)
    lines = engine(small_pair, settings)
    length = len(lines[3]["completion"])
    lines[3]["completion"] = torch.randint(0, 320, (length,)).tolist()
    with pytest.raises(InputError, match=f"t.jsonl, line 4: the target would not have generated it: {what}"):
        judge(small_pair, read_texts(write(tmp_path / "t.jsonl", lines), small_pair), settings)


def test_shards_of_texts_are_parts_of_the_whole(small_pair: Pair, tmp_path: Path) -> None:
    lines = engine(small_pair, SAMPLED)
    read = read_texts(write(tmp_path / "t.jsonl", lines), small_pair)
    number = ShardNumber(1, 2)
    judged = judge(small_pair, read, SAMPLED, number)
    assert 0 < judged.tokens < judge(small_pair, read, SAMPLED).tokens
    done = harvest(small_pair, [t.prompt for t in read], number.folder(tmp_path), SAMPLED, shard=number, texts=judged)
    assert len(done.prompts) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", r"line 2: no JSON"),
        ('{"prompt": "a"}', "line 2: completion is missing"),
        ('{"prompt": "", "completion": "a"}', "line 2: prompt"),
        ('{"prompt": "a", "completion": []}', "line 2: completion"),
        ('{"prompt": [1, -2], "completion": [1]}', "line 2: prompt"),
        ('{"prompt": [1, 320], "completion": [1]}', "line 2: token 320 is not one of the target's 320"),
        ('{"prompt": [1], "completion": [1, 99999999999999999999]}', "line 2: "),
        ('{"prompt": "\\ud800", "completion": "a"}', "line 2: "),
        ('{"prompt": "a", "completion": "\\ud800"}', "line 2: "),
        ('{"prompt": true, "completion": 3}', "line 2: prompt"),
        ('["a", "b"]', "line 2: "),
    ],
)
def test_bad_lines(line: str, message: str, small_pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"prompt": "a", "completion": [1, 2, 3]}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read_texts(path, small_pair)


def test_no_texts_and_what_replay_cannot_harvest(small_pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("\n\n")
    with pytest.raises(InputError, match="holds no texts"):
        read_texts(tmp_path / "texts.jsonl", small_pair)
    with pytest.raises(InputError, match="texts are replayed: leave out live"):
        judge(small_pair, [], replace(GREEDY, live=True))


@pytest.mark.slow
def test_the_command(home: Path, small_pair: Pair) -> None:
    """It says what it counted; what it refuses leaves no folder."""
    lines = engine(small_pair, GREEDY)
    file, out = write(home / "texts.jsonl", lines), home / "rows"
    small = ["harvest", "--pair", "tiny", "--k", "3", "--levels", "3", "--max-new-tokens", "14", "--temperature", "0"]
    small += ["--texts", str(file), "--out", str(out)]
    said = CliRunner().invoke(app, [*small, "--limit", "3"])
    assert (said.exit_code, said.stderr) == (2, "c2t: --texts brings its prompts along: leave --limit out\n")
    write(file, [*lines, lines[0] | {"completion": [7] * 20}])
    said = CliRunner().invoke(app, small)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"c2t: {file}, line 7: the target would not have generated it")
    assert not out.exists()
    write(file, lines)
    said = CliRunner().invoke(app, small)
    assert said.exit_code == 0, said.output
    assert "tokens are not the target's choices" in said.stderr
