"""C2T's table 7: a classifier trained on an EAGLE draft, frozen, with a draft trained in the style of MTP.

    python -m pipelines.papers.table7 [--pair NAME] [--draft mtp]

--draft is the second draft of the pair; the classifier is trained on the pair's own one.
"""

from dataclasses import replace
from pathlib import Path

from c2t.classifier import TreeClassifier
from c2t.cli import shared
from c2t.policies import C2T, Chain, Eagle2
from pipelines.papers.study import Counted, Study, nearest
from pipelines.papers.tables import Quoted, Report, Row, script
from pipelines.papers.verdicts import Conclusion, all_of, at_equal_tau, below

LENGTH = 9  # gamma of the paper's chains is 10 times a whole number of rounds
PAPER = {  # draft -> fixed chain; beta and chain with C2T; EAGLE-2 with N = 90; C2T with beta = 0.5
    "EAGLE": (Quoted(1.96, 161020), 0.9, Quoted(1.97, 104141), Quoted(3.68, 935280), Quoted(3.70, 800848)),
    "MTP": (Quoted(2.12, 156040), 0.8, Quoted(2.10, 98141), Quoted(3.86, 900090), Quoted(3.84, 724913)),
}


def table(study: Study) -> Report:
    """C2T, table 7: another kind of draft."""
    settings = replace(study.settings, draft=None)
    own = shared.load(settings.pair, None, None, str(study.pair.target.device), None, None)
    source = Study(own, settings)
    classifier = source.classifier()
    rows: list[Row] = []
    chains: list[Conclusion] = []
    trees: list[Conclusion] = []
    for draft, part in (("EAGLE", source), ("MTP", study)):
        name = draft if part is source else Path(study.settings.draft or draft).name
        found, chain, tree = combine(part, classifier, draft, name)
        rows += found
        chains.append(chain)
        trees.append(tree)
    return Report(
        "C2T, table 7: a classifier on another kind of draft",
        rows,
        [
            all_of("C2T stops chains of either draft early at the same tau", chains),
            all_of("C2T's trees of either draft need fewer tokens than EAGLE-2's", trees),
        ],
        [f"classifier: {settings.training} settings, trained on the pair's own draft; trees: K=W=15, 10 levels"],
    )


def combine(
    study: Study, classifier: TreeClassifier, draft: str, name: str
) -> tuple[list[Row], Conclusion, Conclusion]:
    """Chains and trees of one draft with and without the classifier; `draft` is the paper's."""
    chain, eagle2 = study.count(Chain(LENGTH)), study.count(Eagle2(K=15, levels=10, N=90))
    c, beta, stopped, e, tree = PAPER[draft]

    chains = study.c2t_around(classifier, chain, K=1, W=1)
    trees = study.c2t_around(classifier, eagle2)
    rows = [
        Row(f"{name} C", f"length {LENGTH}", chain, c),
        Row(f"{name} C + C2T", f"beta={beta:g}", study.count(C2T(classifier, beta, K=1, W=1)), stopped),
        _row(f"{name} C + C2T", chains, chain),
        Row(f"{name} EAGLE-2", "N=90", eagle2, e),
        Row(f"{name} C2T", "beta=0.5", study.count(C2T(classifier, 0.5)), tree),
        _row(f"{name} C2T", trees, eagle2),
    ]
    what = "gamma over that without C2T at its tau, "
    return (
        rows,
        below("", f"{what}chains, {name}", at_equal_tau(chains, [chain], chain)),
        below("", f"{what}trees, {name}", at_equal_tau(trees, [eagle2], eagle2)),
    )


def _row(method: str, found: list[Counted], goal: Counted) -> Row:
    same = nearest(found, goal)
    return Row(method, f"{same.label} (nearest tau)", same)


if __name__ == "__main__":
    script("table7", table, draft="mtp")
