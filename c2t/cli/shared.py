"""Steps that several commands take: load a pair, read prompts, find a classifier and policies, show facts."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from c2t.classifier import TreeClassifier
from c2t.cli import info as information
from c2t.cli import terminal
from c2t.cli.options import Models
from c2t.costs.store import costs_of
from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.loading.names import parse as parse_draft
from c2t.models.loading.own_model import default_draft, pair_and_target
from c2t.policies.default import FALLBACK, policy_of_folder, policy_of_pair
from c2t.policies.default import default_policy as default_policy_of
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import check_names, parse
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, read_prompts
from c2t.storage import paths as checkpoints
from c2t.storage.results import check_place

WORKERS = 2  # Ray actors, if --workers does not say
WITHOUT_CLASSIFIER = (FALLBACK, "threshold:threshold=0.03")  # policies that replace c2t among defaults


def load(models: Models, tensor_parallel: bool = False, specs: Sequence[str] = ()) -> Pair:
    """Load the pair that a command's options name. Before that, which can take minutes, raise InputError for names in
    the policies' texts `specs` that do not exist."""
    for spec in specs:
        check_names(spec)
    if tensor_parallel and models.device_map:
        raise InputError("--tp and --device-map both say where the target is: give one of them")
    options = models._asdict()
    options["dtype"] = getattr(torch, models.dtype) if models.dtype else None
    options["pair"], options["target"] = pair, target = pair_and_target(models.pair, models.target)
    choice = default_draft(target) if pair is None and models.draft is None else None
    if choice:
        options |= {"pair": choice.pair, "draft": choice.draft}
    loaded = load_pair(**options, tensor_parallel=tensor_parallel)
    if choice:
        terminal.say(f"draft: {choice.draft} ({choice.reason})", error=True)
    return loaded


def typed(models: Models) -> str:
    """Return the options that load these models, as they are typed, each with a space after it."""
    names = {"pair": "--model", "device_map": "--device-map", "trust_remote_code": "--trust-remote-code"}
    words = ""
    for name, value in models._asdict().items():
        if value:
            option = names.get(name, f"--{name}")
            words += f"{option} " if value is True else f"{option} {shlex.quote(str(value))} "
    return words


def pool(
    address: str | None, workers: int | None, make: Callable[[], Pair], device: str | None
) -> AbstractContextManager:
    """Return a context with Ray actors that hold the pair, or with None where no address is given. Without a device
    each actor gets a GPU where the cluster has any."""
    if address is None:
        if workers is not None:
            raise InputError(f"--workers {workers} are Ray's: give --ray, too, or leave it out")
        return nullcontext()
    from c2t.harvest.ray_pool import RayPool  # noqa: PLC0415 - needs an extra

    gpus = None if device is None else int(device.startswith("cuda"))
    return RayPool(make, address, WORKERS if workers is None else workers, gpus)


def read(files: Sequence[Path]) -> list[Prompt]:
    return [prompt for path in files for prompt in read_prompts(path)]


def check_figure(option: str, path: Path) -> None:
    """Refuse, before the work, a path that no figure can be written to, or whose name is not that of a PNG."""
    if path.suffix.lower() != ".png":  # a file of another kind would be replaced
        raise InputError(f"{option} {path}: the figure is a PNG: give a name that ends with .png")
    check_place(path)
    if path.exists() and not path.is_file():  # a device, which a file would replace
        raise InputError(f"{option} {path} is no plain file: name another")


class Classifier:
    """Function that loads the classifier of --classifier, or else a pair's own, for the policies that read one."""

    def __init__(self, pair: str | Path, reference: str | None, device: torch.device | str = "cpu"):
        self.pair, self.reference, self.device, self.used = pair, reference, device, False

    def __call__(self, name: str | None = None) -> TreeClassifier:
        """Load it, or the one of another name."""
        self.used |= name is None
        default = self.pair if self.reference is None else self.reference
        return TreeClassifier.from_pretrained(default if name is None else name, device=self.device)

    def check(self) -> None:
        """Raise InputError if the user has named a classifier that no policy reads."""
        if self.reference is not None and not self.used:
            raise InputError(
                f"--classifier {self.reference}: no policy here reads a classifier; give one that does, as c2t, or "
                "leave the option out"
            )


def policies(
    pair: Pair,
    reference: str | None,
    specs: Sequence[str],
    rates: Callable[[float], tuple[float, ...]] | None,
    costs: Callable[..., RoundCosts],
    **defaults: Any,
) -> list[Policy]:
    """Return the policies that these texts describe, see `parse`. reference: of --classifier; InputError if none of
    them reads one."""
    classifier = Classifier(pair.classifier, reference, pair.target.device)
    parsed = [parse(spec, classifier, rates, costs, **defaults) for spec in specs]
    classifier.check()
    return parsed


def costs(pair: Pair, tensor_parallel: bool = False) -> Callable[..., RoundCosts]:
    """Return the function that measures the costs of rounds for a budget, see `costs_of`; with --tp it refuses to."""

    def refuse(*_: object) -> RoundCosts:
        raise InputError("--tp: each process would have its own costs; give the budget nodes, as budget:nodes=64")

    return refuse if tensor_parallel else partial(costs_of, pair)


def available(pair: Pair, reference: str | None, specs: Sequence[str]) -> list[str]:
    """Return those of a command's default policies that need no classifier, and print why, if the pair has none."""
    learned = [spec for spec in specs if spec == "budget" or spec.partition(":")[0] == "c2t"]
    its = pair.classifier != pair.name or checkpoints.find(pair.name, checkpoints.CLASSIFIER)
    if not learned or reference or its:
        return list(specs)
    sources = {part: source for part, (source, _) in pair.sources.items()}
    folders = {"target": Path(sources["target"]), "draft": Path(parse_draft(sources["draft"]).name or "")}
    for part, folder in folders.items():
        if len(folder.parts) == 1 and folder.is_dir():  # one here, which without a separator would be a NAME
            sources[part] = f"./{sources[part]}"
    parts = {part: shlex.quote(source) for part, source in sources.items()}
    models = (
        "" if pair.name in checkpoints.names_with("target") else "--target {target} --draft {draft}".format_map(parts)
    )
    terminal.say(
        f"{pair.name} has no classifier yet, so threshold stands for c2t; make one with: "
        f"{checkpoints.recipe(pair.name, models)}",
        error=True,
    )
    others = [spec for spec in specs if spec not in learned]
    return others if any(spec.startswith("threshold") for spec in others) else [*others, *WITHOUT_CLASSIFIER]


def default_policy(pair: Pair, reference: str | None, for_server: bool = False) -> str:
    """Return the default policy of a text: what the pair names, unless the user names a classifier; else C2T.

    for_server: a budget over that policy, since trees that are profitable for one request may cost time for many; only
    where there are prompts to measure its costs on.
    """
    spec = None if reference else policy_of_pair(pair.name)
    if spec is None:
        named = reference or pair.name in checkpoints.names_with("target")
        fastest = policy_of_folder(pair.heads) or default_policy_of(pair.name)
        spec = available(pair, reference, ["c2t"])[0] if named else fastest
    if not for_server or not checkpoints.prompts_of(pair.name, "harvest"):
        return spec
    return "budget" if spec == "c2t" else f"budget:of={spec}"


def show(tables: list[information.Facts]) -> None:
    for facts in tables:
        terminal.facts(*facts)
