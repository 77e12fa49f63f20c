"""A pair's classifiers: the paper's network on the whole harvest, and for smollm2 the conditional one too, each with
the beta recommended with it.

    c2t harvest --pair tiny --limit 400 --max-new-tokens 96 && python -m pipelines.pair.classifier tiny
    c2t harvest --pair smollm2 --limit 96 --max-new-tokens 64 --temperature 0
    python -m pipelines.pair.classifier smollm2

The paper's network learns from 20 negatives per positive at lr 0.01 instead of the defaults' 1 and 0.001: with the
defaults it has not learned within 2000 steps to rank nodes as well as their joint probability alone does.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from sklearn.metrics import average_precision_score

from c2t.classifier import TreeClassifier
from c2t.costs.statistics import total
from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import load_pair
from c2t.policies import C2T, Eagle2, Plain
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.study.evaluate import continuations, evaluate
from c2t.training.data import NodeData
from c2t.training.fit import train
from c2t.training.settings import MODELS, TrainSettings

BETAS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
TEXTS, NEW_TOKENS = 36, 64


# Folder of the pair -> settings of its network.
NETWORKS = {
    checkpoints.CLASSIFIER: TrainSettings(negatives=20, lr=1e-2),
    f"{checkpoints.CLASSIFIER}_conditional": MODELS["c2t-conditional"],
}


class Choice(NamedTuple):
    """How beta is chosen: the largest one with at least the tau of `goal`, for texts of this temperature. parts: the
    pair's networks."""

    goal: Eagle2
    temperature: float
    parts: tuple[str, ...]


CHOICES = {
    "tiny": Choice(Eagle2(), 0.4, (checkpoints.CLASSIFIER,)),  # the paper's setting
    "smollm2": Choice(Eagle2(K=4, levels=4, N=12), 0.0, tuple(NETWORKS)),  # trees that are fast on a CPU
}


def recommended_beta(name: str, classifier: TreeClassifier) -> float:
    """Return the largest of BETAS with at least the tau of the pair's goal, on harvest prompts."""
    pair, choice = load_pair(name, dtype=torch.float32), CHOICES[name]
    prompts = spread([p for path in default_prompts(name, "harvest") for p in read_prompts(path)], TEXTS)
    ids = SpeculativeDecoder(pair, Plain()).encode([prompt.turns[0] for prompt in prompts])
    sampling = Sampling(choice.temperature)
    texts = continuations(pair, ids, NEW_TOKENS, 10, sampling)

    def tau(policy: C2T | Eagle2) -> float:
        counted = total(evaluate(pair, policy, ids, max_new_tokens=NEW_TOKENS, sampling=sampling, texts=texts))
        print(f"{type(policy).__name__} {getattr(policy, 'beta', '')}: tau {counted.tau:.3f}", flush=True)
        return counted.tau

    goal = tau(choice.goal)
    return max((beta for beta in BETAS if tau(C2T(classifier, beta)) >= goal), default=min(BETAS))


def make(pair: str, part: str) -> None:
    """Train one of NETWORKS on the pair's harvest, choose its beta, and put it into its place."""
    build, out = Path("build") / part, checkpoints.root() / "checkpoints" / pair / part
    settings, harvest = NETWORKS[part], checkpoints.harvest_of(pair)
    trained = train([harvest], build, settings, overwrite=True)
    chosen = TreeClassifier(replace(trained.classifier.config, beta=recommended_beta(pair, trained.classifier)))
    chosen.load_state_dict(trained.classifier.state_dict())
    with checkpoints.replacing(out) as folder:
        chosen.save_pretrained(folder)
    print(f"{part}: {trained.metrics}, beta {chosen.config.beta}, saved in {out}")
    held_out = NodeData([harvest], settings).validation
    alone = average_precision_score(held_out.accepted.numpy(), held_out.x[:, 0].numpy())
    print(f"average precision of {settings.features[0]} alone, on the same conversations: {alone:.3f}", flush=True)


def main(pair: Annotated[str, typer.Argument(help=f"One of {', '.join(CHOICES)}.")]) -> None:
    for part in CHOICES[pair].parts:
        make(pair, part)


if __name__ == "__main__":
    typer.run(main)
