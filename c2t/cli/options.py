"""Options that several commands share; their defaults are those of the settings that they fill."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from c2t.errors import InputError
from c2t.harvest.extra_columns import COLUMNS
from c2t.models.drafts.uniform import LOOKUP
from c2t.models.loading.names import ENDINGS, parts
from c2t.models.loading.registry import PATH
from c2t.models.wrappers.ngrams import NGRAMS
from c2t.policies import POLICIES
from c2t.storage.paths import DEFAULT_PAIR, usable
from c2t.storage.results import check_place
from c2t.training.settings import LOGGERS


def a_path(text: str) -> Path:
    """Read an option that names a file or a folder; wrong usage for what cannot be a path."""
    a_name(text)
    return _usable(Path(text))  # a path also without a separator


def a_name(text: str) -> str:
    """Read an option that is a name, a folder or a Hub id; wrong usage for what cannot be one."""
    _usable(text)
    return text


def _usable(path: str | Path) -> Path:
    try:
        return usable(path)
    except InputError as error:  # Typer drops the words of a ValueError
        raise typer.BadParameter(str(error)) from error


def a_word(text: str) -> str:
    """Read an option that is a word; wrong usage for none."""
    if not text.strip():
        raise typer.BadParameter("empty; leave the option out for its default")
    return text


def _before_the_work(path: str | None) -> str | None:
    """Refuse, before the work, a path that no results can be written to."""
    if path not in (None, "-"):
        check_place(Path(path))
    return path


MODELS_PANEL, RUN_PANEL, OUTPUT_PANEL = "Models", "Prompts and decoding", "Output"


def _models(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=MODELS_PANEL, **more)


def _run(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=RUN_PANEL, **more)


def _output(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=OUTPUT_PANEL, **more)


PairName = Annotated[
    str | None,
    _models(
        "Use this model: a folder, a Hub id, a .gguf file, or a pair of target and draft, such as smollm2 or tiny "
        "(docs/heads.md: the Hub's).",
        "--model",
        "-m",
        "--pair",
        show_default=DEFAULT_PAIR,
        parser=a_name,
        metavar="MODEL",
    ),
]
Target = Annotated[
    str | None,
    _models(
        "Use this target, the model that generates the text: a folder, a Hub id or a .gguf file.",
        show_default="the target of --model",
        parser=a_name,
        metavar="PLACE",
    ),
]
CONDITIONED = " or ".join(text for text, ending in ENDINGS.items() if ending.layer == PATH)
Draft = Annotated[
    str | None,
    _models(
        "Use this draft, the model that guesses tokens: a folder or Hub id, or the name of one that comes "
        f"with the pair: {', '.join(parts())}; or {LOOKUP}, which is no model and copies from the text alone. Add "
        f"{NGRAMS} to it (or {NGRAMS}=WEIGHT) to mix its guesses with what followed the same tokens earlier in the "
        f"text; before that {CONDITIONED}, to condition "
        "a parallel draft (medusa) on the tokens before.",
        show_default="the draft of --model, else the one that suits it",
        parser=a_name,
        metavar="PLACE",
    ),
]
Classifier = Annotated[
    str | None,
    _models(
        "Use this classifier: a folder, a Hub id or the name of a pair.",
        show_default="the pair's own",
        parser=a_name,
        metavar="PLACE",
    ),
]
Device = Annotated[
    str | None,
    _models(
        "Put the models on this device: cpu, cuda, cuda:1, ...",
        show_default="cuda if there is one",
        parser=a_word,
        metavar="DEVICE",
    ),
]
Dtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16", "int8", "int4"] | None,
    _models(
        "Data type of target and draft: float64, float32, bfloat16, float16, or int8 and int4 on a CPU.",
        metavar="TYPE",
        show_default="the checkpoint's; on a CPU see c2t info",
    ),
]
DeviceMap = Annotated[
    str | None,
    _models(
        "Spread a large target over several devices; auto lets transformers decide.",
        parser=a_word,
        metavar="MAP",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    _models(
        "Run the Python code that comes with the files of target and draft, if they ask for it.", "--trust-remote-code"
    ),
]
TensorParallel = Annotated[
    bool,
    _models("Split a large target over the processes that torchrun has started; the first one shows the text.", "--tp"),
]
Graphs = Annotated[
    bool,
    _models("Decode by CUDA graphs, so that a GPU does not wait for Python; experimental.", "--graphs"),
]


class Models(NamedTuple):
    """Options that say which target and draft a command loads, and how; `with_models` gives them to it."""

    pair: PairName = None
    target: Target = None
    draft: Draft = None
    device: Device = None
    dtype: Dtype = None
    device_map: DeviceMap = None
    trust_remote_code: TrustRemoteCode = False


def with_models(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `models` by the options of `Models`."""
    options = inspect.signature(Models).parameters.values()

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        models = Models(**{name: values.pop(name) for name in Models._fields})
        command(models=models, **values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        parameters += options if parameter.name == "models" else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    with_options.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]  # read by Typer
    return with_options


