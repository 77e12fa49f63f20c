"""Full EAGLE-2 trees of a real pair's draft along the target's texts, with what their nodes' probabilities would be at
other draft temperatures, and with what followed the same tokens in the text before. Kept in a folder, so that a stopped
study goes on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c2t.decoding import Step
from c2t.models.pairs import Pair
from c2t.policies import Eagle2
from c2t.protocols import POWERS
from c2t.replay.lockstep import replay
from c2t.sampling import Sampling
from c2t.storage.atomic import new_file
from c2t.study.evaluate import BATCH, continuations
from pipelines.gain.context import Texts, copied
from pipelines.gain.subtrees import Nodes, of_neighbours

COLUMNS = ("rank", "depth", "log_prob", "log_joint", "log_max_prob", "entropy", *(f"log_prob^{p:g}" for p in POWERS))
TEXTS = tuple(f"texts_{name}" for name in Texts._fields)


def recorded(
    pair: Pair, ids: Sequence[Sequence[int]], policy: Eagle2, max_new_tokens: int, sampling: Sampling, file: Path
) -> Nodes:
    """Return the nodes of this policy's trees along the target's texts, from the file if they are there."""
    if not _known(file):
        texts = continuations(pair, ids, max_new_tokens, policy.levels, sampling)
        parts, trees, rows = [], 0, 0
        drawn = {"seed": sampling.seed, "temperature": sampling.temperature}
        for start in range(0, len(texts), BATCH):
            part = texts[start : start + BATCH]
            numbers = range(start, start + len(part))
            for step in replay(pair.draft, policy, part, sequences=numbers, record=["log_sums"], **drawn):
                if step.tree is not None:
                    parts.append(_columns(step, start, trees, rows))
                    trees, rows = trees + len(step.rows), rows + len(parts[-1]["tree"])
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as new, new.open("wb") as out:
            columns = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
            joined = Texts.joined([text.tokens for text in texts])
            np.savez(out, **columns, **dict(zip(TEXTS, joined, strict=True)))
    with np.load(file) as found:
        nodes = _nodes({name: found[name] for name in found.files})
        texts = Texts(*(found[name] for name in TEXTS))
    return nodes._replace(columns=nodes.columns | copied(nodes, texts))


def _known(file: Path) -> bool:
    """Return True if the file has the nodes and their texts, which older ones lack."""
    if not file.is_file():
        return False
    with np.load(file) as found:
        return {*TEXTS, "token", "position"} <= set(found.files)


def _columns(step: Step, first: int, trees: int, rows: int) -> dict[str, np.ndarray]:
    """Return the columns of a step's nodes, roots left out; `first`, `trees` and `rows` are counted before it."""
    tree, slots = step.tree, torch.arange(step.tree.size)
    drafted = tree.alive & (slots > 0)
    number = drafted.flatten().cumsum(0).view_as(drafted) - 1 + rows  # of each node among all
    parent = tree.parent.clamp(min=0)
    own = tree.log_prob[..., None] * torch.tensor(POWERS) - step.extra["draft"].after(parent, "log_sums")
    accepted = torch.zeros(len(step.rows), tree.size + 1, dtype=torch.bool)
    path = step.accepted.slots
    accepted.scatter_(1, torch.where(path > 0, path, tree.size), True)
    found: dict[str, Any] = {
        **{"rank": tree.rank, "depth": tree.depth, "log_prob": tree.log_prob, "log_joint": tree.log_joint},
        **{"log_max_prob": tree.max_log_prob, "entropy": tree.entropy, "accepted": accepted[:, : tree.size]},
        **{f"log_prob^{power:g}": own[..., place] for place, power in enumerate(POWERS)},
        "above": torch.where(tree.parent > 0, number.gather(1, parent), -1),
        "tree": (trees + torch.arange(len(step.rows)))[:, None].expand_as(drafted),
        "prompt": (first + step.rows)[:, None].expand_as(drafted),
        **{"token": tree.token, "position": step.position[:, None].expand_as(drafted)},
    }
    return {name: column[drafted].numpy() for name, column in found.items()}


def _nodes(found: dict[str, np.ndarray]) -> Nodes:
    columns = {name: found[name].astype(float) for name in COLUMNS} | {"joint_prob": np.exp(found["log_joint"])}
    depth, above = found["depth"].astype(np.int64), found["above"]
    return Nodes(
        columns | of_neighbours(columns, above),
        above,
        depth,
        found["tree"],
        found["prompt"],
        fold=np.zeros(0, dtype=np.int64),
        accepted=found["accepted"],
        token=found["token"],
        position=found["position"],
        files=(),
    )
