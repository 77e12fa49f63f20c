"""Names lead to their own folder and nowhere else."""

import os
from pathlib import Path

import pytest

from c2t.errors import InputError
from c2t.storage import paths as checkpoints

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    for part in ("small/target", "small/draft", "small/classifier", "local/small/classifier", "local/mine/classifier"):
        (tmp_path / "checkpoints" / part).mkdir(parents=True)
    return tmp_path


def test_root_is_the_checkout_without_c2t_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("C2T_HOME", raising=False)
    assert checkpoints.root() == ROOT


def test_names_find_committed_before_local(home: Path) -> None:
    assert checkpoints.resolve("small", "classifier") == home / "checkpoints/small/classifier"
    assert checkpoints.resolve("mine", "classifier") == home / "checkpoints/local/mine/classifier"
    assert checkpoints.resolve("small", "draft") == home / "checkpoints/small/draft"


def test_an_empty_home_hides_no_pair_that_comes_with_c2t(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of that name in $C2T_HOME does, and with all of its parts: they belong to each other."""
    monkeypatch.setenv("C2T_HOME", str(tmp_path))
    shipped = checkpoints.shipped() / "checkpoints" / "tiny"
    assert checkpoints.resolve("tiny", "classifier") == shipped / "classifier"
    assert checkpoints.prompts_of("smollm2", "bench") == sorted(ROOT.glob("data/prompts/smollm2/*.jsonl")) != []
    trained = tmp_path / "checkpoints/local/tiny/own_classifier"
    trained.mkdir(parents=True)
    assert checkpoints.resolve("tiny", "own_classifier") == trained
    assert checkpoints.resolve("tiny", "draft") == shipped / "draft"
    own = tmp_path / "checkpoints/tiny/draft"
    own.mkdir(parents=True)
    assert checkpoints.resolve("tiny", "draft") == own
    assert checkpoints.find("tiny", "classifier") is None
    assert "tiny" not in checkpoints.names_with("classifier")
    assert checkpoints.prompts_of("tiny", "bench") == []


def test_published_pairs_are_hub_ids_until_a_folder_has_their_name(home: Path) -> None:
    assert checkpoints.resolve("llama2-7b", "target") == "meta-llama/Llama-2-7b-chat-hf"
    assert checkpoints.resolve("vicuna-33b", "draft") == "yuhuili/EAGLE-Vicuna-33B-v1.3"
    (home / "checkpoints/llama2-7b/target").mkdir(parents=True)
    assert checkpoints.resolve("llama2-7b", "target") == home / "checkpoints/llama2-7b/target"


def test_published_pair_without_classifier_says_how_to_make_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(InputError) as raised:
        checkpoints.resolve("llama2-7b", "classifier")
    harvest, train = str(raised.value).split("make it with: ")[1].split(" && ")
    assert harvest == "c2t harvest --pair llama2-7b --prompts FILE --out data/harvest/llama2-7b"
    assert train == "c2t train data/harvest/llama2-7b --out checkpoints/local/llama2-7b/classifier"
    made = home / "checkpoints/local/llama2-7b/classifier"
    monkeypatch.chdir("/")
    assert Path("/", checkpoints.recipe("llama2-7b").split("--out ")[-1]) == made, "absolute from elsewhere"
    made.mkdir(parents=True)
    assert checkpoints.resolve("llama2-7b", "classifier") == made


def test_unknown_names_list_the_known(home: Path) -> None:
    with pytest.raises(InputError, match=r"'smal'; known: mine, small, smollm2, tiny; searched in \$C2T_HOME = "):
        checkpoints.resolve("smal", "classifier")
    with pytest.raises(InputError, match=r"known: .*llama2-7b.*small.*vicuna-7b"):
        checkpoints.resolve("smal", "target")
    with pytest.raises(InputError, match="no draft_distilled is called 'llama2-7b'"):
        checkpoints.resolve("llama2-7b", "draft_distilled")


@pytest.mark.parametrize("name", ["..", ".", ".hidden", ""])
def test_names_never_leave_their_folder(home: Path, name: str) -> None:
    (home / "classifier").mkdir()
    (home / "checkpoints" / ".hidden" / "classifier").mkdir(parents=True)
    with pytest.raises(InputError):
        checkpoints.resolve(name, "classifier")


def test_separators_make_a_path_or_a_hub_id(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert checkpoints.resolve("someone/classifier", "classifier") == "someone/classifier"
    (home / "someone/classifier").mkdir(parents=True)
    assert checkpoints.resolve("someone/classifier", "classifier") == Path("someone/classifier")
    assert checkpoints.resolve("./someone", "classifier") == Path("someone")
    for missing in ("./nowhere", "../nowhere", "/no/where", "a/b/c", Path("nowhere")):
        with pytest.raises(InputError, match="no such folder"):
            checkpoints.resolve(missing, "classifier")


def test_a_failure_half_way_leaves_the_old_checkpoint_and_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "classifier"
    with checkpoints.replacing(out) as folder:
        (folder / "model.safetensors").touch()
    with (
        pytest.raises(InputError, match=r"cannot write .*classifier: Is a directory"),
        checkpoints.replacing(out) as folder,
    ):
        folder.write_text("fails half-way")
    assert list(tmp_path.rglob("*")) == [out, out / "model.safetensors"]


def test_a_place_that_cannot_be_written_is_one_line() -> None:
    for out in (Path("/proc/nowhere"), Path("/proc/no/where")):
        with pytest.raises(InputError, match=f"cannot write {out}: "), checkpoints.replacing(out):
            pass


def test_only_classifiers_are_replaced_and_only_on_request(tmp_path: Path) -> None:
    checkpoints.check_classifier_out(tmp_path / "new", overwrite=False)
    checkpoints.check_classifier_out(tmp_path, overwrite=False)
    (tmp_path / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="choose another folder"):
            checkpoints.check_classifier_out(tmp_path, overwrite)
    (tmp_path / "model.safetensors").write_text("x")
    for config in ("[]", "{", '{"model_type": "llama"}'):  # a head has weights and a config, too
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(InputError, match="something else than a classifier"):
            checkpoints.check_classifier_out(tmp_path, overwrite=True)
    (tmp_path / "config.json").write_text('{"negatives_kept": 1.0}')
    with pytest.raises(InputError, match=r"no classifier's \(thesis\.tex\)"):
        checkpoints.check_classifier_out(tmp_path, overwrite=True)
    with pytest.raises(InputError, match="is a file"):
        checkpoints.check_classifier_out(tmp_path / "thesis.tex", overwrite=True)
    (tmp_path / "thesis.tex").unlink()
    checkpoints.check_classifier_out(tmp_path, overwrite=True)


def test_a_mount_point_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    for out in (Path("/proc"), tmp_path / "link", Path("/")):
        with pytest.raises(InputError, match=f"{out} is a mount point, .*: give a folder inside it"):
            checkpoints.check_classifier_out(out, overwrite=False)


def test_without_a_checkout_the_package_is_read_and_users_folders_are_written(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "site-packages" / "c2t"
    (package / "shipped" / "checkpoints" / "tiny" / "target").mkdir(parents=True)
    monkeypatch.setattr(checkpoints, "__file__", str(package / "storage" / "paths.py"))
    for variable in ("C2T_HOME", "C2T_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert checkpoints.checkout() is None
    assert checkpoints.resolve("tiny", "target") == package / "shipped/checkpoints/tiny/target"
    assert checkpoints.harvest_of("tiny").is_relative_to(checkpoints.root())
    assert not checkpoints.root().is_relative_to(package)
    assert tmp_path in checkpoints.root().parents
    assert tmp_path in checkpoints.cache().parents
    with pytest.raises(InputError, match=r"no draft_lm is called 'tiny'; .*the installed package.* set \$C2T_HOME"):
        checkpoints.resolve("tiny", "draft_lm")
    made = checkpoints.root() / "checkpoints/local/mine/classifier"
    made.mkdir(parents=True)
    assert checkpoints.resolve("mine", "classifier") == made


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (".", "here"),
        ("./", "here"),
        ("../.model", "model"),
        ("/", "target"),
        ("..." + os.sep, "target"),
        ("someone/model-7b", "model-7b"),
        ("line\nend", "line_end"),
        (os.fsdecode(b"caf\xe9"), "caf_"),
        ("a" * 230, "a" * 200),
        ("模" * 80, "模" * 66),
    ],
)
def test_every_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert checkpoints.name_of(place) == checkpoints.check_name(name) == name


def test_paths_that_are_not_utf8_are_refused_and_names_beside_them_are_not(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert checkpoints.usable("smollm2") == Path("smollm2")
    for path in (folder, Path("rows"), "./rows", "caf\udce9"):
        with pytest.raises(InputError, match="is not UTF-8: give a path that is"):
            checkpoints.usable(path)
