"""The classifier of a head that has just been trained: harvested and learned on questions that the head has not learned
from."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from c2t.drafting.train import TRAINING
from c2t.errors import InputError
from c2t.harvest.harvest import harvest
from c2t.harvest.settings import HarvestSettings
from c2t.models.loading.load import Pair
from c2t.models.loading.trained import classifier_of
from c2t.output.progress import ProgressCallback
from c2t.replay.prompts import Prompt
from c2t.training.fit import train
from c2t.training.result import Result
from c2t.training.settings import TrainSettings

TOGETHER = 8  # questions that are harvested between two looks at the clock
FEWEST = 16  # half of them validate, see `c2t.training.data`
MOST = 128


def train_classifier(
    pair: Pair,
    questions: Sequence[Prompt],
    until: float,
    settings: HarvestSettings = HarvestSettings(),
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Result:
    """Train C2T's network for the pair's head, and store it where commands look for that head's. until: of
    `time.monotonic`, where no more rows are harvested.

    InputError, with the older network left as it is, for too few questions, too little time, or rows that teach
    nothing.
    """
    head = Path(pair.sources["draft"][0])
    if len(questions) < FEWEST:
        raise InputError(f"{len(questions)} questions are too few, it needs {FEWEST}: give more --minutes or rows")
    rows = head.parent / TRAINING / "harvest"
    groups = [questions[first : first + TOGETHER] for first in range(0, min(len(questions), MOST), TOGETHER)]
    try:
        folders: list[Path] = []
        for group in groups:
            progress(len(folders) * TOGETHER, len(groups) * TOGETHER, "harvests")
            if time.monotonic() >= until:
                break
            folders.append(rows / str(len(folders)))
            harvest(pair, group, folders[-1], settings, overwrite=True)
        if len(folders) * TOGETHER < FEWEST:
            raise InputError(f"the time was too short for {FEWEST} questions: give more --minutes")
        return train(folders, classifier_of(head), TrainSettings(), overwrite=True)
    finally:
        shutil.rmtree(rows, ignore_errors=True)
