"""Folders for the Hub: generate takes them as they are from the disk, and what others could not load is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typer.testing import CliRunner

from c2t import C2T, Eagle2, InputError, TreeClassifier
from c2t.cli.app import app
from c2t.hf import tree_decoding
from c2t.hf.export import export, shared_draft
from c2t.hf.hub import generate, packed, unpacked
from c2t.models.loading.load import load_pair
from c2t.policies import MCSDPlus
from tests.toys import toy_classifier


@pytest.fixture(scope="module")
def model_and_tokenizer() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    pair = load_pair("tiny")
    return pair.target.model, pair.tokenizer


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies the code of custom_generate folders before it runs them."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def test_a_tree_from_a_file_of_this_machine_is_refused(tmp_path: Path) -> None:
    file, folder = tmp_path / "accuracies.json", tmp_path / "exported"
    file.write_text('{"accuracies": [[0.5, 0.2]]}')
    policy = f"static:accuracies={file},N=3"
    done = CliRunner().invoke(app, ["export-hub", "--pair", "tiny", "--policy", policy, "--out", str(folder)])
    assert done.exit_code == 2
    assert "accuracies" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["budget:nodes=8,of=c2t:K=6,W=6,levels=3", "eagle2:K=4,levels=3,N=10"])
def test_generate_takes_the_folder(tmp_path: Path, model_and_tokenizer, policy: str) -> None:
    folder = tmp_path / "exported"
    done = CliRunner().invoke(app, ["export-hub", "--pair", "tiny", "--policy", policy, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert str(folder) in done.stdout
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "custom_generate/generate.py",
        "custom_generate/requirements.txt",
        "README.md",
    }
    assert "\n- custom_generate\n" in (folder / "README.md").read_text()
    model, tokenizer = model_and_tokenizer
    inputs = tokenizer(["def add(a, b):", "The sum of"], return_tensors="pt", padding=True, padding_side="left")
    trees = {"custom_generate": str(folder), "trust_remote_code": True}
    settings = {**inputs, "max_new_tokens": 24, "do_sample": False}
    assert model.generate(**settings, **trees).equal(model.generate(**settings))
    stopped = {**settings, "tokenizer": tokenizer, "stop_strings": ["return", " is"]}
    assert model.generate(**stopped, **trees).equal(model.generate(**stopped))
    other = model.generate(**settings, **trees, policy="eagle2:K=2,levels=2,N=4", draft="tiny")
    assert other.equal(model.generate(**settings))
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(**settings, custom_generate=str(folder))
    with pytest.raises(InputError, match="no policy is called 'nothing'"):
        model.generate(**settings, **trees, policy="nothing")


def test_a_streamer_is_handed_on(tmp_path: Path, model_and_tokenizer) -> None:
    export(tmp_path / "exported", "tiny", Eagle2(K=4, levels=3, N=10), "tiny")
    model, tokenizer = model_and_tokenizer
    inputs = tokenizer("def add(a, b):", return_tensors="pt")
    shown: dict[bool, list] = {}
    for trees in (True, False):
        shown[trees] = []
        streamer = type("S", (), {"put": lambda _, v, out=shown[trees]: out.append(v.tolist()), "end": lambda _: None})
        how = {"custom_generate": str(tmp_path / "exported"), "trust_remote_code": True} if trees else {}
        model.generate(**inputs, max_new_tokens=12, do_sample=False, streamer=streamer(), **how)
    assert shown[True] == shown[False]


def test_seeds_share_the_draft(model_and_tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = model_and_tokenizer
    inputs, drafts, load = tokenizer("def add(a, b):", return_tensors="pt"), [], tree_decoding.load_draft
    monkeypatch.setattr(tree_decoding, "load_draft", lambda *parts: drafts.append(load(*parts)) or drafts[-1])
    settings = {"draft": "tiny", "policy": "eagle2:K=3,levels=2,N=5", "classifier": None, **inputs, "max_new_tokens": 8}
    first, other, again = (generate(model, seed=seed, do_sample=True, **settings) for seed in (1, 2, 1))
    assert first.equal(again)
    assert not first.equal(other)
    assert len(drafts) == 1


def test_a_classifier_comes_back_as_it_was() -> None:
    classifier = toy_classifier()
    back = unpacked(packed(classifier))
    assert back.config == classifier.config
    for name, weight in classifier.state_dict().items():
        assert torch.equal(back.state_dict()[name].double(), weight.double()), name


@pytest.mark.parametrize(
    "harm",
    [
        lambda config, weights: (config, weights[:-3]),
        lambda config, weights: (config, '"' + weights[1:]),
        lambda config, weights: (config, "é"),
        lambda config, weights: (config,),
    ],
)
def test_damaged_texts_of_a_classifier_are_refused(harm: Callable[..., tuple[str, ...]]) -> None:
    with pytest.raises(InputError, match="the classifier in this folder is damaged; export the folder again"):
        unpacked(harm(*packed(toy_classifier())))


def test_drafts_that_others_have() -> None:
    assert shared_draft("tiny") == "tiny"
    assert shared_draft("lookup") == "lookup"
    assert shared_draft("llama3-8b") == "yuhuili/EAGLE-LLaMA3-Instruct-8B"
    assert shared_draft("someone/a-head") == "someone/a-head"


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("checkpoints/tiny/draft", "others do not have the draft checkpoints/tiny/draft: put it on the Hub"),
        ("nobody", "no draft is called 'nobody'"),
        ("./nowhere", "no such folder: ./nowhere"),
    ],
)
def test_drafts_that_others_do_not_have(tmp_path: Path, draft: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        export(tmp_path / "out", draft, Eagle2(), "a/b")
    assert not (tmp_path / "out").exists()


def test_the_card_names_the_model_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair's model with another draft, the folder that stands for the current one, and blanks in its name."""
    (tmp_path / "my trees").mkdir()
    words = ["export-hub", "--pair", "llama3-8b", "--draft", "me/head", "--policy", "eagle2"]
    for out, upload in ((".", "."), (str(tmp_path / "my trees"), f"'{tmp_path / 'my trees'}'")):
        monkeypatch.chdir(tmp_path / "my trees")
        done = CliRunner().invoke(app, [*words, "--overwrite", "--out", out])
        assert done.exit_code == 0, done.output
        assert f"hf upload USER/NAME {upload}\n" in done.stdout
        card = (tmp_path / "my trees" / "README.md").read_text()
        assert 'from_pretrained("meta-llama/' in card
        assert 'custom_generate="user/my trees"' in card


