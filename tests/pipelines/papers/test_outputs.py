"""The classifier as a function, on one whose output is known."""

import numpy as np
import torch

from c2t.classifier import ClassifierConfig, TreeClassifier
from pipelines.papers import outputs
from pipelines.papers.study import Study
from tests.pipelines.papers.small_study import check
from tests.rounding import assert_same_sums, figure


def only_p() -> TreeClassifier:
    """Its output before the sigmoid is 3 P."""
    classifier = TreeClassifier(ClassifierConfig(hidden=1))
    with torch.no_grad():
        classifier.hidden.weight.copy_(torch.tensor([[3.0, 0.0, 0.0]]))
        classifier.output.weight.fill_(1)
        for bias in (classifier.hidden.bias, classifier.output.bias):
            bias.zero_()
    return classifier


def test_figure9_finds_the_feature_that_matters(study: Study) -> None:
    report = check(outputs.figure9(study))
    assert [row[0] for row in report.rows] == ["P", "H", "d"]
    assert outputs.shares(only_p()) == {"P": figure(1), "H": figure(0), "d": figure(0)}


def test_figure10_reads_the_surfaces(study: Study) -> None:
    check(outputs.figure10(study))
    found = outputs.surfaces(only_p())
    expected = torch.sigmoid(3 * torch.tensor(outputs.AXES["P"])).numpy()
    assert_same_sums(found["H", 2].astype(np.float32), np.repeat(expected[:, None], 11, 1), 16)
    assert_same_sums(found["P", 0.5].astype(np.float32), np.full_like(found["P", 0.5], 1 / (1 + np.exp(-1.5))), 16)
    verdicts = [one.verdict for one in outputs.of_surfaces(found)]
    assert verdicts[0] == "holds"  # surfaces of P are apart
    assert verdicts[1] == verdicts[3] == verdicts[5] == "does not hold"  # neither H nor d does anything
