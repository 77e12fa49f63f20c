"""Learned and training-free trees on a real pair, by draft and temperature: gamma at equal tau, with everything that a
tree without training may choose (its levels, its draft's temperature, what the text's counts weigh) searched on one
half of the prompts and judged on the other half.

    python -m pipelines.gain real-pair --data FOLDER [--prompts 80] [--drafts a,b] [--temperatures 0,1]

The same line says how reliable the draft's probabilities are (`pipelines.gain.reliability`). Networks learn from the
prompts that come with the pair for a harvest, along trees of the same draft at the same temperature. FOLDER holds data
sets, each NAME/question.jsonl; of a conversation the first turn counts. A condition that the file of result lines has
already is not counted again.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from jaxtyping import Float

from c2t.models.pairs import Pair, load_pair
from c2t.policies import Eagle2
from c2t.prompts import Prompt, default_prompts
from c2t.protocols import POWERS
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.evaluate import encode
from c2t.study.interval import Interval, bootstrap
from c2t.study.pareto import gamma_at
from c2t.study.points import Point
from pipelines import options, terminal
from pipelines.gain.context import PRIOR_WEIGHTS
from pipelines.gain.full_trees import HARVESTS, Build
from pipelines.gain.parallel import short
from pipelines.gain.recorded_trees import recorded
from pipelines.gain.reliability import reliability
from pipelines.gain.subtrees import Nodes, along, cuts, eagle2
from pipelines.gain.variants import VARIANTS, transferred
from pipelines.papers.study import evenly

RESULTS = checkpoints.root() / "data" / "results" / "gain-real.jsonl"
PAIR = "smollm2"
TAUS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0)
K = 6
LEVELS = 5  # as many as the parallel draft has depths
PLAIN, TEMPERED, EAGLE2 = "threshold on P", "threshold on P, draft temperature searched", "EAGLE-2, levels searched"
COUNTED = "threshold on P mixed with the text's counts, weight searched"
RIVALS = (PLAIN, TEMPERED, EAGLE2, COUNTED)
NETWORKS = {
    "paper's network": "paper's network",
    "conditional network": "conditional: network, own 5",
    "conditional network, own 8": "conditional: network, own 8",
    "conditional network, own 8 and the text's counts": "conditional: network, own 8, copies",
}
BEST = "the best of these"
Families = dict[str, dict[str, list[Point]]]  # family -> setting -> points


class Row(NamedTuple):
    """gamma of a family at one tau, on the judged half, and its ratios to that of a threshold on P and of the best
    training-free tree. setting: the one chosen on the other half."""

    family: str
    setting: str
    tau: float
    gamma: float | None
    over_plain: Interval
    over_best: Interval


def main(
    data: Annotated[Path, typer.Option(help="Folder of data sets, each NAME/question.jsonl.")],
    prompts: Annotated[int, typer.Option(help="Prompts to search and to judge on, half of them each.")] = 80,
    learned_from: Annotated[int, typer.Option(help="Prompts that networks learn from.")] = 40,
    drafts: Annotated[str, typer.Option(help="Drafts of the pair.")] = "eagle,eagle+ngrams,medusa+fit",
    temperatures: Annotated[str, typer.Option(help="Temperatures of the texts.")] = "0,1",
    max_new_tokens: options.TextTokens = 64,
    build: Build = HARVESTS,
    out: Annotated[Path, typer.Option(help="File to append result lines to.")] = RESULTS,
) -> None:
    """Compare trees of a real pair at equal tau, with their settings searched on other prompts."""
    asked = first_turns(evenly(sorted(data.glob("*/question.jsonl")), prompts))
    known = first_turns(evenly(default_prompts(PAIR, "harvest"), learned_from))
    written = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
    done = [json.loads(line)["configuration"] for line in written]
    for temperature in map(float, temperatures.split(",")):
        for draft in drafts.split(","):
            loaded = load_pair(PAIR, draft=draft, dtype=torch.float32)
            run = {"draft": draft, "temperature": temperature, "prompts": len(asked), "learned_from": len(known)}
            run |= {"max_new_tokens": max_new_tokens, "pair": PAIR, "sources": loaded.marks}
            run |= {"trees": [*RIVALS, *NETWORKS]}
            run |= {"draws": Sampling(temperature).draws} if temperature else {}
            if run not in done:
                nodes, source = (
                    trees(loaded, temperature, chosen, max_new_tokens, build / f"{PAIR}-{name}")
                    for name, chosen in (("judged", asked), ("learned", known))
                )
                rows = judged(families(nodes, source))
                show(f"{PAIR}, draft {draft}, T = {temperature:g}, {len(asked)} prompts", rows)
                sets = [prompt.file.removesuffix(".jsonl") for prompt in asked]
                figures = {"trees": int(nodes.tree[-1]) + 1, "rows": rows, "reliability": reliability(nodes, sets)}
                append_line(out, result_line("gain real-pair", figures, run))


def first_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts without later turns."""
    return [prompt._replace(turns=prompt.turns[:1]) for prompt in prompts]


