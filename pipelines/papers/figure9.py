"""C2T, figure 9: the classifier's output on random (P, H, d).

python -m pipelines.papers.figure9 [--pair NAME] [--training committed]
"""

import numpy as np
from jaxtyping import Float

from c2t.classifier import TreeClassifier
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, fact, script
from pipelines.papers.study import Study
from pipelines.papers.surfaces import DEPTHS, ENTROPIES, confidence

POINTS = 1000
GRID = 41  # values of P and of H


def random_points(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P, H, d: even in the paper's ranges."""
    r = np.random.default_rng(seed)
    return r.random(POINTS), r.uniform(*ENTROPIES, POINTS), r.integers(0, DEPTHS, POINTS)


def shares(classifier: TreeClassifier) -> dict[str, float]:
    """Of the variance of the output over all (P, H, d), what each feature explains alone (first-order Sobol index)."""
    p, h, d = np.linspace(0, 1, GRID), np.linspace(*ENTROPIES, GRID), np.arange(DEPTHS)
    output = confidence(classifier, p[:, None, None], h[:, None], d, sigmoid=False)
    return {name: _explained(output, axis) for axis, name in enumerate(("P", "H", "d"))}


def _explained(output: Float[np.ndarray, "p h d"], axis: int) -> float:
    others = tuple(a for a in range(3) if a != axis)
    return float(output.mean(others).var() / max(output.var(), 1e-12))


def figure(study: Study) -> Shown:
    """C2T, figure 9: output over joint probability, entropy and depth."""
    classifier = study.classifier()
    p, h, d = random_points(study.settings.seed)
    output = confidence(classifier, p, h, d, sigmoid=False)
    normalised = (output - output.min()) / max(np.ptp(output), 1e-12)
    drawn, (panel,) = drawing.panels_3d(1)
    shown = panel.scatter(p, h, d, c=normalised, cmap="viridis", s=10)
    panel.set(xlabel="joint probability", ylabel="entropy", zlabel="depth")
    drawn.colorbar(shown, ax=panel, shrink=0.7, pad=0.1, label="output, min-max normalised")
    found = shares(classifier)
    correlations = [float(np.corrcoef(x, output)[0, 1]) for x in (p, h, d)]
    return Shown(
        f"C2T, figure 9: output before the sigmoid, {output.min():.2f} to {output.max():.2f} on {POINTS} random points",
        drawn,
        ["feature", "share of the variance explained alone", "correlation with the output"],
        [[name, share, one] for (name, share), one in zip(found.items(), correlations, strict=True)],
        [
            fact(
                "the joint probability has the greatest impact",
                found["P"] > max(found["H"], found["d"]),
                f"share of the variance explained by P {found['P']:.3f}, H {found['H']:.3f}, d {found['d']:.3f}",
            )
        ],
        ["drawn evenly, as in the paper; in trees few of these mixtures occur (a large P with a large H cannot)"],
    )


if __name__ == "__main__":
    script("figure9", figure)