def test_an_export_that_came_in_between_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(draft: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr("c2t.hf.export.shared_draft", shared_draft)
            export(tmp_path / "out", draft, Eagle2(K=3), "a/b")
        return draft

    monkeypatch.setattr("c2t.hf.export.shared_draft", late)
    with pytest.raises(InputError, match="holds a Hub folder: replace it with --overwrite"):
        export(tmp_path / "out", "tiny", Eagle2(K=4), "a/b")
    assert "K=3" in (tmp_path / "out" / "custom_generate" / "generate.py").read_text()


def test_what_is_in_the_way_is_kept(tmp_path: Path) -> None:
    policy = C2T(TreeClassifier.from_pretrained("tiny"))
    export(tmp_path / "out", "tiny", policy, "a/b")
    with pytest.raises(InputError, match="holds a Hub folder: replace it with --overwrite"):
        export(tmp_path / "out", "tiny", policy, "a/b")
    export(tmp_path / "out", "tiny", Eagle2(), "a/b", overwrite=True)
    assert "CLASSIFIER = None" in (tmp_path / "out" / "custom_generate" / "generate.py").read_text()
    (tmp_path / "out" / ".git").mkdir()  # of a clone from the Hub
    with pytest.raises(InputError, match=r"holds a file that is no Hub folder's \(.git\)"):
        export(tmp_path / "out", "tiny", policy, "a/b", overwrite=True)
    assert (tmp_path / "out" / ".git").is_dir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match="holds something else"):
        export(tmp_path / "other", "tiny", policy, "a/b", overwrite=True)
    with pytest.raises(InputError, match="is not exact"):
        export(tmp_path / "new", "tiny", MCSDPlus(W=2, D=2), "a/b")
