"""The page in a real browser: it draws, moves and prunes without an error, and its numbers are Python's.

Needs Playwright's package and Debian's Chromium (or another of BROWSERS); each test is skipped where one is missing.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.models.loading.load import Pair, load_pair
from c2t.policies import C2T, Eagle2, JointThreshold, OptTree, Plain
from c2t.protocols import NextTokenDistributions, Policy, Root
from c2t.tree import Nodes, Tree
from c2t.viewer.page import page
from c2t.viewer.recording import path_to
from c2t.viewer.server import EVENTS, LiveServer
from c2t.viewer.view import Viewer
from tests.marks import slow_except
from tests.rounding import as_printed, assert_same_sums
from tests.viewer.documents import columns, decoded
from tests.viewer.test_page import HOSTILE, ratio, with_text

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
EXECUTABLE = next(filter(None, map(shutil.which, BROWSERS)), None)

Open = Callable[..., Any]  # opens a file or an address and returns Playwright's page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if EXECUTABLE is None:
        pytest.skip("no browser: install Debian's chromium (apt-get install chromium)")
    with playwright.sync_playwright() as run:
        # Its sandbox needs a user of its own, which a container's root is not.
        started = run.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Open pages; at the end, none of them has complained or asked another address for anything."""
    said, asked, contexts = [], [], []

    def open_page(address: str, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": 1400, "height": 900}, **settings)
        contexts.append(context)
        one = context.new_page()
        one.on("console", lambda message: said.append(message.text))
        one.on("pageerror", lambda error: said.append(str(error)))
        one.on("request", lambda request: asked.append(request.url))
        one.goto(address)
        return one

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [address for address in asked if not address.startswith(("file://", "http://127.0.0.1:"))] == []


@pytest.fixture(scope="module")
def tiny() -> Pair:
    return load_pair("tiny", dtype=torch.float32)


@pytest.fixture(scope="module")
def learned() -> C2T:
    return C2T(TreeClassifier.from_pretrained("tiny"), beta=0.2)


@pytest.fixture(scope="module")
def compared(tiny: Pair, learned: C2T) -> Viewer:
    return decoded(tiny, learned, Eagle2(K=5, levels=4, N=20), new=40)


@pytest.fixture
def view(compared: Viewer, opened: Open, tmp_path: Path) -> Any:
    """The page at its first round."""
    view = opened(written(compared.document, tmp_path))
    view.keyboard.press("Home")
    return view


def test_it_opens_at_the_round_with_the_longest_accepted_path(compared: Viewer, opened: Open, tmp_path: Path) -> None:
    lengths = [len(each["accepted"]) for each in compared.document["policies"][0]["rounds"]]
    at = 1 + lengths.index(max(lengths))
    assert at > 1
    assert opened(written(compared.document, tmp_path)).inner_text("#number") == f"Round {at} of {len(lengths)}"


def written(document: dict, folder: Path) -> str:
    """Write a page; return its address."""
    file = folder / "tree.html"
    file.write_text(page(document), encoding="utf-8")
    return file.as_uri()


def test_rounds_are_walked_by_slider_keys_bars_text_and_play(view: Any, compared: Viewer) -> None:
    rounds = compared.document["policies"][0]["rounds"]

    def shown() -> str:
        return view.inner_text("#number")

    def drawn() -> int:
        return view.locator("figure >> nth=0").locator(".node.kept, .node.accepted").count()

    assert shown() == f"Round 1 of {len(rounds)}"
    view.keyboard.press("ArrowRight")
    view.keyboard.press("ArrowRight")
    assert shown() == f"Round 3 of {len(rounds)}"
    assert drawn() == len(rounds[2]["kept"])
    assert view.locator("figure >> nth=0").locator(".node.accepted").count() == len(rounds[2]["accepted"])
    view.keyboard.press("End")
    assert shown() == f"Round {len(rounds)} of {len(rounds)}"
    past = len(rounds[-1]["tokens"]) - rounds[-1]["shown"]
    assert (f"{past} token" in view.text_content("#summary")) == (past > 0)
    view.fill("#slider", "2")
    assert shown() == f"Round 2 of {len(rounds)}"
    view.focus("#slider")
    view.keyboard.press("ArrowRight")
    assert shown() == f"Round 3 of {len(rounds)}"
    assert view.get_attribute("#slider", "aria-valuetext") == f"round 3 of {len(rounds)}"
    view.locator("#bars > div").nth(4).click()
    assert shown() == f"Round 5 of {len(rounds)}"
    view.locator("#answer .round i").first.click()
    assert shown() == f"Round 1 of {len(rounds)}"
    assert f"Round 1 wrote “{''.join(rounds[0]['pieces'])}”" in view.text_content("#summary")
    assert view.get_attribute("#summary", "aria-live") == "polite"
    view.click("#play")
    playwright.expect(view.locator("#number")).to_have_text(re.compile(r"Round ([2-9]|\d\d) of"))
    assert view.inner_text("#play") == "Pause"
    view.click("#play")
    assert view.inner_text("#play") == "Play"


def test_the_text_is_the_text_and_accepted_tokens_are_coloured(view: Any, compared: Viewer) -> None:
    parts = [compared.document["policies"][0]["first"], *compared.document["policies"][0]["rounds"]]
    assert view.text_content("#answer") == "".join(piece for part in parts for piece in part["pieces"][: part["shown"]])
    coloured = view.evaluate("document.querySelectorAll('#answer i[style]').length")
    assert coloured == sum(min(len(part["accepted"]), part["shown"]) for part in parts[1:])


def test_a_node_tells_its_numbers_by_pointer_and_by_keyboard(view: Any, compared: Viewer) -> None:
    [content] = compared.document["policies"][0]["rounds"][:1]
    found, node = columns(content), content["accepted"][0]
    view.locator("figure >> nth=0").locator(f'[data-node="{node}"]').hover()
    facts = dict(zip(view.locator("dt").all_text_contents(), view.locator("dd").all_text_contents(), strict=False))
    assert facts["token id"] == str(found["token"][node])
    probabilities = {"draft, this token": "log_prob", "draft, whole path": "log_joint", "target, this token": "target"}
    for name, column in probabilities.items():
        assert float(facts[name].rstrip(" %")) == as_printed(100 * np.exp(found[column][node]), 1)
    assert facts["depth"] == "0"
    assert facts["entropy"] == f"{found['entropies'][0]:.2f} nats"
    assert facts["beta"] == "0.200"
    assert "Accepted: it is the target" in view.text_content("#facts")
    view.locator("figure >> nth=0").locator('[tabindex="0"]').focus()
    assert "the round starts here" in view.text_content("#facts")
    view.keyboard.press("ArrowRight")
    assert view.evaluate("document.activeElement.getAttribute('role')") == "treeitem"
    assert view.evaluate("Number(document.activeElement.dataset.node)") == node
    assert "Accepted" in view.evaluate("document.activeElement.getAttribute('aria-label')")
    view.keyboard.press("ArrowDown")
    assert view.evaluate("Number(document.activeElement.dataset.node)") != node
    view.keyboard.press("ArrowLeft")
    assert view.evaluate("document.activeElement.dataset.node") == "0"
    assert view.inner_text("#number").startswith("Round 1 "), "keys in the tree do not turn the round"


def test_pruned_candidates_tell_why(view: Any) -> None:
    view.select_option("#pruned", "0")
    pruned = view.locator("figure >> nth=0").locator(".node.faint")
    labels = pruned.evaluate_all("nodes => nodes.map((node) => node.getAttribute('aria-label'))")
    assert len(labels) > 50
    assert all("pruned: confidence" in label and "< beta 0.200" in label for label in labels)
    other = view.locator("figure >> nth=1").locator(".node.faint").first.get_attribute("aria-label")
    assert "the least of the 19 kept" in other


@pytest.mark.parametrize(("nodes", "delta"), [(1, 0.0), (60, 1.0)], ids=["no node", "fewer than N"])
def test_the_reason_counts_what_was_kept(tiny: Pair, opened: Open, tmp_path: Path, nodes: int, delta: float) -> None:
    document = decoded(tiny, OptTree(N=nodes, delta=delta), new=6).document
    view = opened(written(document, tmp_path))
    view.keyboard.press("Home")
    view.select_option("#pruned", "0")
    labels = view.locator(".node").evaluate_all("nodes => nodes.map((node) => node.getAttribute('aria-label'))")
    kept = len(document["policies"][0]["rounds"][0]["kept"])
    assert not any("Infinity" in label for label in labels)
    assert any(f"among the {kept} most probable paths" in label for label in labels) == (kept > 0)


def test_moving_beta_shows_what_the_round_would_have_cost(view: Any, compared: Viewer) -> None:
    decoded_with = len(compared.document["policies"][0]["rounds"][0]["kept"]) + 1
    figure = view.locator("figure >> nth=0")
    assert "as decoded" in figure.inner_text()
    figure.locator("input").fill("0.995")
    assert f"verified with the root (decoded: {decoded_with})" in figure.inner_text()
    said = int(figure.locator(".funnel b").nth(1).inner_text())
    assert figure.locator(".node.kept, .node.accepted").count() == said - 1
    assert "at 0.995: " in view.text_content("#summary"), "for who does not see the figure"
    figure.get_by_role("button", name="As decoded").click()
    assert figure.locator(".funnel b").nth(1).inner_text() == str(decoded_with)
    figure.locator("input").focus()
    view.keyboard.press("ArrowRight")
    assert "0.205" in figure.inner_text()
    assert "Tokens under a pruned one were never drafted" in figure.inner_text()
    figure.locator("input").fill("0.005")
    assert "Incomplete: of " in figure.inner_text()


@pytest.mark.slow
def test_both_trees_hold_the_same_token(view: Any, compared: Viewer) -> None:
    assert "same text" in view.inner_text("#totals")
    view.keyboard.press("ArrowRight")
    view.keyboard.press("ArrowRight")
    starts = view.evaluate("views.map((view) => written(view.policy).starts)")
    one, other = view.evaluate("views.map((view) => view.number)")
    assert one == 2
    ends = [*starts[1], 10**9]
    assert ends[other] <= starts[0][one] < ends[other + 1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen(
    compared: Viewer, opened: Open, tmp_path: Path, scheme: str
) -> None:
    view = opened(written(compared.document, tmp_path), color_scheme=scheme)

    def dark() -> bool:
        return view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"

    assert dark() == (scheme == "dark")
    view.click("#theme")
    assert dark() != (scheme == "dark")
    view.click("#theme")
    assert dark() == (scheme == "dark")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_in_trees_are_readable(compared: Viewer, opened: Open, tmp_path: Path, scheme: str) -> None:
    """At least 4.5 to 1 (WCAG AA) for words on their ground; confidence can be told by lightness alone."""
    view = opened(written(compared.document, tmp_path), color_scheme=scheme)
    script = """colour => {
        const probe = document.body.appendChild(document.createElement("b"));
        probe.style.color = colour;
        const pen = document.createElement("canvas").getContext("2d");
        pen.fillStyle = getComputedStyle(probe).color;
        probe.remove();
        pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }"""

    def contrast(words: str, ground: str) -> float:
        return ratio(view.evaluate(script, words), view.evaluate(script, ground))

    style = "node => ['text', 'rect'].map((name) => getComputedStyle(node.querySelector(name)).fill)"
    view.select_option("#pruned", "2")
    for more in view.locator(".more").all():
        words = more.evaluate("text => getComputedStyle(text).fill")
        assert contrast(words, "var(--paper)") >= 4.5, "how many further children a node has"
    assert view.locator(".more").count()
    node = view.locator(".node.kept").first
    for percent in range(0, 101, 3):
        node.evaluate("(node, strength) => node.style.setProperty('--strength', strength)", percent / 100)
        assert contrast(*node.evaluate(style)) >= 4.4, f"{percent} %"  # black and white cannot do better in the middle


@pytest.mark.parametrize("text", slow_except(HOSTILE, HOSTILE[0]))
def test_text_of_a_model_is_shown_and_not_obeyed(opened: Open, tmp_path: Path, text: str) -> None:
    view = opened(written(with_text(text), tmp_path))
    shown = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert view.text_content("#answer").encode("utf-16", "surrogatepass").decode("utf-16", "replace") == shown
    assert view.locator("script").count() == 4


@pytest.mark.slow
def test_a_text_without_trees(tiny: Pair, opened: Open, tmp_path: Path) -> None:
    view = opened(written(decoded(tiny, Plain(), new=3).document, tmp_path))
    assert view.locator(".node.bonus").count() == 1
    view = opened(written(decoded(tiny, Plain(), new=1).document, tmp_path))
    assert view.inner_text("#number") == "No round yet"


def test_live_rounds_end_as_the_document(compared: Viewer, opened: Open) -> None:
    settings = {"max_new_tokens": 40, "sampling": compared.sampling, "chat": False}
    viewer = Viewer(compared.pair, compared.policies, compared.document["prompt"], **settings)
    with LiveServer(page(viewer.document, live=EVENTS)) as server:
        view = opened(server.address)
        assert "decoding" in view.inner_text("#what")
        for event in viewer.events():
            server.send(event)
        server.end()
        playwright.expect(view.locator("body")).to_have_attribute("data-live", "", timeout=30_000)
        kept = [[one["kept"] for one in policy["rounds"]] for policy in viewer.document["policies"]]
        assert view.evaluate("doc.policies.map((p) => p.rounds.map((r) => r.kept))") == kept
        assert view.inner_text("#number") == "Round {0} of {0}".format(len(viewer.document["policies"][0]["rounds"]))


# --- The page's numbers are Python's


class MemoryDraft:
    """Draft that knows the candidates of a recorded round, and none elsewhere."""

    def __init__(self, content: dict):
        found = columns(content)
        self.families: dict[tuple[int, ...], tuple] = {}
        paths: list[tuple[int, ...]] = [()]
        for parent, size, entropy in zip(found["parents"], found["sizes"], found["entropies"], strict=True):
            place = slice(len(paths), len(paths) + size)
            tokens = found["token"][place].tolist()
            self.families[paths[parent]] = (tokens, found["log_prob"][place].tolist(), float(entropy))
            paths += [(*paths[parent], token) for token in tokens]
        self.paths = paths

    def expand(self, tree: Tree, slots: Tensor) -> NextTokenDistributions:
        return MemoryDistributions([self.families.get(path_to(tree, slot)) for slot in slots[0].tolist()])


class MemoryDistributions(NextTokenDistributions):
    def __init__(self, families: list):
        super().__init__(torch.zeros(1, len(families), 1))
        self.families = families

    def topk_entropy(self, k: int, m: int | None) -> tuple[Tensor, Tensor, Tensor]:
        nothing = ([0] * k, [float("-inf")] * k, 0.0)
        token, log_prob, entropy = zip(*(family or nothing for family in self.families), strict=True)
        return torch.tensor([token]), torch.tensor([log_prob]), torch.tensor([entropy])


def regrown(policy: Policy, content: dict) -> list[int]:
    """Return the candidates that a policy keeps of a recorded round, by their numbers."""
    draft, zero = MemoryDraft(content), torch.zeros(1, dtype=torch.long)
    tree = policy(draft, Root(zero, zero))
    number = {path: node for node, path in enumerate(draft.paths)}
    return sorted(number[path_to(tree, slot)] for slot in range(1, tree.size))


@pytest.mark.parametrize("label", ["accepted", "accepted_given_parent"])
@pytest.mark.parametrize("width", [15, 4, None], ids=str)
def test_confidence_and_pruning_are_those_of_python(
    tiny: Pair, opened: Open, tmp_path: Path, label: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = TreeClassifier.from_pretrained("tiny")
    if label != classifier.config.label:
        classifier.config = ClassifierConfig(label=label, M=classifier.config.M)
    policy = C2T(classifier, beta=0.2, W=width, K=8)
    computed: list[Tensor] = []

    def watched(self: C2T, children: Nodes, parent_score: Tensor) -> Tensor:
        computed.append(original(self, children, parent_score))
        return computed[-1]

    original = C2T.confidence
    monkeypatch.setattr(C2T, "confidence", watched)
    document = decoded(tiny, policy, new=32).document
    monkeypatch.undo()
    view = opened(written(document, tmp_path))
    script = """([number, beta]) => {
        const policy = doc.policies[0], round = Rounds.read(policy.rounds[number], policy);
        const { kept, verified, unseen } = Rounds.prune(round, beta, policy.limits);
        return [Array.from(round.confidence), [...kept.keys()].filter((node) => node && kept[node]), verified, unseen];
    }"""
    expected = torch.cat([confidence[0] for confidence in computed]).tolist()
    complete = 0
    for number, content in enumerate(document["policies"][0]["rounds"]):
        for beta in (0.2, 0.25, 0.4, 0.7, 0.95, 0.1, 0.02):
            [_, *confidence], kept, verified, unseen = view.evaluate(script, [number, beta])
            assert kept == regrown(replace(policy, beta=beta), content)
            assert verified == len(kept) + 1
            complete += not unseen
            if beta == policy.beta:
                assert kept == content["kept"]
                assert_same_sums(torch.tensor(confidence), expected[: len(confidence)], 100)
                del expected[: len(confidence)]
    assert not expected, "every candidate was compared"
    assert complete >= 5 * len(document["policies"][0]["rounds"]) or width == 4


def test_the_accepted_path_of_another_beta_is_that_of_decoding_with_it(
    tiny: Pair, opened: Open, tmp_path: Path
) -> None:
    """The first round starts at the same token, whatever the policy."""
    low, high = (JointThreshold(threshold) for threshold in (0.001, 0.05))
    recorded, other = (decoded(tiny, policy, new=32).document["policies"][0]["rounds"][0] for policy in (low, high))
    view = opened(written(decoded(tiny, low, new=32).document, tmp_path))
    view.keyboard.press("Home")
    kept, path = view.evaluate(
        """(threshold) => {
            const view = views[0];
            view.moved = threshold;
            const { kept, path } = result(view);
            return [kept.reduce((sum, one) => sum + one, 0), path.length];
        }""",
        0.05,
    )
    assert (kept, path) == (len(other["kept"]) + 1, len(other["accepted"]))
    assert len(other["kept"]) < len(recorded["kept"])
