"""C2T, figure 10: surfaces of the classifier's confidence with one feature fixed.

python -m pipelines.papers.figure10 [--pair NAME] [--training committed]
"""

import numpy as np

from c2t.classifier import TreeClassifier
from pipelines.papers import drawing
from pipelines.papers.figures import Shown, fact, script
from pipelines.papers.study import Study
from pipelines.papers.surfaces import DEPTHS, ENTROPIES, confidence
from pipelines.papers.verdicts import Conclusion

AXES = {"P": np.linspace(0, 1, 41), "H": np.linspace(*ENTROPIES, 41), "d": np.arange(DEPTHS)}
FIXED = {"P": (0.1, 0.5, 0.9), "H": (1, 2, 5, 8), "d": (0, 5, 10)}
NAMES = {"P": "joint probability", "H": "entropy", "d": "depth"}


def surfaces(classifier: TreeClassifier) -> dict[tuple[str, float], np.ndarray]:
    """(fixed feature, its value) -> confidences over the other two features, in the order of AXES."""
    found = {}
    for feature, values in FIXED.items():
        for value in values:
            axes = {name: np.array([value]) if name == feature else axis for name, axis in AXES.items()}
            whole = confidence(classifier, axes["P"][:, None, None], axes["H"][:, None], axes["d"])
            found[feature, value] = whole.squeeze(list(AXES).index(feature))
    return found


def figure(study: Study) -> Shown:
    """C2T, figure 10: output with one feature fixed."""
    found = surfaces(study.classifier())
    drawn, three = drawing.panels_3d(3)
    rows = []
    for panel, (feature, values) in zip(three, FIXED.items(), strict=True):
        x, y = (name for name in AXES if name != feature)
        grid = np.meshgrid(AXES[x], AXES[y], indexing="ij")
        for number, value in enumerate(values):
            panel.plot_surface(
                *grid, found[feature, value], color=f"C{number}", alpha=0.6, rcount=15, ccount=15, shade=False
            )
            least, mean, most = (float(f(found[feature, value])) for f in (np.min, np.mean, np.max))
            rows.append([f"{feature} = {value:g}", least, mean, most, _spread(found[feature, value])])
        panel.set(xlabel=NAMES[x], ylabel=NAMES[y], zlim=(0, 1))
        handles = [drawing.patch(f"C{number}") for number in range(len(values))]
        panel.legend(handles, [f"{feature} = {value:g}" for value in values], fontsize="x-small")
        panel.set_title(f"{NAMES[feature]} fixed", fontsize="medium")
    columns = ["fixed", "least confidence", "mean", "most", "standard deviation over the others"]
    title = "C2T, figure 10: confidence with one feature fixed, over the paper's ranges of the others"
    return Shown(title, drawn, columns, rows, conclusions(found))


def conclusions(found: dict[tuple[str, float], np.ndarray]) -> list[Conclusion]:
    """What appendix D reads off its figure. P runs along the first axis where H or d is fixed."""
    low, high = AXES["P"] <= 0.2, AXES["P"] >= 0.8
    apart = {name: float(np.ptp([found[name, value].mean() for value in FIXED[name]])) for name in FIXED}
    steep = [_spread(found["P", value]) for value in (0.1, 0.9)]
    near = float(np.abs(found["H", 2] - found["H", 1]).mean())
    far = float(np.abs(found["H", 8] - found["H", 1]).mean())
    lifted = float((found["H", 8] - found["H", 1])[low].mean())
    deep = found["d", 0] - found["d", 10]
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


def _spread(values: np.ndarray) -> float:
    return float(values.std())


if __name__ == "__main__":
    script("figure10", figure)
