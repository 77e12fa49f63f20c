"""The command that writes a folder for the Hub."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.hf.export import export
from c2t.policies.default import default_policy
from c2t.policies.spec import describe, parse
from c2t.storage import paths as checkpoints
from c2t.storage.published import hub_target


def export_hub(
    pair: o.PairName = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Name this model on the card: a Hub id.",
            show_default="the target of --pair, if it is on the Hub",
            parser=o.a_name,
            metavar="ID",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="Use this draft: a Hub id.", show_default="the one of --pair", parser=o.a_name, metavar="ID"),
    ] = None,
    policy: o.PolicySpec = None,
    classifier: o.Classifier = None,
    out: Annotated[Path | None, o.folder_out("checkpoints/local/PAIR/hub")] = None,
    overwrite: o.Overwrite = False,
) -> None:
    """Write a folder for the Hub, with which transformers' generate decodes by trees.

    model.generate(..., custom_generate=FOLDER, trust_remote_code=True) takes it from the disk,
    or from the Hub where it is uploaded. The classifier is in it; the draft is named by its id.
    """
    name = pair or checkpoints.DEFAULT_PAIR
    network = shared.Classifier(name, classifier)
    spec = policy or (default_policy(name) if classifier is None else "c2t")
    chosen = parse(spec, network)
    network.check()
    folder = out or checkpoints.local_of(name, "hub")
    if target is None:
        target = hub_target(name) if draft is None or pair else None
    named = export(folder, name if draft is None else draft, chosen, target or "path/to/the/model", overwrite)
    terminal.say(f"{folder}: draft {named}, policy {describe(chosen, brief=True)}")
    terminal.say(f"try it:    model.generate(**inputs, custom_generate={str(folder)!r}, trust_remote_code=True)")
    terminal.say(f"upload it: hf upload USER/NAME {shlex.quote(str(folder))}")
