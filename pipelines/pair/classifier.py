"""The embedded pair's classifier: the paper's network on the whole harvest, and the beta recommended with it.

    c2t harvest --pair tiny --limit 400 --max-new-tokens 96 && python -m pipelines.pair.classifier

20 negatives per positive and lr 0.01 instead of the defaults' 1 and 0.001: with the defaults the network has not
learned within 2000 steps to rank nodes as well as their joint probability alone does.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from sklearn.metrics import average_precision_score

from c2t.classifier import TreeClassifier
from c2t.models.pairs import load_pair
from c2t.policies import C2T, Eagle2
from c2t.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.statistics import total
from c2t.storage import paths as checkpoints
from c2t.study.evaluate import continuations, evaluate
from c2t.training.data import NodeData, TrainSettings
from c2t.training.fit import train

BETAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
TEXTS, NEW_TOKENS, SAMPLING = 36, 64, Sampling(0.4)


def recommended_beta(classifier: TreeClassifier) -> float:
    """Return the largest of BETAS with at least the tau of EAGLE-2 at its paper's setting, on harvest prompts."""
    pair = load_pair("tiny")
    prompts = spread([p for path in default_prompts("tiny", "harvest") for p in read_prompts(path)], TEXTS)
    ids = [pair.tokenizer(prompt.turns[0]).input_ids for prompt in prompts]
    texts = continuations(pair, ids, NEW_TOKENS, 10, SAMPLING)

    def tau(policy: C2T | Eagle2) -> float:
        counted = total(evaluate(pair, policy, ids, max_new_tokens=NEW_TOKENS, sampling=SAMPLING, texts=texts))
        print(f"{type(policy).__name__} {getattr(policy, 'beta', '')}: tau {counted.tau:.3f}", flush=True)
        return counted.tau

    goal = tau(Eagle2())
    return max((beta for beta in BETAS if tau(C2T(classifier, beta)) >= goal), default=min(BETAS))


def main() -> None:
    build, out = Path("build/classifier"), checkpoints.root() / "checkpoints" / "tiny" / "classifier"
    settings = TrainSettings(negatives=20, lr=1e-2)
    harvest = checkpoints.root() / "data" / "harvest" / "tiny"
    result = train([harvest], build, settings, overwrite=True)
    chosen = TreeClassifier(replace(result.classifier.config, beta=recommended_beta(result.classifier)))
    chosen.load_state_dict(result.classifier.state_dict())
    shutil.rmtree(out, ignore_errors=True)
    chosen.save_pretrained(out)
    print(result.metrics, f"beta {chosen.config.beta}, saved in {out}")
    held_out = NodeData([harvest], settings).validation
    alone = average_precision_score(held_out.accepted.numpy(), held_out.x[:, 0].numpy())
    print(f"average precision of the joint probability alone, on the same prompts: {alone:.3f}")


if __name__ == "__main__":
    main()
