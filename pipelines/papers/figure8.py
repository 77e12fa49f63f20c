"""C2T, figure 8: classifiers trained on one data set each, judged on every one.

    python -m pipelines.papers.figure8 [--pair NAME] [--prompts FILE ...] [--harvest-prompts FILE ...]

A data set is a prompt file. --limit and --harvest-limit count prompts of each.
"""

from dataclasses import replace

from c2t.policies import C2T
from pipelines.papers import drawing
from pipelines.papers.figure4 import data_sets
from pipelines.papers.figures import Shown, script
from pipelines.papers.study import Counted, Study, default
from pipelines.papers.verdicts import Conclusion, above, all_of, at_equal_tau, below

BETAS = (0.7, 0.5, 0.35, 0.2)
MIDDLE = 1  # the beta at whose tau gammas are compared
ALIKE = 0.05
Scores = dict[str, dict[str, list[Counted]]]  # judged on -> trained on -> points


def cross(study: Study) -> Scores:
    """Every classifier on every data set."""
    files = list(study.settings.harvest_prompts) or default(study.settings.pair, "harvest")
    trained = {
        file.stem: Study(study.pair, replace(study.settings, harvest_prompts=(file,), limit=1)).classifier()
        for file in files
    }
    return {
        name: {source: [judge.count(C2T(classifier, beta)) for beta in BETAS] for source, classifier in trained.items()}
        for name, judge in data_sets(study).items()
    }


def figure(study: Study) -> Shown:
    """C2T, figure 8: cross-validation over data sets."""
    found = cross(study)
    drawn, panels = drawing.panels(len(found))
    rows = []
    for panel, (name, classifiers) in zip(panels, found.items(), strict=True):
        drawing.fronts(
            panel, {source: [(p.tau, p.verified_tokens) for p in points] for source, points in classifiers.items()}
        )
        panel.set_title(f"on {name}, trained on", fontsize="medium")
        own = classifiers.get(name, next(iter(classifiers.values())))
        for source, points in classifiers.items():
            ratio = at_equal_tau(points, own, own[MIDDLE]).value
            rows += [[name, source, one.label, one.tau, one.verified_tokens, ratio] for one in points]
    return Shown(
        "C2T, figure 8: classifiers trained on one data set and judged on another",
        drawn,
        ["judged on", "trained on", "setting", "tau", "verified tokens", "gamma at equal tau"],
        rows,
        [conclusion(name, classifiers) for name, classifiers in found.items()],
        ["gamma at equal tau: over the own classifier's at beta = 0.5; the paper judges on MT-bench, without numbers"],
    )


def conclusion(name: str, classifiers: dict[str, list[Counted]]) -> Conclusion:
    """Appendix B.5: those of other data sets lie where the own one lies."""
    own = name if name in classifiers else next(iter(classifiers))
    parts = []
    for source, points in classifiers.items():
        if source != own:
            ratio = at_equal_tau(points, classifiers[own], classifiers[own][MIDDLE])
            what = f"gamma of {source}'s over {own}'s"
            parts += [below("", what, ratio, 1 + ALIKE), above("", what, ratio, 1 - ALIKE)]
    return all_of(f"{name}: classifiers of other data sets are nearly identical to its own", parts)


if __name__ == "__main__":
    script("figure8", figure, limit=8, harvest_limit=40, harvest_tokens=64)
