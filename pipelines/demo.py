"""The main job on the toy pair, in the order in which a user does it: harvest, train, decode, compare."""

import shlex
import subprocess
import sys
from pathlib import Path

DATA = "data/harvest/demo"
CLASSIFIER = "checkpoints/local/demo/classifier"
PROMPT = "def read_lines(path):\n    "
POLICIES = "plain,eagle2:N=15,eagle2:N=26,eagle2:N=60,c2t:beta=0.3,c2t:beta=0.1,c2t:beta=0.05"

STEPS = (
    (
        """Harvest. The target writes texts; in each round the draft proposes a full tree, and every drafted token
becomes a row: its joint probability, the entropy it was drawn at, its depth, and whether the target accepted it.""",
        ["harvest", "--pair", "tiny", "--out", DATA, "--overwrite", "--limit", "36", "--max-new-tokens", "64"],
    ),
    (
        "Train. A network of 241 parameters learns from the rows which drafted tokens will be accepted.",
        ["train", DATA, "--out", CLASSIFIER, "--overwrite", "--negatives", "20", "--lr", "0.01"],
    ),
    (
        "Decode. The classifier prunes the trees; the text is the target's own, token for token.",
        ["generate", PROMPT, "--pair", "tiny", "--classifier", CLASSIFIER, "--max-new-tokens", "48"],
    ),
    (
        """Compare, on prompts that the classifier has not seen: plain decoding, EAGLE-2's trees of fixed size, and
trees pruned by the fresh classifier at three thresholds.""",
        [
            "bench",
            "--pair",
            "tiny",
            "--classifier",
            CLASSIFIER,
            "--policies",
            POLICIES,
            "--limit",
            "36",
            "--timed",
            "4",
        ],
    ),
)

LEGEND = """How to read the table: a round is one forward of the target. tau is how many drafted tokens it accepts on
average (more is faster), gamma how many tokens it had to look at for that (fewer is cheaper), passes/round how
often the draft ran. A learned tree should reach the same tau with a smaller gamma: that is what a round costs on a GPU
under load. "x plain" is the measured speed against decoding without a draft, by the same code on this machine."""


def main() -> None:
    for number, (what, arguments) in enumerate(STEPS, 1):
        print(f"\n{number}. {what}\n\n$ c2t {shlex.join(arguments)}", flush=True)
        code = subprocess.run([Path(sys.executable).with_name("c2t"), *arguments]).returncode
        if code:
            sys.exit(code)
    print(LEGEND)


if __name__ == "__main__":
    main()
