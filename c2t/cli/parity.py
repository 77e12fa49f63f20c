"""The command parity: whether a model's logits depend on how many tokens a forward has."""

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from transformers import PreTrainedModel

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.cuda_graphs.target import StaticTarget
from c2t.errors import InputError, refusing
from c2t.kernels.device import checked_device
from c2t.models.gguf.reader import is_gguf
from c2t.models.loading.checkpoint_files import check_files
from c2t.models.loading.load_target import load_model, read_tokenizer
from c2t.models.loading.own_model import is_model
from c2t.models.target.target import Target, check_attention
from c2t.storage import paths
from c2t.study.parity import run


def _numbers(text: str) -> list[int]:
    try:
        counts = sorted({1, *(int(part) for part in text.split(","))})  # one node alone is the control
    except ValueError as error:
        raise InputError(f"--rows {text}: give whole numbers, separated by commas, such as 4,16") from error
    run.check_rows(counts)
    return counts


def parity(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder or Hub id of a model, run by transformers; or a pair or .gguf file, run by c2t.",
            parser=o.a_name,
            metavar="MODEL",
        ),
    ],
    kernels: Annotated[bool, typer.Option("--kernels", help="Run a folder or Hub id by c2t, too.")] = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="Run by c2t's CUDA graph (experimental).")] = False,
    rows: Annotated[str, typer.Option(help="Numbers of nodes in one forward.", metavar="N,N,...")] = "1,2,4,8,16,60",
    shape: Annotated[
        Literal["tree", "chain"],
        typer.Option(help="Verify a tree with its mask, or a chain without one.", metavar="SHAPE"),
    ] = "tree",
    attention: Annotated[
        str | None,
        typer.Option(
            "--attn",
            help="Attention of transformers: sdpa, eager, flash_attention_2 ...",
            show_default="sdpa",
            parser=o.a_word,
        ),
    ] = None,
    prefix: Annotated[
        int, typer.Option(help="Tokens of the prompt; splits of long prefixes show only then.", min=1)
    ] = 512,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL file of prompts, of which each is compared.",
            metavar="FILE",
            show_default="a text of c2t's own",
            parser=o.a_path,
        ),
    ] = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Say whether a tree's logits are plain decoding's bit for bit, and which modules differ.

    Each node is decoded as one token after its path, then M of them in one forward. A module's
    line counts the layers where it differs by itself: on inputs that are exact. "<in>" is the code
    before a module, such as attention.

    Equal here is no proof: try other prompts and lengths. Fused blocks and experts hide their
    inside.

    Exit status: 0 all logits are equal, 1 some differ, 2 nothing could be compared.
    """
    counts = _numbers(rows)
    texts = [prompt.turns[0] for prompt in shared.read(prompts or [])]
    if kernels or graphs or not is_model(model) or is_gguf(model):
        if attention:
            raise InputError(f"--attn {attention} is for models that transformers runs: leave it out")
        pair = shared.load(o.Models(pair=model, device=device, dtype=dtype, trust_remote_code=trust_remote_code))
        loaded, tokenizer = pair.target, pair.tokenizer
        if graphs:
            o.check_graphed(pair.target.device)
            with refusing(f"{model}: cannot be recorded"):
                loaded = StaticTarget(pair.target, rows=1, capacity=prefix + max(counts), room=max(counts))
    else:
        attention = attention or "sdpa"
        loaded = _of_transformers(model, attention, dtype, device, trust_remote_code)
        tokenizer = read_tokenizer(model, trust_remote_code)
        if shape == "tree":
            check_attention(loaded)
    with refusing(f"{model}: its forward fails"):  # by code that is not c2t's, or for want of memory
        result = run.parity(loaded, run.prompt_ids(tokenizer, texts, prefix), counts, shape == "chain")
    if isinstance(loaded, PreTrainedModel):
        terminal.say("run by transformers; --kernels shows the model as c2t runs it", error=True)
    for line in run.lines(result):
        terminal.say(line)
    settings = {
        "model": model,
        "kernels": isinstance(loaded, Target),
        "graphs": graphs,
        "shape": shape,
        "attention": attention,
    }
    terminal.result(json, "parity", result.figures, {**settings, "prefix": prefix, "dtype": dtype})
    if any(row.differing for row in result.rows):
        raise typer.Exit(1)


def _of_transformers(
    source: str, attention: str, dtype: str | None, device: str | None, trust_remote_code: bool
) -> PreTrainedModel:
    if dtype in ("int8", "int4"):
        raise InputError(f"transformers computes nothing in {dtype}: give --kernels as well, to run the model by c2t")
    on = checked_device(device)
    paths.resolve(source, "target")  # InputError for a folder that is not there
    check_files(source, trust_remote_code)
    kind = getattr(torch, dtype) if dtype else "auto"
    return load_model(source, kind, trust_remote_code, attn_implementation=attention).to(on).eval()
