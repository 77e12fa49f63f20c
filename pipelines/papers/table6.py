"""C2T's table 6: entropy over the M most probable tokens.

python -m pipelines.papers.table6 [--pair NAME]
"""

import warnings

from c2t.policies import C2T
from pipelines.papers.study import Study
from pipelines.papers.tables import Quoted, Report, Row, script
from pipelines.papers.verdicts import above, all_of, below, gamma_ratio, tau_ratio

PAPER = {
    100: Quoted(3.70, 815365),
    500: Quoted(3.89, 796981),
    1000: Quoted(3.92, 781613),
    10000: Quoted(3.92, 782104),
    None: Quoted(3.92, 781806),
}
CLOSE = 0.005  # the paper's tau and gamma at M = 1000 differ less from those of the whole vocabulary


def table(study: Study) -> Report:
    """C2T, table 6: M of the entropy."""
    classifier = study.classifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the classifier was trained with M = 1000 is the experiment
        found = {m: study.count(C2T(classifier, 0.5, M=m)) for m in PAPER}
    rows = [Row("C2T", f"M={m or 'all'}", one, PAPER[m]) for m, one in found.items()]
    equal = {
        "tau": tau_ratio(found[1000], found[None]),
        "gamma": gamma_ratio(found[1000], found[None]),
    }
    return Report(
        "C2T, table 6: entropy over the M most probable tokens",
        rows,
        [
            all_of(
                "M = 1000 is as good as the whole vocabulary",
                [
                    judge("", f"ratio of {name}, M = 1000 to all", one, 1 + sign * CLOSE)
                    for name, one in equal.items()
                    for judge, sign in ((below, 1), (above, -1))
                ],
            ),
            below("M = 100 costs tau", "ratio of tau, M = 100 to all", tau_ratio(found[100], found[None])),
            above("and tokens", "ratio of gamma, M = 100 to all", gamma_ratio(found[100], found[None])),
        ],
        [
            f"classifier: {study.settings.training} settings, trained with M = 1000; beta=0.5, K=W=15, 10 levels; "
            f"vocabulary of {study.pair.target.config.vocab_size} tokens"
        ],
    )


if __name__ == "__main__":
    script("table6", table)
