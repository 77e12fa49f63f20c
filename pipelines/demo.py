"""Show in a minute or two, on a real language model (or, quicker, on the toy pair), how c2t is used:

    python -m pipelines.demo [PAIR]

The model answers questions plainly and with trees, which give the same text in fewer forwards. Then a
classifier is made, as a user makes one, and compared with others on prompts that it has not seen.
"""

import contextlib
import io
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
import typer

from c2t.classifier import TreeClassifier
from c2t.cli.app import app
from c2t.cli.stream import TextStream
from c2t.decoder import Output, SpeculativeDecoder
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.output.progress import progress_bar
from c2t.output.tables import table, watched
from c2t.policies.plain import Plain
from c2t.policies.spec import parse
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.storage.paths import CLASSIFIER as PART
from c2t.storage.paths import DEFAULT_PAIR, find
from pipelines.terminal import errors_in_one_line

DATA, CLASSIFIER = "data/harvest/demo", "checkpoints/local/demo/classifier"
PLAIN = "plain decoding"  # the row of the table that the others are compared with
NGRAMS = "n-grams"  # how the names of those rows end whose draft is mixed with n-grams of the text


class Demo(NamedTuple):
    """Settings of the demo on a pair.

    trees: the policy of the answers. compared: the policies of the table next to plain decoding, by their names
    there; those in `NGRAMS` mix n-grams of the text into the draft. harvest: options. prompts: of the bench, for the
    table. new: tokens of a text at most.
    """

    questions: Sequence[str]
    trees: str
    compared: Mapping[str, str]
    harvest: str
    prompts: int
    new: int


DEMOS = {
    "smollm2": Demo(
        questions=(
            "Janet has 3 apples and buys 5 more. How many apples does she have now?",
            "Write a Python function that checks whether a number is even.",
            "What is the capital of France, and what is it known for?",
        ),
        trees="c2t:beta=0.5,K=6,W=6,levels=3",
        compared={
            "threshold 0.1, n-grams": "threshold:threshold=0.1,K=6,W=6,levels=3",
            "threshold 0.1": "threshold:threshold=0.1,K=6,W=6,levels=3",
            "EAGLE-2, 8 tokens": "eagle2:N=8,K=4,levels=3",
            "C2T, beta = 0.2": "c2t:beta=0.2,K=6,W=6,levels=3",
        },
        harvest="--limit 24 --max-new-tokens 64 --temperature 0 --k 6 --levels 6",
        prompts=6,
        new=80,
    ),
    "tiny": Demo(
        questions=("def read_lines(path):\n    ", ">>> import math\n>>> ", "Return the number of "),
        trees="c2t:beta=0.1,K=6,W=6,levels=3",
        compared={
            "threshold 0.1, n-grams": "threshold:threshold=0.1,K=6,W=6,levels=3",
            "threshold 0.1": "threshold:threshold=0.1,K=6,W=6,levels=3",
            "EAGLE-2, 8 tokens": "eagle2:N=8,K=4,levels=3",
            "C2T, beta = 0.1": "c2t:beta=0.1,K=6,W=6,levels=3",
        },
        harvest="--limit 24 --max-new-tokens 48 --temperature 0 --k 6 --levels 6",
        prompts=6,
        new=48,
    ),
}


class Timed(NamedTuple):
    """A text and the seconds that it took."""

    output: Output
    seconds: float

    @property
    def speed(self) -> float:
        """New tokens per second."""
        return self.output.total.new_tokens / self.seconds

    @property
    def forwards(self) -> int:
        """Forwards of the target: the prompt's, and one a round."""
        return 1 + self.output.total.rounds


def main(pair: Annotated[Literal["smollm2", "tiny"], typer.Argument(help="The pair.")] = DEFAULT_PAIR) -> None:
    """Show what c2t does on a pair of models: answers, the making of a classifier, a comparison."""
    demo, loaded = DEMOS[pair], load_pair(pair)
    print(f"{loaded.name} on {loaded.target.device}, {torch.get_num_threads()} threads, temperature 0")
    if find(pair, PART):
        answer(loaded, demo, pair)
        make_classifier(pair, demo)
    else:  # the answers wait for the one that is made here
        make_classifier(pair, demo)
        answer(loaded, demo, CLASSIFIER)
    compare(loaded, demo)


