"""Options that several commands share; their defaults are those of the settings that they fill. It imports nothing that
takes time: `c2t serve` answers before that."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from c2t.errors import InputError
from c2t.storage.paths import DEFAULT_PAIR, usable
from c2t.storage.results import check_place


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
        "Use this model: a folder, a Hub id, a .gguf file, or a pair with its draft.",
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
        "Use this target with the draft of --model.",
        parser=a_name,
        metavar="PLACE",
    ),
]
Draft = Annotated[
    str | None,
    _models(
        "Use this draft: a folder, a Hub id or a name (c2t drafts).",
        show_default="the one that suits the target",
        parser=a_name,
        metavar="PLACE",
    ),
]
Classifier = Annotated[
    str | None,
    _models(
        "A folder, Hub id or pair.",
        show_default="the pair's own",
        parser=a_name,
        metavar="PLACE",
    ),
]
Device = Annotated[
    str | None,
    _models(
        "Compute on cpu, cuda, ...",
        show_default="a GPU, if any",
        parser=a_word,
        metavar="DEVICE",
    ),
]
Dtype = Annotated[
    Literal["float64", "float32", "bfloat16", "float16", "int8", "int4"] | None,
    _models(
        "Compute in float64, float32, bfloat16, float16; on a CPU also int8, int4.",
        metavar="TYPE",
        show_default="see c2t info",
    ),
]
DeviceMap = Annotated[
    str | None,
    _models(
        "Spread the target over devices, such as auto.",
        parser=a_word,
        metavar="MAP",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    _models("Run the Python code that comes with a model.", "--trust-remote-code"),
]
TensorParallel = Annotated[
    bool,
    _models("Split the target over the processes of torchrun.", "--tp"),
]
Graphs = Annotated[
    bool,
    _models("Decode by CUDA graphs (experimental).", "--graphs"),
]
GRAPHED = ("cuda",)  # elsewhere graphs are called kernel by kernel, padded


def check_graphed(device: Any) -> None:
    """Raise InputError unless graphs are recorded on this device of torch."""
    if device.type not in GRAPHED:
        raise InputError(f"--graphs is for CUDA devices, and the target is on {device}: leave it out")


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
    help_text = "How to build trees: eagle2:N=60,K=10 (c2t policies)."
    return typer.Option(help=help_text, show_default=default, parser=a_word, metavar="POLICY")


PolicySpec = Annotated[str | None, _policy("the pair's own, else c2t or threshold")]
ServedPolicy = Annotated[str | None, _policy("a budget over the pair's own")]

Prompts = Annotated[
    list[Path] | None,
    _run(
        "JSONL file of prompts.",
        metavar="FILE",
        show_default="the pair's own",
        parser=a_path,
    ),
]
Rows = Annotated[
    Path | None,
    _run(
        "Learn from speculators' rows with hidden states (prepare_data.py's folder), not from texts.",
        "--data-path",
        metavar="FOLDER",
        show_default="none",
        parser=a_path,
    ),
]
Limit = Annotated[
    int | None,
    _run("Prompts to use, of all files alike."),
]
Tuned = Annotated[bool, typer.Option("--tuned", help="Use what c2t tune found to be the fastest.")]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text without the chat template.")]
MaxNewTokens = Annotated[int, _run("Most new tokens of a text.", "--max-new-tokens", "-n")]
TEMPERATURE = "Temperature; 0 takes the most probable token."
Temperature = Annotated[float, _run(TEMPERATURE)]
BenchTemperature = Annotated[
    float | None,
    _run(TEMPERATURE, show_default="0.4; with --tuned 0, as in c2t tune"),
]
SEED = "Seed of the random numbers."
Seed = Annotated[int, _run(SEED)]
NewSeed = Annotated[int | None, _run(SEED, show_default="a new one")]
TopK = Annotated[int, _run("Sample the N most probable only; 0: all.", "--top-k")]
MinP = Annotated[float, _run("Leave out tokens below P times the top one.", "--min-p")]
TopP = Annotated[float, _run("Sample the most probable share only.", "--top-p")]
System = Annotated[str | None, _run("Begin with this system turn.", metavar="TEXT")]
Stop = Annotated[
    list[str] | None, _run("End the text before this string; may be repeated.", metavar="TEXT", show_default=False)
]
JsonSchema = Annotated[
    Path | None, _run("Constrain the text to the JSON schema in this file.", parser=a_path, metavar="FILE")
]
Regex = Annotated[str | None, _run("Constrain the text to this regular expression.", metavar="R")]
GrammarFile = Annotated[
    Path | None,
    _run("Constrain the text to this grammar: Lark or GBNF.", parser=a_path, metavar="FILE"),
]
Threads = Annotated[
    int | None,
    _models("Compute with so many threads.", min=1, max=os.cpu_count()),
]
Live = Annotated[
    bool,
    _run("Run the target in each round, without a replay.", "--live"),
]
Rule = Annotated[
    Literal["residual", "target-only"] | None,
    _run(
        "Verify sampled trees by residual or target-only.",
        metavar="RULE",
    ),
]

Trees = Annotated[
    str,
    _run(
        "Trees to record: eagle2, or mcsd+, branches under K tokens of the target.",
        metavar="TREES",
    ),
]
Positions = Annotated[
    str,
    _run("Draft at visited positions, as decoding does, or at all.", metavar="WHERE"),
]
Texts = Annotated[
    Path | None,
    _run(
        "Read texts (prompt, completion) from JSON lines.",
        metavar="FILE",
        parser=a_path,
    ),
]
Shard = Annotated[
    str | None,
    _run(
        "Harvest shard I of N, from 0.",
        parser=a_word,
        metavar="I/N",
        show_default="of torchrun or Slurm",
    ),
]
Ray = Annotated[
    str | None,
    _run(
        "Work by Ray actors at this address, or local.",
        "--ray",
        parser=a_word,
        metavar="ADDRESS",
    ),
]
Workers = Annotated[int | None, _run("Number of Ray actors, with --ray.", show_default="2")]
Merge = Annotated[
    Path | None,
    _output(
        "Merge the shards in this folder into --out.",
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
        metavar="DATA",
    ),
]
Epochs = Annotated[int, typer.Option(help="Epochs; one of few rows repeats them, for 2000 steps in all.")]
BatchSize = Annotated[int, typer.Option(help="Drafted tokens per optimiser step.")]
LearningRate = Annotated[float, typer.Option(help="Learning rate of Adam.")]
Fraction = Annotated[float, typer.Option(help="Share of the training conversations to use.")]
TrainSeed = Annotated[int, typer.Option(help="Seed for weights, split and batches.")]

Overwrite = Annotated[bool, _output("Replace what is in the output folder.", "--overwrite")]
Json = Annotated[
    str | None,
    _output(
        "Append the result as JSON to a file; - prints it.",
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