def _policy(default: str) -> Any:
    help_text = f"How to build the tree: {', '.join(POLICIES)}. Settings follow a colon: eagle2:N=60,K=10."
    return typer.Option(help=help_text, show_default=default, parser=a_word, metavar="POLICY")


PolicySpec = Annotated[str | None, _policy("the pair's own, else c2t; without a classifier threshold")]
ServedPolicy = Annotated[str | None, _policy("a budget over the pair's own")]

Prompts = Annotated[
    list[Path] | None,
    _run(
        "Read the prompts from this JSONL file; repeat the option for several files.",
        metavar="FILE",
        show_default="the pair's own",
        parser=a_path,
    ),
]
Limit = Annotated[
    int | None,
    _run("Use at most so many prompts, spread evenly over all files and categories."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it stands, without the chat template.")]
MaxNewTokens = Annotated[int, _run("Stop each text after so many new tokens.")]
Temperature = Annotated[float, _run("Temperature of the target's text; 0 always takes the most probable token.")]
BenchTemperature = Annotated[
    float | None,
    _run(
        "Temperature of the target's text; 0 always takes the most probable token.",
        show_default="0.4; with --tuned 0, as of c2t tune",
    ),
]
Seed = Annotated[int, _run("Seed for sampling by target and draft.")]
Live = Annotated[
    bool,
    _run("Run the target in every round, instead of replaying its texts (same counts).", "--live"),
]
Rule = Annotated[
    Literal["residual", "target-only"] | None,
    _run(
        "How to accept tokens that the draft sampled: residual or target-only. Both keep the target's distribution. "
        "Most policies rank tokens instead; for those it is always target-only.",
        metavar="RULE",
        show_default="residual for policies that sample",
    ),
]

Trees = Annotated[
    str,
    _run(
        "Trees to record: eagle2, the full EAGLE-2 tree; mcsd+, K branches that start with a token of the "
        "target's and go on with levels - 1 drafted ones.",
    ),
]
Positions = Annotated[
    str,
    _run("Where to draft trees: visited, at the positions where decoding would draft one; all, at every position."),
]
Columns = Annotated[str, _run(f"Record further columns, separated by commas: {', '.join(COLUMNS)}.")]
Texts = Annotated[
    Path | None,
    _run(
        "Take the texts from this file, and let the target only read them: JSON lines with prompt and completion, each "
        "as text or token ids.",
        metavar="FILE",
        parser=a_path,
    ),
]
Shard = Annotated[
    str | None,
    _run(
        "Harvest only shard i of n, counted from 0, into its own folder in --out; see --merge.",
        parser=a_word,
        metavar="I/N",
        show_default="RANK/WORLD_SIZE or SLURM_PROCID/SLURM_NTASKS, else everything",
    ),
]
Ray = Annotated[
    str | None,
    _run(
        "Work by Ray actors in the cluster at this address; with local, by several processes of this machine.",
        "--ray",
        parser=a_word,
        metavar="ADDRESS",
    ),
]
Workers = Annotated[int, _run("Number of Ray actors, each with the pair and, if there are GPUs, one of them.")]
Merge = Annotated[
    Path | None,
    _output(
        "Make one harvest in --out of the shards in this folder; nothing is harvested.",
        parser=a_path,
        metavar="FOLDER",
    ),
]

Data = Annotated[
    list[str] | None,
    typer.Argument(
        help="Harvests to learn from: folders, or names of pairs.",
        show_default=DEFAULT_PAIR,
        parser=a_name,
        metavar="[DATA]...",
    ),
]
Epochs = Annotated[
    int, typer.Option(help="Epochs; one of few rows goes through them several times, for 2000 optimiser steps in all.")
]
BatchSize = Annotated[int, typer.Option(help="Drafted tokens per optimiser step.")]
LearningRate = Annotated[float, typer.Option(help="Learning rate of Adam.")]
Fraction = Annotated[float, typer.Option(help="Share of the training conversations to use, from 0 to 1.")]
TrainSeed = Annotated[int, typer.Option(help="Seed for the first weights, the split of the prompts and the batches.")]
Logger = Annotated[str, typer.Option(help=f"Where to log the training: {', '.join(LOGGERS)}.")]

Overwrite = Annotated[bool, _output("Replace what is in the output folder.", "--overwrite")]
Json = Annotated[
    str | None,
    _output(
        "Append one line of JSON with the results and settings to this file; with - print it as the last line.",
        metavar="FILE",
        parser=a_name,
        callback=_before_the_work,
    ),
]


def folder_out(default: str) -> Any:
    """Return the option --out of a command that writes a folder."""
    return _output("Write to this folder.", show_default=default, parser=a_path, metavar="FOLDER")


def file_out(help: str, default: str | bool = True) -> Any:
    """Return an option that names a file to write."""
    return _output(help, show_default=default, parser=a_path, metavar="FILE")
