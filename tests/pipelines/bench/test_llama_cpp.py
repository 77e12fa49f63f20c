"""llama.cpp in a process of its own: what is asked of it, what comes back, and when it is left out. A module in place
of node-llama-cpp counts up from the prompt's last token; where the real one is installed, it is asked too."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from c2t.errors import InputError
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target import gguf_target
from c2t.sampling import Sampling
from pipelines.bench import llama_cpp as module
from pipelines.bench.contenders import Task
from pipelines.bench.llama_cpp import missing, start
from pipelines.bench.programs import Program

HAS_NODE = shutil.which("node") is not None
with_node = pytest.mark.skipif(not HAS_NODE, reason="Node is not installed")
COUNTING = """
import {appendFileSync} from "node:fs";
export class InputLookupTokenPredictor {
    constructor(options) { this.most = options.predictionLength.max; }
    updateInputTokens(tokens) { this.input = tokens; }
}
const context = {getSequence: ({tokenPredictor}) => ({
    async *evaluate(prompt, options) {
        const seen = {prompt, ...options, most: tokenPredictor?.most, input: tokenPredictor?.input};
        appendFileSync(LOG, JSON.stringify(seen) + "\\n");
        for (let token = prompt.at(-1) + 1; ; token++) yield token;
    },
    dispose() {}
})};
const model = {createContext: async (options) => {
    appendFileSync(LOG, JSON.stringify(options) + "\\n");
    return context;
}};
export const getLlama = async () => ({systemInfo: "none", loadModel: async () => model});
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the module in place of node-llama-cpp was asked."""
    library = tmp_path / "node-llama-cpp" / "dist" / "index.mjs"
    library.parent.mkdir(parents=True)
    library.write_text(COUNTING.replace("LOG", json.dumps(str(tmp_path / "log"))))
    monkeypatch.setattr(module, "library", lambda: library)
    monkeypatch.setattr(gguf_target, "installed", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(gguf_target, "check_file", lambda path: None)
    return tmp_path / "log"


@pytest.fixture
def ways(log: Path) -> Iterator[list[Program]]:
    pair = SimpleNamespace(target=SimpleNamespace(max_positions=64))
    with start(pair) as found:
        yield [way for rivals in found.values() for way in rivals]


@with_node
def test_texts_end_at_the_limit_or_with_the_callers_eos(ways: list[Program], log: Path) -> None:
    assert [way.name for way in ways] == ["llama.cpp", *3 * ["llama.cpp, prompt lookup"]]
    for way in ways:
        written = way.write([[3, 4]], [7], Task(5, Sampling(0.5), frozenset({0, 8})))
        assert written.tokens == [[5, 6, 7, 8]]
        assert 0 < written.first < written.seconds
        assert way.write([[3, 40]], [0], Task(3, Sampling(), frozenset({8}))).tokens == [[41, 42, 43]]
    context, first, second, looked_up, *_ = map(json.loads, log.read_text().splitlines())
    assert context["contextSize"] == 64
    drawn = {"temperature": 0.5, "seed": 7, "topK": 0, "topP": 1, "minP": 0, "yieldEogToken": True}
    assert first == {"prompt": [3, 4], **drawn}
    assert (second["temperature"], second["seed"]) == (0, 0)
    assert looked_up == {"prompt": [3, 4], **drawn, "most": 3, "input": [3, 4]}


@with_node
def test_a_process_that_fails_is_one_line(log: Path, ways: list[Program]) -> None:
    ways[0].process.kill()
    ways[0].process.wait()
    with pytest.raises(InputError, match=r"llama\.cpp ended with code -9; run it to see why: node ") as caught:
        ways[0].write([[3]], [0], Task(1, Sampling(), frozenset()))
    assert "\n" not in str(caught.value)


def test_why_it_is_left_out(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = SimpleNamespace(name=gguf_target.PAIR)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert missing(pair, 1) is None
    assert missing(pair, 2) == "it is measured on one text at a time"
    assert missing(SimpleNamespace(name="tiny"), 1) == "it reads GGUF, and the target of tiny is none"

    def refuse(path: Path) -> None:
        raise InputError("no such file")

    monkeypatch.setattr(gguf_target, "check_file", refuse)
    assert missing(pair, 1) == "no such file"
    module.library().unlink()
    assert f"get it with: {module.HOW_TO_GET}" in missing(pair, 1)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert missing(pair, 1) == "Node is not installed"


@with_node
@pytest.mark.slow
@pytest.mark.skipif(not module.library().is_file(), reason="node-llama-cpp is not installed")
@pytest.mark.skipif(not gguf_target.home().is_dir(), reason="the target of smollm2 is not installed")
def test_llama_cpp_itself_answers() -> None:
    pair: Pair = load_pair(gguf_target.PAIR)
    ids = pair.tokenizer("The capital of France is")["input_ids"]
    with start(pair) as found:
        for rivals in found.values():
            written = rivals[0].write([ids], [0], Task(2, Sampling(), pair.target.eos))
            assert pair.tokenizer.decode(written.tokens[0]).startswith(" Paris")
