"""Training of heads for small targets, for seconds: they learn, load and go on, and bad input changes nothing."""

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from c2t.decoder import SpeculativeDecoder
from c2t.drafting import learner, ngram_weights, texts, train
from c2t.drafting.library import Library
from c2t.drafting.questions import documents, invented, pool, sources, tasks
from c2t.drafting.train import TEXTS, DraftSettings
from c2t.errors import InputError
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.loading.load import Pair, load_pair
from c2t.models.loading.trained import find_trained
from c2t.output.signals import Stopped
from c2t.policies import Eagle2, Plain
from tests.small_pair import write_tokenizer

TURNS = [f"def f{number}(a, b):\n    return " for number in range(40)]
SECONDS = DraftSettings(minutes=3 / 60)
TREES = Eagle2(K=4, levels=3, N=8)
HOW = {"max_new_tokens": 20, "chat": False}


@pytest.fixture
def target(home: Path) -> Path:
    """A folder with a target only, which the test may change."""
    return home / "checkpoints" / "tiny" / "target"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rounds, and a clock by which a step takes the same time on every machine."""
    clock = SimpleNamespace(monotonic=lambda ticks=count(): 0.01 * next(ticks))
    for module in (train, learner, texts):
        monkeypatch.setattr(module, "time", clock)
    for name, value in {"SHORTEST": 0.5, "ANSWER_TOKENS": 16, "JUDGED": 8}.items():
        monkeypatch.setattr(train, name, value)
    monkeypatch.setattr(learner, "WARMUP", 5)
    monkeypatch.setattr(ngram_weights, "LEAST_TOKENS", 10**9)


def load(target: Path, draft: str | Path = "lookup") -> Pair:
    return load_pair(target=target, draft=draft, dtype=torch.float32)


def trained(target: Path, settings: DraftSettings = SECONDS, **more) -> train.DraftTraining:
    return train.train(load(target), target / "c2t", {"given": pool(TURNS)}, settings, **more)


def test_a_head_learns_is_found_and_changes_no_text(target: Path) -> None:
    done = trained(target)
    assert done.head == find_trained(target) == target / "c2t" / "draft"
    assert done.progress.agreement > 0.05  # of 320 tokens
    assert set(done.validation) == {text.turn for text in Library(target / "c2t" / TEXTS, False).validation}
    pair = load_pair(target)
    assert pair.sources["draft"][0] == str(done.head)
    plain, drafted = (SpeculativeDecoder(pair, policy).generate(TURNS[0], **HOW) for policy in (Plain(), TREES))
    assert drafted.text == plain.text
    assert drafted.total.rounds < plain.total.rounds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa", "eagle3", "dspark"])
def test_every_kind_goes_on_where_it_stopped(kind: str, tmp_path: Path) -> None:
    """tiny has the layers that heads read."""
    target = shutil.copytree(Path("checkpoints/tiny/target"), tmp_path / "target")
    if kind == "medusa":
        with pytest.raises(InputError, match="EAGLE-1 head: train that first"):
            trained(target, DraftSettings(kind=kind, minutes=0.03))
        assert not (target / "c2t").exists()
        trained(target, DraftSettings(minutes=0.03))
    settings = [DraftSettings(kind=kind, minutes=minutes) for minutes in (0.03, 0.06)]
    first, second, third = trained(target, settings[0]), trained(target, settings[1]), trained(target, settings[1])
    assert second.progress.steps > first.progress.steps > 0
    assert 0 <= first.progress.agreement <= second.progress.agreement
    assert third.progress == second.progress  # its time was over
    pair = load(target, second.head)
    assert pair.draft.head.config.vocab_size == 8192
    plain, drafted = (SpeculativeDecoder(pair, policy).generate(TURNS[0], **HOW) for policy in (Plain(), TREES))
    assert drafted.text == plain.text
    begun = train.train(load(target), tmp_path / "begun", {"given": pool(TURNS)}, settings[0], begin=second.head)
    assert begun.progress.steps > 0
    assert load(target, begun.head).draft.hidden_size == pair.draft.hidden_size  # whole, without the head it began from


def test_a_stopped_training_says_what_is_there_and_goes_on(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise Stopped(2)

    with monkeypatch.context() as early:
        early.setattr(train.TrainingRun, "_learn", stop)
        with pytest.raises(Stopped, match=r"draft has texts, and no head yet; the same command goes on"):
            trained(target)
    assert find_trained(target) is None
    written = Library(target / "c2t" / TEXTS, False).written
    with monkeypatch.context() as late:
        late.setattr(train, "learn_weights", stop)
        with pytest.raises(Stopped, match=r"draft has the best head so far; the same command goes on"):
            trained(target)
    assert find_trained(target)
    assert trained(target).written > written > 0


def test_a_head_begins_from_another_and_only_from_one_that_fits(target: Path, home: Path) -> None:
    begin = home / "checkpoints" / "tiny" / "draft"
    (begin.parent / "provenance.json").write_text(json.dumps({"target_weights": "0" * 16}))
    with pytest.warns(UserWarning, match="was trained for other weights than those of target: it begins there"):
        trained(target, DraftSettings(minutes=1 / 60), begin=begin)
    for other, said in (
        ("tiny/draft_medusa", "hidden_size 256, the target 32"),
        ("smollm2/draft", "hidden_size 576, the target 32"),
    ):
        with pytest.raises(InputError, match=said):
            trained(target, begin=Path("checkpoints", other).resolve())


def test_a_head_stopped_while_it_is_stored_is_learned_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise Stopped(2)

    settings = DraftSettings(minutes=0.5 / 60)  # one round
    with monkeypatch.context() as early:
        early.setattr(train, "save_head", stop)
        with pytest.raises(Stopped, match="no head yet; the same command goes on"):
            trained(target, settings)
    assert trained(target, settings).progress.steps > 0
    assert find_trained(target)


def test_texts_stopped_while_they_are_stored_are_written_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(library: Library, *_: object) -> None:
        library.folder.mkdir(parents=True)
        raise Stopped(2)

    with monkeypatch.context() as early:
        early.setattr(Library, "add", stop)
        with pytest.raises(Stopped):
            trained(target)
    assert trained(target, DraftSettings(minutes=1 / 60)).written


def test_a_head_that_began_from_another_goes_on_from_that_one_only(target: Path, home: Path, tmp_path: Path) -> None:
    """It learns with the target's embedding, as it is stored without the one that it came with."""
    first = load_head(home / "checkpoints" / "tiny" / "draft", load(target).target.embed_tokens)
    first.embed_tokens = nn.Embedding.from_pretrained(torch.randn_like(first.embed_tokens.weight))
    save_head(first, tmp_path / "other", embed_tokens=True)
    pair, settings = load(target), DraftSettings(minutes=1 / 60)
    assert train.read_begun(tmp_path / "other", "eagle", pair).embed_tokens is pair.target.embed_tokens
    trained(target, settings, begin=tmp_path / "other")
    for begin in (None, home / "checkpoints" / "tiny" / "draft"):
        with pytest.raises(InputError, match="began from another head: give that one with --begin"):
            trained(target, settings, begin=begin)
    with pytest.raises(InputError, match=r"leave what follows after .*other out"):
        trained(target, settings, begin=f"{tmp_path / 'other'}+ngrams=4")