def trees(pair: Pair, temperature: float, prompts: Sequence[Prompt], max_new_tokens: int, folder: Path) -> Nodes:
    """Return the nodes of the draft's full trees along the target's texts to these prompts; those of other weights are
    others."""
    sampling = Sampling(temperature)
    ids = encode(pair, prompts, max_new_tokens, sampling).ids
    policy = Eagle2(K, LEVELS, None, M=1000)
    drawn = f"T{temperature:g}" + f"-draws{sampling.draws}" * (temperature > 0)
    file = folder / f"{'-'.join(pair.marks.values())}-{drawn}-{len(prompts)}x{max_new_tokens}.npz"
    return recorded(pair, ids, policy, max_new_tokens, sampling, file)


def families(nodes: Nodes, source: Nodes) -> Families:
    """Return the points of every family, by setting; networks learn from `source`."""
    tempered = {"1": nodes.columns["log_joint"]}
    for power in POWERS:
        tempered[f"{1 / power:.3g}"] = along(nodes.columns[f"log_prob^{power:g}"], nodes.above, nodes.depth)
    scores: dict[str, dict[str, np.ndarray]] = {
        PLAIN: {"": nodes.columns["log_joint"]},
        TEMPERED: tempered,
        COUNTED: {str(weight): nodes.columns[f"mixed_{weight}"] for weight in PRIOR_WEIGHTS},
        EAGLE2: {str(levels): eagle2(nodes, levels) for levels in range(2, int(nodes.depth.max()) + 2)},
        **{name: {"": transferred(VARIANTS[kind], source, nodes)} for name, kind in NETWORKS.items()},
    }
    return {
        family: {setting: cuts(nodes, family, score) for setting, score in settings.items()}
        for family, settings in scores.items()
    }


def judged(found: Families) -> list[Row]:
    """Return each family's gamma and ratios on every second prompt, with the settings that are best on the others."""
    keys = [(family, setting) for family, settings in found.items() for setting in settings]
    points = [point for settings in found.values() for one in settings.values() for point in one]
    ends = np.cumsum([len(one) for settings in found.values() for one in settings.values()])[:-1]
    counts = np.array([getattr(p, name) for name in ("rounds", "accepted", "verified") for p in points], float)

    def gammas(sums: Float[np.ndarray, "C R"]) -> dict[tuple[str, str], Float[np.ndarray, "R t"]]:
        rounds, accepted, verified = sums.reshape(3, len(points), -1).transpose(0, 2, 1)
        split = (np.split(values, ends, axis=1) for values in (accepted / rounds, verified / rounds))
        return {key: gamma_at(tau, gamma, TAUS) for key, tau, gamma in zip(keys, *split, strict=True)}

    choice = chosen(found, gammas(counts[:, ::2].sum(1, keepdims=True)))
    places = [(family, place) for family in found for place in range(len(TAUS)) if (family, place) in choice]
    if not places:  # the draft knows too little for any of them
        return []

    def figures(sums: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "F R"]:
        here = gammas(sums)
        lines = []
        for family, place in places:
            own, plain, best = (
                here[choice[name, place]][:, place] if (name, place) in choice else np.full(sums.shape[1], np.nan)
                for name in (family, PLAIN, BEST)
            )
            lines += [own, own / plain, own / best]
        return np.array(lines)

    found_figures = bootstrap(counts[:, 1::2], figures)
    rows = []
    for number, (family, place) in enumerate(places):
        own, plain, best = (Interval(*map(short, one)) for one in found_figures[3 * number : 3 * number + 3])
        rows.append(Row(family, choice[family, place][1], TAUS[place], own.estimate, plain, best))
    return rows


def chosen(
    found: Families, gammas: Mapping[tuple[str, str], Float[np.ndarray, "1 t"]]
) -> dict[tuple[str, int], tuple[str, str]]:
    """Return (family, number of a tau) -> the family and setting of smallest gamma there; BEST is the best rival's.
    Nothing where no setting reaches the tau."""
    choice: dict[tuple[str, int], tuple[str, str]] = {}
    for place in range(len(TAUS)):
        for name, members in {**{family: (family,) for family in found}, BEST: RIVALS}.items():
            reached = {
                (family, setting): gammas[family, setting][0, place]
                for family in members
                for setting in found[family]
                if not np.isnan(gammas[family, setting][0, place])
            }
            if reached:
                choice[name, place] = min(reached, key=lambda key: reached[key])
    return choice


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the ratios of one condition."""
    cells: list[list[Any]] = [
        [row.family, row.setting, row.tau, row.gamma, str(row.over_plain), str(row.over_best)] for row in rows
    ]
    terminal.table(title, ["tree", "setting", "tau", "gamma", f"over {PLAIN}", "over the best untrained"], cells)
