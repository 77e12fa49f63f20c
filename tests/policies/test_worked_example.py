"""The policy with a session of docs/adding_a_policy.md: rows that come and go, and replay."""

from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from c2t import Eagle2, SpeculativeDecoder, load_pair
from c2t.batching import BatchDecoder
from c2t.decoding import Step
from c2t.replay.lockstep import replay, write_continuations
from c2t.sampling import Sampling
from c2t.verification.target_verifier import generate

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_policy.md"


def sizes(steps: list[Step]) -> list[list[int] | None]:
    return [step.tree.sizes.tolist() if step.tree is not None else None for step in steps]


def test_a_session_follows_its_rows_and_is_replayed() -> None:
    document = Sybil([PythonCodeBlockParser()]).parse(PAGE)
    [example] = [example for example in document.examples() if "class LatelySession" in str(example.parsed)]
    example.evaluate()
    pair, full = load_pair("tiny"), Eagle2(K=4, levels=5, N=20)
    policy = document.namespace["Lately"](full)

    prompts = [pair.tokenizer(text).input_ids for text in ("def main():", "import os", "class Tree:")]
    decoder = SpeculativeDecoder(pair, policy)
    together = decoder.generate(prompts, max_new_tokens=24)
    assert together.total.gamma < SpeculativeDecoder(pair, full).generate(prompts, max_new_tokens=24).total.gamma

    batch = BatchDecoder(pair, policy, max_rows=2)
    requests = [batch.submit(prompt, 24) for prompt in prompts]
    while batch.step():
        pass
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.tokens == decoder.generate([prompt], max_new_tokens=24).sequences[0]

    texts = write_continuations(pair.target, prompts, max_new_tokens=24, beyond=6, sampling=Sampling())
    live = generate(pair.target, pair.draft, policy, prompts, max_new_tokens=24, sampling=Sampling())
    assert sizes(list(live))[:4] == sizes(list(replay(pair.draft, policy, texts)))[:4]