def test_a_medusa_head_that_began_from_another_is_stored_whole(tmp_path: Path) -> None:
    """The EAGLE-1 head whose layer it has stays where it is."""
    pair = load(Path("checkpoints/tiny/target").resolve())
    begun = train.read_begun(Path("checkpoints/tiny/draft_medusa").resolve(), "medusa", pair)
    save_head(begun, tmp_path / "alone" / "draft_medusa")
    again = load_head(tmp_path / "alone" / "draft_medusa", pair.target.embed_tokens)
    assert all(again.state_dict()[name].equal(weight) for name, weight in begun.state_dict().items())


def other_weights(folder: Path) -> None:
    (folder / "draft").mkdir(parents=True)
    (folder / "provenance.json").write_text(json.dumps({"target_weights": "0" * 16}))


def something_else(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (other_weights, "holds a head for other weights"),
        (something_else, "holds something else than trained heads"),
        (lambda folder: folder.write_text("a file"), "is a file"),
    ],
)
def test_a_folder_that_holds_something_else_stays(made: Callable[[Path], None], said: str, target: Path) -> None:
    made(target / "c2t")
    before = sorted(path.name for path in target.rglob("*"))
    with pytest.raises(InputError, match=said):
        trained(target)
    assert sorted(path.name for path in target.rglob("*")) == before


