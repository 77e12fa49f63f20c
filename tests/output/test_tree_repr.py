"""Trees, rounds and results print in one line, however large they are, and draw themselves; texts stay texts."""

import re
import xml.etree.ElementTree as XML
from dataclasses import replace

import pytest
import torch

import c2t
from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.costs.statistics import Statistics
from c2t.decoder import Output, SpeculativeDecoder
from c2t.decoding import Step
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.output.tree_repr import LONGEST, MOST_NODES, label
from c2t.policies import Eagle2
from c2t.tree import Tree
from c2t.verify import Accepted

HOSTILE = '<script>alert("x")</script>&\x1b[31m'


class Hostile:
    """A tokenizer whose every token tries to become code."""

    def decode(self, tokens: list[int]) -> str:
        return HOSTILE if tokens[0] % 2 else "a b\n"


def comb(rows: int, width: int) -> Tree:
    """Roots with `width` children, of which the first has one more child."""
    tree = Tree.root(torch.arange(rows))
    token = torch.arange(width).expand(rows, 1, width)
    log_prob = torch.log_softmax(-token.float(), 2)
    tree = tree.extend(tree.children(torch.zeros(rows, 1).long(), token, log_prob, torch.ones(rows, 1)))
    below = tree.children(
        torch.ones(rows, 1).long(), token[..., :1] + 7, torch.full((rows, 1, 1), -0.5), torch.ones(rows, 1)
    )
    return tree.extend(below)


def step_of(tree: Tree) -> Step:
    """The round in which every row accepts the first child and its child."""
    rows = len(tree.token)
    path = torch.tensor([[0, 1, tree.size - 1]]).expand(rows, -1)
    ones = torch.ones(rows, dtype=torch.long)
    accepted = Accepted(path, 2 * ones, 5 * ones)
    return Step(torch.arange(rows), ones, tree, accepted, torch.zeros(rows, 3).long(), 3 * ones, ones)


@pytest.mark.parametrize("rows", [1, 3, 500])
def test_each_is_one_short_line(rows: int) -> None:
    tree = comb(rows, 200)
    statistics = Statistics(rows, 9, verified=[5] * 999, accepted=[1] * 999, passes=[2] * 999)
    texts = [HOSTILE * 99] * rows
    shown = [tree, replace(tree, alive=tree.alive), step_of(tree), statistics, TreeClassifier()]
    shown += [
        Output([[1]] * rows, texts, [statistics] * rows),
        Output([], [], []),
        tree.take(torch.zeros(rows, 2).long()),
    ]
    for each in shown:
        assert repr(each).startswith(type(each).__name__ + "(")
        assert len(repr(each)) < 200
        assert repr(each).isprintable()
    assert repr(tree).endswith("alive: 202)" if rows == 1 else "alive: 202 each)")
    assert "999 rounds, tau 1.00, gamma 5.0, 2.0 draft passes" in repr(statistics)


def test_a_classifier_says_its_network() -> None:
    deep = TreeClassifier(ClassifierConfig(hidden=8, layers=3, beta=0.25))
    assert "3 -> 48 -> 1, 241 parameters" in repr(TreeClassifier())
    assert "3 -> 8 -> 8 -> 1" in repr(deep)
    assert "beta 0.25" in repr(deep)


def test_a_tree_as_a_list_has_its_nodes_in_place() -> None:
    lines = repr(c2t.show(step_of(comb(2, 3)), row=1)).splitlines()
    assert lines[0] == "row 1 of 2: 4 drafted tokens, 2 accepted (green); then the target's own 5"
    assert [re.sub(r"  0\.\d\d$", "", line) for line in lines[1:]] == ["* 1", "*   0", "*     7", "    1", "    2"]


def drawing(html: str) -> XML.Element:
    """Return the parsed HTML; it is XML too."""
    return XML.fromstring(html)  # noqa: S314 - our own drawing


def test_texts_cannot_become_elements_or_controls() -> None:
    html = c2t.show(step_of(comb(1, 9)), Hostile())._repr_html_()
    kinds = {element.tag.rpartition("}")[2] for element in drawing(html).iter()}
    assert kinds == {"div", "svg", "g", "path", "text", "title"}
    assert "\x1b" not in html
    words = [element.text for element in drawing(html).iter() if element.tag.endswith("}text")]
    assert {"a\u00b7b\u21b5", label(HOSTILE)} == set(words)
    assert max(map(len, words)) == LONGEST


def test_the_drawing_has_every_node_of_a_small_tree_and_a_line_to_each_but_the_root() -> None:
    html = step_of(comb(1, 9))._repr_html_()
    tags = [element.tag.rpartition("}")[2] for element in drawing(html).iter()]
    assert tags.count("text") == 11
    assert tags.count("path") == 10
    bold = [e.text for e in drawing(html).iter() if e.get("font-weight")]
    assert bold == ["0", "0", "7"], "the root and the accepted path"


def test_a_large_tree_shows_the_accepted_and_the_most_probable_nodes() -> None:
    picture = c2t.show(step_of(comb(1, 500)))
    assert len(picture.nodes) == MOST_NODES
    assert picture.left_out == 502 - MOST_NODES
    assert sum(node.accepted for node in picture.nodes) == 3
    assert f"and {picture.left_out} less probable nodes" in repr(picture)
    assert f"and {picture.left_out} less probable nodes" in picture._repr_html_()


def test_dead_slots_are_not_drawn() -> None:
    tree = comb(1, 4)
    alive = tree.alive.clone()
    alive[0, 3] = False
    assert len(c2t.show(replace(tree, alive=alive)).nodes) == 5


def test_a_row_that_is_not_there_and_what_is_no_tree_are_refused() -> None:
    with pytest.raises(InputError, match="there are 2 rows"):
        c2t.show(comb(2, 3), row=2)
    with pytest.raises(InputError, match="not list"):
        c2t.show([1])


def test_steps_of_a_decoder_name_their_tokens(small_pair: Pair) -> None:
    steps: list[Step] = []
    decoder = SpeculativeDecoder(small_pair, Eagle2(N=9, K=3, levels=3))
    decoder.generate(["The sum of", "def add("], 8, watch=steps.append)
    first, second = steps[0], steps[1]
    name = label(small_pair.tokenizer.decode([int(first.tokens[0, 0])]))
    assert f"the first token is {name}" in first._repr_html_()
    picture = c2t.show(second)
    assert picture.nodes[0].text == name
    assert len(picture.nodes) == int(second.tree.sizes[0])
    assert sum(node.accepted for node in picture.nodes) == 1 + int(second.accepted.length[0])
    assert c2t.show(second.tree).nodes[0].text == str(int(first.tokens[0, 0]))
