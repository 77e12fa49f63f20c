"""The classifier's output as a function of (P, H, d): figures 9 and 10 of C2T."""

from types import SimpleNamespace

import numpy as np
import torch
from jaxtyping import Float

from c2t.classifier import TreeClassifier, features
from pipelines.papers.report import Report, Reproduction
from pipelines.papers.study import Study
from pipelines.papers.verdicts import Conclusion, fact

ENTROPIES = (0.0, 10.0)  # the paper's range, nats
DEPTHS = 11  # 0..10


def confidence(
    classifier: TreeClassifier,
    joint_prob: Float[np.ndarray, "..."],
    entropy: Float[np.ndarray, "..."],
    depth: np.ndarray,
    sigmoid: bool = True,
) -> Float[np.ndarray, "..."]:
    """Return the network's output for nodes with these columns (broadcast), as a confidence or before the sigmoid."""
    joint_prob, entropy, depth = np.broadcast_arrays(joint_prob, entropy, depth)
    nodes = SimpleNamespace(
        log_joint=torch.tensor(joint_prob).log(), entropy=torch.tensor(entropy), depth=torch.tensor(depth)
    )
    device = next(classifier.parameters()).device
    with torch.inference_mode():
        logits = classifier.logits(features(nodes, classifier.config.features).to(device))
    return (logits.sigmoid() if sigmoid else logits).double().cpu().numpy()


POINTS = 1000
GRID = 41  # values of P and of H


def random_points(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample P, H, d evenly in the paper's ranges."""
    r = np.random.default_rng(seed)
    return r.random(POINTS), r.uniform(*ENTROPIES, POINTS), r.integers(0, DEPTHS, POINTS)


def shares(classifier: TreeClassifier) -> dict[str, float]:
    """Return the share of the output's variance over all (P, H, d) that each feature explains alone (first-order Sobol
    index)."""
    p, h, d = np.linspace(0, 1, GRID), np.linspace(*ENTROPIES, GRID), np.arange(DEPTHS)
    output = confidence(classifier, p[:, None, None], h[:, None], d, sigmoid=False)
    return {name: _explained(output, axis) for axis, name in enumerate(("P", "H", "d"))}


def _explained(output: Float[np.ndarray, "p h d"], axis: int) -> float:
    others = tuple(a for a in range(3) if a != axis)
    return float(output.mean(others).var() / max(output.var(), 1e-12))


def figure9(study: Study) -> Report:
    """C2T, figure 9: the classifier's output on random (P, H, d)."""
    classifier = study.classifier()
    p, h, d = random_points(study.settings.seed)
    output = confidence(classifier, p, h, d, sigmoid=False)
    share = shares(classifier)
    correlations = [float(np.corrcoef(x, output)[0, 1]) for x in (p, h, d)]
    return Report(
        f"C2T, figure 9: output before the sigmoid, {output.min():.2f} to {output.max():.2f} on {POINTS} random points",
        ["feature", "share of the variance explained alone", "correlation with the output"],
        [[name, share, correlation] for (name, share), correlation in zip(share.items(), correlations, strict=True)],
        [
            fact(
                "the joint probability has the greatest impact",
                share["P"] > max(share["H"], share["d"]),
                f"share of the variance explained by P {share['P']:.3f}, H {share['H']:.3f}, d {share['d']:.3f}",
            )
        ],
        ["sampled evenly, as in the paper; in trees few of these mixtures occur (a large P with a large H cannot)"],
    )


AXES = {"P": np.linspace(0, 1, 41), "H": np.linspace(*ENTROPIES, 41), "d": np.arange(DEPTHS)}
FIXED = {"P": (0.1, 0.5, 0.9), "H": (1, 2, 5, 8), "d": (0, 5, 10)}


def surfaces(classifier: TreeClassifier) -> dict[tuple[str, float], np.ndarray]:
    """Return (fixed feature, its value) -> confidences over the other two features, in the order of AXES."""
    confidences = {}
    for feature, values in FIXED.items():
        for value in values:
            axes = {name: np.array([value]) if name == feature else axis for name, axis in AXES.items()}
            whole = confidence(classifier, axes["P"][:, None, None], axes["H"][:, None], axes["d"])
            confidences[feature, value] = whole.squeeze(list(AXES).index(feature))
    return confidences


def figure10(study: Study) -> Report:
    """C2T, figure 10: surfaces of the classifier's confidence with one feature fixed."""
    confidences = surfaces(study.classifier())
    rows = [
        [f"{feature} = {value:g}", *(float(f(values)) for f in (np.min, np.mean, np.max, np.std))]
        for (feature, value), values in confidences.items()
    ]
    columns = ["fixed", "least confidence", "mean", "most", "standard deviation over the others"]
    title = "C2T, figure 10: confidence with one feature fixed, over the paper's ranges of the others"
    return Report(title, columns, rows, of_surfaces(confidences))


def of_surfaces(confidences: dict[tuple[str, float], np.ndarray]) -> list[Conclusion]:
    """Judge appendix D's statements on its figure. P runs along the first axis where H or d is fixed."""
    low, high = AXES["P"] <= 0.2, AXES["P"] >= 0.8
    apart = {name: float(np.ptp([confidences[name, value].mean() for value in FIXED[name]])) for name in FIXED}
    steep = [float(confidences["P", value].std()) for value in (0.1, 0.9)]
    near = float(np.abs(confidences["H", 2] - confidences["H", 1]).mean())
    far = float(np.abs(confidences["H", 8] - confidences["H", 1]).mean())
    lifted = float((confidences["H", 8] - confidences["H", 1])[low].mean())
    deep = confidences["d", 0] - confidences["d", 10]
    at_low, at_high = (float(deep[part].mean()) for part in (low, high))
    return [
        fact(
            "the surfaces of P are widely spaced",
            apart["P"] > max(apart["H"], apart["d"]),
            "largest distance of the means of two surfaces: " + ", ".join(f"{k} {v:.3f}" for k, v in apart.items()),
        ),
        fact(
            "at low P the other features matter more",
            steep[0] > steep[1],
            f"standard deviation over H and d: {steep[0]:.3f} at P = 0.1, {steep[1]:.3f} at P = 0.9",
        ),
        fact(
            "at low entropy (1 or 2) the surfaces are closely adjacent",
            near < far / 4,
            f"mean distance of H = 1 to 2 {near:.3f}, to 8 {far:.3f}; holds below a fourth",
        ),
        fact(
            "high entropy raises the confidence at low P",
            lifted > 0,
            f"mean of confidence(H = 8) - confidence(H = 1) at P <= 0.2: {lifted:+.3f}, holds above 0",
        ),
        fact(
            "at high P depth has little effect",
            abs(at_high) < abs(at_low),
            f"mean of confidence(d = 0) - confidence(d = 10): {at_high:+.3f} at P >= 0.8, {at_low:+.3f} at P <= 0.2",
        ),
        fact("at low P shallow nodes are trusted more", at_low > 0, f"the second of these is {at_low:+.3f}"),
    ]


REPORTS = {"figure9": Reproduction(figure9), "figure10": Reproduction(figure10)}
