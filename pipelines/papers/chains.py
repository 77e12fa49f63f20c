"""Chains that stop by a rule: table 3 of C2T."""

from c2t.policies import C2T, Chain, DyJoint, DyMax
from pipelines.papers.report import Quoted, Report, Reproduction, Row, of_policies
from pipelines.papers.study import Counted, Study, nearest
from pipelines.papers.verdicts import all_of, at_equal_tau, below

BETA = 0.85
CHAINS = {  # printed length -> drafted tokens, what they give
    5: (6, Quoted(1.98, 112231)),
    6: (7, Quoted(2.06, 125992)),
    7: (8, Quoted(2.10, 140238)),
    8: (9, Quoted(2.09, 155420)),
    9: (11, Quoted(2.13, 184140)),
}


def length(counted: Counted) -> float:
    """Return the paper's average length: drafted tokens per round minus one, because it prints upstream's `depth`."""
    return round(counted.total.gamma - 2, 2)


def table3(study: Study) -> Report:
    """C2T, table 3: chains of fixed length, chains that stop by a rule, and C2T's (K = W = 1).

    The paper prints a chain's length as upstream's `depth`: 5 is 6 drafted tokens, and its row 9 only fits 11.
    """
    classifier = study.classifier()
    fixed = {printed: study.count(Chain(drafted)) for printed, (drafted, _) in CHAINS.items()}
    dynamic = {"DyMax": study.count(DyMax(0.3)), "DyJoint": study.count(DyJoint(0.08))}
    c2t = study.count(C2T(classifier, BETA, K=1, W=1))
    goals = {**dynamic, "a chain of 6": fixed[5]}
    points = [counted for goal in goals.values() for counted in study.c2t_around(classifier, goal, K=1, W=1)]
    chains = list(fixed.values())
    rows = [_row("EAGLE 1/2", str(n), fixed[n], n, CHAINS[n][1]) for n in CHAINS]
    rows += [
        _row("DyMax", "0.3", dynamic["DyMax"], 6.10, Quoted(2.06, 127018)),
        _row("DyJoint", "0.08", dynamic["DyJoint"], 6.33, Quoted(2.12, 129876)),
        _row("C2T", f"beta={BETA:g}", c2t, 5.46, Quoted(2.12, 116694)),
        Row("C2T", f"{(same := nearest(points, dynamic['DyJoint'])).label} (nearest DyJoint)", same),
    ]
    return of_policies(
        "C2T, table 3: chain mode",
        rows,
        [
            all_of(
                "C2T retains an advantage in chain mode",
                [
                    below("", f"gamma over that of {name} at its tau", at_equal_tau(points, [goal], goal))
                    for name, goal in goals.items()
                ],
            ),
            below(
                "stopping by joint probability is better than a fixed length",
                "gamma of DyJoint over that of fixed chains at its tau",
                at_equal_tau(
                    [dynamic["DyJoint"]], [study.count(Chain(n)) for n in (2, 3, 4)] + chains, dynamic["DyJoint"]
                ),
            ),
        ],
        [f"classifier: {study.settings.training} settings; dynamic chains have at most 10 drafted tokens"],
    )


def _row(method: str, setting: str, counted: Counted, printed: float, quote: Quoted) -> Row:
    return Row(method, setting, counted, quote, {"avg length": length(counted), "paper: avg length": printed})


REPORTS = {"table3": Reproduction(table3)}
