"""Costs of rounds that were measured on this machine, stored by device, pair and policy: in $C2T_CACHE, else
~/.cache/c2t."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from c2t.costs.measure import REPEATS, TEXTS, measure
from c2t.errors import InputError
from c2t.kernels.compiled import MARCH, NATIVE, OFF
from c2t.kernels.native import kernels
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair
from c2t.policies.budget import Budget
from c2t.policies.round_costs import RoundCosts
from c2t.policies.spec import describe
from c2t.protocols import Policy
from c2t.replay.prompts import Prompt, read_prompts, spread, timing_prompts
from c2t.storage.atomic import write_text
from c2t.storage.checked import CLOSED, from_json, read_file
from c2t.storage.checksum import checksum
from c2t.storage.paths import cache
from c2t.storage.provenance import processor

FORMAT = 9  # of the files; costs in another format are measured again
BUSY = 0.8  # share of the time that an idle machine gives to a measurement, at least
SEEN = 32  # prompts, from all files and categories alike, of which the shortest are measured on


def key(pair: Pair) -> dict[str, Any]:
    """Return everything that a forward's cost depends on: the device, the pair with its draft, and the dtype."""
    return {"device": device_name(pair.target.device), "pair": pair.name, **pair.marks, "dtype": pair.arithmetic}


def device_name(device: torch.device) -> str:
    """Return the name of the accelerator, or of the processor with torch's number of threads, and what c2t's kernels
    are compiled for if not for it: they decide the cost of a forward."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    made_for = OFF if kernels() is None else os.environ.get(MARCH, NATIVE)
    return f"{processor()}, {torch.get_num_threads()} threads" + f", kernels {made_for}" * (made_for != NATIVE)


def costs_of(pair: Pair, policy: Policy, file: str | Path | None = None) -> RoundCosts:
    """Return the costs of a budget over this policy: those in a file, else the stored ones, else measured now and, if
    nothing else used the machine, stored."""
    if file is not None:
        return read_costs(Path(file))
    path = path_of(pair, policy)
    if path.exists():
        return read_costs(path, _key(pair, policy))
    prompts = [prompt for file in timing_prompts(pair.name) for prompt in read_prompts(file)]
    sys.stderr.write(
        f"measuring the costs of rounds for {describe(policy, brief=True)}, which takes 10 seconds or more\n"
    )
    return measure_and_store(pair, policy, prompts, though_busy=False)


def measure_and_store(
    pair: Pair, policy: Policy, prompts: Sequence[Prompt], repeats: int = REPEATS, though_busy: bool = True
) -> RoundCosts:
    """Measure the costs of a budget over this policy on some of the prompts, and store them.

    though_busy: store them also if others used the machine; they may be wrong then.
    """
    Budget(policy, nodes=1)  # raises for an unsuitable policy before anything is measured
    start, worked = time.perf_counter(), time.process_time()
    ids = [conversation(pair.tokenizer, pair.template, prompt.turns[:1]) for prompt in spread(prompts, SEEN)]
    costs = measure(pair, policy, sorted(ids, key=len)[:TEXTS], repeats)  # long ones would only take longer
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    line, busy = f"measured the costs of rounds in {seconds:.0f} s", worked < BUSY * seconds
    again = f"run c2t tune --policies budget:of={describe(policy, brief=True)} when it is idle"
    if busy and not though_busy:
        sys.stderr.write(f"{line}, and did not store them, as others used the machine: {again}\n")
        return costs
    path = path_of(pair, policy)
    entry = json.dumps({"key": _key(pair, policy), "costs": _as_json(costs)}, indent=1)
    try:
        write_text(path, entry + "\n")
    except OSError as error:
        raise InputError(f"cannot store costs in {path}: {error.strerror}; set $C2T_CACHE") from error
    warning = f"; others used the machine: {again}" * busy
    sys.stderr.write(f"{line}, and stored them in {path}{warning}\n")
    return costs


def read_costs(path: Path, key: dict[str, Any] | None = None) -> RoundCosts:
    """Return the costs in a file; with a key InputError unless they were measured for it."""
    remedy = f"delete {path} to measure again"
    entry = from_json(_CostsFile, read_file(path, "costs of rounds"), path, remedy)
    if key is not None and entry.key != key:
        raise InputError(f"{path}: costs of another machine, pair or policy; {remedy}")
    try:
        entry.costs.check()
    except InputError as error:
        raise InputError(f"{path}: {error}; {remedy}") from error
    return entry.costs


def path_of(pair: Pair, policy: Policy) -> Path:
    """Return the file of the costs."""
    return cache() / f"costs-{pair.name}-{checksum(_key(pair, policy))[:12]}.json"


def _key(pair: Pair, policy: Policy) -> dict[str, Any]:
    network = getattr(policy, "classifier", None)
    classifier = checksum([[name, weight.tolist()] for name, weight in network.state_dict().items()]) if network else ""
    rates = getattr(policy, "accuracies", None)  # files of one name may differ
    read = {"accuracies": checksum(rates.rates)} if rates else {}
    return {**key(pair), "policy": describe(policy), "classifier": classifier, "format": FORMAT, **read}


def _as_json(part: Any) -> Any:
    return {name: _as_json(value) for name, value in part._asdict().items()} if hasattr(part, "_asdict") else part


@dataclass(frozen=True)
class _CostsFile:
    """Content of a file of costs."""

    __pydantic_config__ = CLOSED
    key: dict[str, Any]
    costs: RoundCosts