def answer(pair: Pair, demo: Demo, classifier: str) -> None:
    """Answer each question twice, plainly and with C2T's trees."""
    print("\n== The same text in fewer forwards ==")
    print("A draft model guesses; a classifier of 241 parameters picks the best guesses; the model checks")
    print("those in one forward. " + "Guesses that it accepted are green." * watched())
    learned = parse(demo.trees, lambda *_: TreeClassifier.from_pretrained(classifier))
    for policy in (Plain(), learned):
        SpeculativeDecoder(pair, policy).warm_up()
    for number, question in enumerate(demo.questions, 1):
        print(f"\n{number}. {question.strip()}\n\n[plain decoding]")
        plain = decode(pair, Plain(), question, demo.new, stream=True)
        print(f"   {plain.speed:.0f} tokens/s, {plain.forwards} forwards\n\n[with learned trees]")
        trees = decode(pair, learned, question, demo.new, stream=True)
        same = "the same text" if trees.output.sequences == plain.output.sequences else "ANOTHER TEXT"
        times = plain.seconds / trees.seconds
        print(f"   {trees.speed:.0f} tokens/s, {trees.forwards} forwards: {same}, {times:.2f} times the speed")


def make_classifier(pair: str, demo: Demo) -> None:
    """Harvest and train in small, by the commands that a user gives."""
    print("\n== How such a classifier is made ==")
    print("Harvest: the model generates texts, and the draft guesses along them. Every guess becomes a row:")
    print("its probability, the entropy of its distribution, its depth, and whether the model accepted it.")
    rows = command("harvest", "--pair", pair, "--out", DATA, "--overwrite", *demo.harvest.split())
    print(f"   {rows['rows']:,} guesses, of which {rows['positives']:,} were accepted")
    print("Train: the network learns from the rows which guesses will be accepted.")
    fit = command("train", DATA, "--out", CLASSIFIER, "--overwrite", "--negatives", "20", "--lr", "0.01")
    print(f"   {fit['steps']:,} steps in {fit['seconds']:.0f} s")


def compare(pair: Pair, demo: Demo) -> None:
    """Decode unseen prompts with every policy in turn, and print their speed, the fastest first."""
    print("\n== On prompts that the new classifier has not seen ==")
    classifier = TreeClassifier.from_pretrained(CLASSIFIER)
    mixed = with_ngrams(pair)
    ways = {PLAIN: (pair, Plain())}
    for label, spec in demo.compared.items():
        ways[label] = mixed if label.endswith(NGRAMS) else pair, parse(spec, lambda *_: classifier)
    files = default_prompts(pair.name, "bench")
    prompts = spread([prompt for file in files for prompt in read_prompts(file)], demo.prompts)
    runs: dict[str, list[Timed]] = {label: [] for label in ways}
    with progress_bar("compare", "prompts") as report:
        for number, prompt in enumerate(prompts):
            for label, (drafting, policy) in ways.items():
                report(number, len(prompts), label)
                runs[label].append(decode(drafting, policy, prompt.turns[0], demo.new))
    plain, ranked = runs[PLAIN], sorted(runs, key=lambda label: seconds(runs[label]))
    columns = ["way to decode", "same text", "forwards", "tokens/s", "x plain"]
    table(f"{len(prompts)} prompts", columns, [[label, *row(runs[label], plain)] for label in ranked])
    print("same text: texts equal to plain decoding's. forwards: of the model; each adds one token, and one more for")
    print("each guess that it accepts. threshold: of a guess's probability by the draft; beta: of the classifier's.")
    print('Next: c2t tune --ngrams finds what is fastest on your machine; c2t generate --tuned "..." uses it.')


def seconds(run: Sequence[Timed]) -> float:
    """Return the seconds of all texts of a run."""
    return sum(timed.seconds for timed in run)


def row(run: Sequence[Timed], plain: Sequence[Timed]) -> list[Any]:
    """Return the figures of a policy's row: same text, forwards, tokens/s, speed over plain decoding."""
    same = sum(t.output.sequences == p.output.sequences for t, p in zip(run, plain, strict=True))
    tokens, times = sum(timed.output.total.new_tokens for timed in run), seconds(plain) / seconds(run)
    forwards = sum(timed.forwards for timed in run)
    return [f"{same} of {len(run)}", forwards, f"{tokens / seconds(run):.0f}", f"{times:.2f}"]


def decode(pair: Pair, policy: Any, prompt: str, new: int, stream: bool = False) -> Timed:
    """Decode a prompt at temperature 0 and measure the time; `stream`: show the text."""
    decoder = SpeculativeDecoder(pair, policy)
    screen = TextStream(decoder, new)
    start = time.perf_counter()
    output = decoder.generate(prompt, new, watch=screen if stream else lambda step: None)
    took = time.perf_counter() - start
    if stream:
        screen.end()
    return Timed(output, took)


def command(*arguments: str) -> dict[str, Any]:
    """Print a command of c2t, run it in this process, which has imported what it needs, and return its figures; its
    tables stay unseen, its progress bar does not."""
    print(f"\n$ c2t {shlex.join(arguments)}", flush=True)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = app([*arguments, "--json", "-"], standalone_mode=False)
    if code:
        raise SystemExit(code)
    return json.loads(output.getvalue().splitlines()[-1])["figures"]


if __name__ == "__main__":
    with errors_in_one_line("pipelines.demo"):
        typer.run(main)
