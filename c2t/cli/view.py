"""The command that shows how a text was decoded: view."""

from pathlib import Path
from typing import Annotated

import typer

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.errors import InputError
from c2t.output.signals import Stopped
from c2t.sampling import Sampling
from c2t.storage.atomic import write_text
from c2t.storage.results import check_place
from c2t.study import acceptance
from c2t.viewer.page import page
from c2t.viewer.server import EVENTS, LiveServer
from c2t.viewer.view import Viewer


@o.with_models
def view(
    models: o.Models,
    context: terminal.Context,
    prompt: Annotated[
        str, typer.Argument(help="Text to answer; without a chat template, to continue.", metavar="PROMPT")
    ] = "Why is the sky blue?",
    raw: o.Raw = False,
    policy: o.PolicySpec = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Decode with this policy too, and show its tree next to the other: eagle2:N=60.",
            parser=o.a_word,
            metavar="POLICY",
        ),
    ] = None,
    classifier: o.Classifier = None,
    max_new_tokens: o.MaxNewTokens = 64,
    temperature: o.Temperature = 0.0,
    seed: o.Seed = 0,
    rule: o.Rule = None,
    out: Annotated[
        Path | None,
        o.file_out("Write the page to this file.", "tree.html; none with --serve"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file.", rich_help_panel=o.OUTPUT_PANEL)
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Show the page on this machine while decoding, until Ctrl-C.",
            rich_help_panel=o.OUTPUT_PANEL,
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            help="Port of --serve; 0 takes any that is free.",
            rich_help_panel=o.OUTPUT_PANEL,
            min=0,
            max=65535,
            metavar="PORT",
        ),
    ] = 0,
) -> None:
    """Decode a prompt and show each round's tree: drafted, pruned, verified and accepted tokens.

    Writes one HTML file that a browser opens from the disk, without network.
    """
    file = Path("tree.html") if out is None and not serve else out
    if "port" in terminal.given(context) and not serve:
        raise InputError("--port is that of --serve: give --serve too, or leave --port out")
    _check_file(file, overwrite)
    sampling = Sampling(temperature, seed=seed)
    loaded = shared.load(models, specs=[*filter(None, (policy, compare))])
    specs = [policy or shared.default_policy(loaded, classifier), *([compare] if compare else [])]
    rates = acceptance.lookup(loaded, temperature, rule)
    viewer = Viewer(
        loaded,
        shared.policies(loaded, classifier, specs, rates, shared.costs(loaded)),
        prompt,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        chat=not raw,
        rule=rule,
    )
    if serve:
        _serve(viewer, port, file)
        return
    for _ in viewer.events():
        pass
    write_text(file, page(viewer.document))
    terminal.say(str(file))


def _serve(viewer: Viewer, port: int, file: Path | None) -> None:
    """Show the rounds as they come, write the file if there is one, and wait for a signal."""
    safe = "the page is served no longer, and no file was written"
    try:
        with LiveServer(page(viewer.document, live=EVENTS), port) as server:
            terminal.say(f"{server.address} shows the rounds as they come; Ctrl-C ends it")
            for event in viewer.events():
                server.send(event)
            server.end()
            if file:
                write_text(file, page(viewer.document))
                safe = f"the page is served no longer; {file} holds it"
                terminal.say(str(file))
            server.wait()
    except Stopped as stopped:
        stopped.add_note(safe)
        raise


def _check_file(file: Path | None, overwrite: bool) -> None:
    """Refuse a path that the page cannot be written to, before the work."""
    if file is None:
        return
    if file.exists() and not file.is_file():  # a folder, or a device, which a file would replace
        raise InputError(f"--out {file} is no plain file: name another")
    check_place(file)
    if file.exists() and not overwrite:
        raise InputError(f"{file} exists: add --overwrite to replace it, or name another file with --out")