def test_questions_that_give_no_texts_are_refused(target: Path) -> None:
    for turns in ([], ["def f(a):"], ["x " * 2000] * 3):
        with pytest.raises(InputError, match="fewer than two questions"):
            train.train(load(target), target / "c2t", {"given": pool(turns)}, SECONDS)
    assert find_trained(target) is None


@pytest.mark.parametrize(
    ("settings", "said"), [({"minutes": 0.0}, "minutes = 0.0 must be above 0"), ({"kind": "x"}, "known: eagle")]
)
def test_wrong_settings_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        DraftSettings(**settings)


def test_a_folder_elsewhere_is_found_by_the_weights(target: Path, tmp_path: Path) -> None:
    done = train.train(load(target), tmp_path / "heads", {"given": pool(TURNS)}, DraftSettings(minutes=1 / 60))
    assert find_trained(target) is not None
    assert find_trained(target).resolve() == done.head.resolve()


def write_gemma(folder: Path) -> Path:
    """Gemma 3 of random weights, with scaled embeddings and more tokens than 16 bits name."""
    write_tokenizer(folder, "<bos>", "<eos>")
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        head_dim=32, vocab_size=70_000, max_position_embeddings=512, eos_token_id=1, bos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_target_of_another_family_with_a_large_vocabulary(tmp_path: Path) -> None:
    target = write_gemma(tmp_path / "gemma")
    done = trained(target, DraftSettings(minutes=0.05))
    assert done.progress.steps > 10
    assert Library(target / "c2t" / TEXTS, False).texts[0].ids.max() < 70_000
    pair = load(target, done.head)
    answers = [
        SpeculativeDecoder(pair, policy).generate(TURNS[0], max_new_tokens=20, chat=False).text
        for policy in (Plain(), TREES)
    ]
    assert answers[0] == answers[1]


def test_a_target_without_a_template_continues_documents(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c2t.drafting.questions.TASKS", 20)
    asked = sources(small_pair, [])
    assert list(asked) == ["docstrings"]
    assert set(asked["docstrings"](5, 0, 0.0)) <= set(documents())
    assert all("\n\ndef " in task for task in tasks())
    assert list(sources(small_pair, TURNS)) == ["given"]
    with pytest.raises(InputError, match="has no chat template"):
        invented(small_pair)


def test_documents_begin_in_many_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c2t.drafting.questions.TASKS", 60)
    texts = documents()
    assert sum(text.startswith("def ") for text in texts) >= len(texts) // 2
    assert len({text.split(maxsplit=1)[0] for text in texts}) > len(texts) // 4
    assert min(map(len, texts)) > 40


def test_greedy_questions_are_asked_once() -> None:
    asked = pool(["a", "b", "b", "c"])
    assert sorted(asked(2, 0, 0.0) + asked(2, 2, 0.0)) == ["a", "b", "c"]
    assert asked(2, 3, 0.0) == []
    assert len(asked(2, 3, 1.0)) == 2
    assert asked(5, 0, 0.7)[0] != asked(5, 0, 0.0)[0]
