"""The decoder that people load: a pair from disk, one prompt or several, as text or ids, and clear refusals."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from c2t import C2T, Eagle2, InputError, JointThreshold, Plain, SpeculativeDecoder
from c2t.costs.statistics import Statistics
from c2t.kernels.native import kernels
from c2t.policies import POLICIES, DySpec, MCSDPlus, Sequoia
from c2t.storage import paths
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.marks import slow_except
from tests.toys import FAMILIES, PROMPTS, SIZES, language_model, save_language_model, toy_classifier

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C2T_HOME whose pair "toy" has everything that a name can lead to."""
    root = tmp_path_factory.mktemp("home")
    pair = root / "checkpoints" / "toy"
    model = language_model(FAMILIES["llama"])
    model.generation_config.eos_token_id = 47
    save_language_model(pair / "target", model)
    write_head(pair / "draft", CONFIG, head_state(CONFIG))
    toy_classifier().save_pretrained(pair / "classifier")
    return root


@pytest.fixture
def decoder(home: Path, monkeypatch: pytest.MonkeyPatch) -> SpeculativeDecoder:
    monkeypatch.setenv("C2T_HOME", str(home))
    return SpeculativeDecoder.from_pretrained("toy", dtype=torch.float64)


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def test_the_default_policy_is_c2t_with_the_pairs_classifier(decoder: SpeculativeDecoder) -> None:
    assert isinstance(decoder.policy, C2T)
    assert decoder.policy.beta == decoder.policy.classifier.config.beta
    assert decoder.policy.classifier.output.weight.equal(toy_classifier().output.weight)


@pytest.mark.slow
@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
def test_a_warm_decoder_packs_nothing_in_a_texts_time() -> None:
    warm, cold = (SpeculativeDecoder.from_pretrained("tiny", dtype=torch.float32) for _ in range(2))
    warm.warm_up()
    made = warm.pair.target._packed
    assert made is not None
    assert cold.pair.target._packed is None
    assert warm.generate(PROMPTS[0], 8) == cold.generate(PROMPTS[0], 8)
    assert warm.pair.target._packed is made


def test_text_is_what_generate_writes(decoder: SpeculativeDecoder) -> None:
    output = decoder.generate([words(prompt) for prompt in PROMPTS], max_new_tokens=15)
    model = decoder.pair.target.model
    for prompt, tokens, text, own in zip(PROMPTS, output.sequences, output.texts, output.statistics, strict=True):
        plain = model.generate(torch.tensor([prompt]), max_new_tokens=15, do_sample=False, pad_token_id=0)
        assert tokens == plain[0, len(prompt) :].tolist()
        assert text == words(tokens)
        assert own.new_tokens == len(tokens)
        assert own.prompts + sum(a + 1 for a in own.accepted) - own.cut == own.new_tokens
    assert output.total.new_tokens == sum(map(len, output.sequences))
    assert output.total.prompts == len(PROMPTS)


def test_one_prompt_may_be_text_or_ids(decoder: SpeculativeDecoder) -> None:
    by_text = decoder.generate(words(PROMPTS[0]), 8, 0.7, seed=5)
    by_ids = decoder.generate(PROMPTS[0], 8, 0.7, seed=5)
    listed = decoder.generate([PROMPTS[0]], 8, 0.7, seed=5)
    assert by_text == by_ids == listed
    assert by_text.text == by_text.texts[0]
    others = [decoder.generate(PROMPTS[0], 8, 0.7, seed=seed).sequences for seed in range(6, 10)]
    assert any(other != by_ids.sequences for other in others)


CHAT = "{% for m in messages %}w1 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w2{% endif %}"


@pytest.fixture
def chatting(home: Path, tmp_path: Path) -> SpeculativeDecoder:
    """The toy pair, with a chat template: w1 before the user's turn and w2 before the answer."""
    pair = home / "checkpoints" / "toy"
    shutil.copytree(pair / "target", tmp_path / "target")
    (tmp_path / "target" / "chat_template.jinja").write_text(CHAT)
    return SpeculativeDecoder.from_pretrained(
        target=tmp_path / "target", draft=pair / "draft", policy=Eagle2(K=3, levels=2, N=6), dtype=torch.float64
    )


def test_a_text_is_the_users_turn_where_the_pair_has_a_chat_template(chatting: SpeculativeDecoder) -> None:
    assert chatting.pair.template == "chat"
    assert chatting.encode("w5 w9") == [[1, 5, 9, 2]]
    assert chatting.encode(["w5", "w9"]) == [[1, 5, 2], [1, 9, 2]], "a list of texts is one conversation each"
    assert chatting.encode("w5 w9", chat=False) == [[5, 9]]
    assert chatting.encode([5, 9]) == chatting.encode([[5, 9]]) == [[5, 9]]
    for prompt, chat, ids in (("w5 w9", True, [1, 5, 9, 2]), ("w5 w9", False, [5, 9]), ([5, 9], True, [5, 9])):
        output = chatting.generate(prompt, max_new_tokens=6, chat=chat)
        assert output == chatting.generate(ids, max_new_tokens=6, chat=False)


def test_a_text_is_continued_as_it_stands_where_the_pair_has_none(decoder: SpeculativeDecoder) -> None:
    assert decoder.pair.template == ""
    assert decoder.encode("w5 w9") == decoder.encode("w5 w9", chat=False) == [[5, 9]]
    assert decoder.encode(["w5", "w9"]) == [[5], [9]]


def test_messages_are_one_conversation_and_lists_of_them_several(chatting: SpeculativeDecoder) -> None:
    first, second = [{"role": "user", "content": "w5"}], [{"role": "user", "content": "w9"}]
    assert chatting.encode(first) == chatting.encode([first]) == chatting.encode("w5") == [[1, 5, 2]]
    assert chatting.encode([first, second]) == [[1, 5, 2], [1, 9, 2]]
    assert chatting.encode(["w5", second]) == [[1, 5, 2], [1, 9, 2]]
    assert chatting.generate([first, second], 6).sequences == chatting.generate(["w5", "w9"], 6).sequences
    again = [*first, {"role": "assistant", "content": "w7"}, *second]
    assert chatting.encode(again) == [[1, 5, 1, 7, 1, 9, 2]]
    streamed: list[list[int]] = [[], []]
    for number, tokens in chatting.stream([first, second], 6, system="w3"):
        streamed[number] += tokens
    assert streamed == chatting.generate(["w5", "w9"], 6, system="w3").sequences


def test_a_system_turn_comes_first(chatting: SpeculativeDecoder) -> None:
    said = [{"role": "system", "content": "w3"}, {"role": "user", "content": "w5"}]
    assert chatting.encode("w5", system="w3") == chatting.encode(said[1:], system="w3") == chatting.encode(said)
    assert chatting.encode(said) == [[1, 3, 1, 5, 2]]
    with pytest.raises(InputError, match="have a system turn already"):
        chatting.encode(said, system="w3")
    with pytest.raises(InputError, match="token ids are used unchanged"):
        chatting.encode([[5]], system="w3")


def test_a_text_ends_before_a_stop_string_and_its_rows_leave(decoder: SpeculativeDecoder) -> None:
    """With the token that completes it; other rows go on, and the statistics count what is there."""
    free = decoder.generate(PROMPTS, max_new_tokens=15)
    longest = max(range(len(PROMPTS)), key=lambda i: len(free.sequences[i]))
    stop = f"{words(free.sequences[longest][4:6])} "  # of two tokens; the blank comes with a third one
    steps = []
    output = decoder.generate(PROMPTS, max_new_tokens=15, stop=["nowhere", stop], watch=steps.append)
    for number, (text, tokens) in enumerate(zip(free.texts, free.sequences, strict=True)):
        own = output.statistics[number]
        begin = text.find(stop)
        assert output.texts[number] == (text if begin < 0 else text[:begin])
        assert output.sequences[number] == (
            tokens if begin < 0 else tokens[: len(text[: begin + len(stop)].split()) + 1]
        )
        assert own.new_tokens == len(output.sequences[number])
        assert own.prompts + sum(a + 1 for a in own.accepted) - own.cut == own.new_tokens
    assert stop in free.texts[longest]
    assert len(output.statistics[longest].accepted) < len(free.statistics[longest].accepted), "it takes fewer rounds"
    streamed: list[list[int]] = [[] for _ in PROMPTS]
    for number, tokens in decoder.stream(PROMPTS, 15, stop=stop, max_rows=1):
        streamed[number] += tokens
    assert streamed == output.sequences


def test_a_new_seed_is_in_the_output_and_gives_the_same_text(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {decoder.generate(PROMPTS[0], 1, 0.9).seed for _ in range(3)}
    assert len(seeds) == 3
    output = decoder.generate(PROMPTS, 12, 0.9)
    assert decoder.generate(PROMPTS, 12, 0.9, seed=output.seed) == output
    assert decoder.generate(PROMPTS[0], 1).seed == 0, "a greedy text needs none"
    monkeypatch.setattr(type(decoder.pair.target), "is_split", True)
    monkeypatch.setattr("c2t.decoder.from_first_process", lambda seed: 7)
    assert decoder.generate(PROMPTS[0], 1, 0.9).seed == 7, "the same in all processes of a split target"


def test_a_policy_may_be_its_text(decoder: SpeculativeDecoder) -> None:
    named = SpeculativeDecoder(decoder.pair, "threshold:threshold=0.2,levels=3")
    assert named.policy == JointThreshold(threshold=0.2, levels=3)
    learned = SpeculativeDecoder.from_pretrained("toy", policy="c2t:beta=0.3").policy
    assert learned.beta == 0.3
    assert learned.classifier.output.weight.equal(toy_classifier().output.weight)
    with pytest.raises(InputError, match="no policy is called 'eagle'; known: plain"):
        SpeculativeDecoder(decoder.pair, "eagle")


def test_reprs_are_one_line_that_says_what_decodes(decoder: SpeculativeDecoder, home: Path) -> None:
    pair = home / "checkpoints" / "toy"
    parts = f"target='{pair / 'target'}', draft='{pair / 'draft'}', dtype='float64', device='cpu'"
    assert repr(decoder.pair) == f"Pair('toy', {parts})"
    named = SpeculativeDecoder(decoder.pair, "eagle2:N=6")
    assert repr(named) == f"SpeculativeDecoder(Pair('toy', {parts}), policy='eagle2:N=6')"


def test_several_prompts_have_no_single_text(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(InputError, match="2 texts"):
        _ = decoder.generate(PROMPTS[:2], 2).text


def test_policies_and_batches_share_the_text_of_a_seed(home: Path, decoder: SpeculativeDecoder) -> None:
    settings = {
        "max_new_tokens": 12,
        "temperature": 0.9,
        "top_k": 30,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "seed": 7,
    }
    texts = decoder.generate(PROMPTS, **settings).sequences
    for policy in (Plain(), Eagle2(K=4, levels=3, N=10), DySpec(N=8, K=3)):
        rule = "target-only" if policy.proposal == "sampled" else None
        output = SpeculativeDecoder(decoder.pair, policy).generate(PROMPTS, **settings, rule=rule)
        assert output.sequences == texts
    alone = [decoder.generate(prompt, **settings, sequences=[i]).sequences[0] for i, prompt in enumerate(PROMPTS)]
    assert alone == texts


def test_a_policy_that_is_not_exact_is_warned_of(decoder: SpeculativeDecoder) -> None:
    with pytest.warns(UserWarning, match="MCSDPlus is not exact: its text is not the target's own"):
        SpeculativeDecoder(decoder.pair, MCSDPlus(W=2, D=2))


def test_plain_decoding_costs_one_token_a_round_and_no_draft(decoder: SpeculativeDecoder) -> None:
    output = SpeculativeDecoder(decoder.pair, Plain()).generate(PROMPTS[0], max_new_tokens=6)
    count = len(output.sequences[0])
    assert 1 < count <= 6
    assert output.total == Statistics(1, count, 0, 0, [1] * (count - 1), [0] * (count - 1), [0] * (count - 1))


def test_the_text_ends_with_the_targets_eos(decoder: SpeculativeDecoder) -> None:
    free = decoder.generate(PROMPTS, max_new_tokens=15).sequences
    longest = max(range(len(free)), key=lambda i: len(free[i]))
    early = free[longest][4]
    decoder.pair.target.model.generation_config.eos_token_id = [early, 47]
    assert decoder.eos == {early, 47}
    output = decoder.generate(PROMPTS, max_new_tokens=15)
    assert output.sequences[longest] == free[longest][: free[longest].index(early) + 1]
    assert all(text == plain[: len(text)] for text, plain in zip(output.sequences, free, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([], {}, "no prompt"),
        ("", {}, "empty prompt"),
        ([[1, 2], []], {}, "empty prompt"),
        ([[1, 48]], {}, r"outside the target's vocabulary 0\.\.47"),
        ([[-1]], {}, "outside the target's vocabulary"),
        ([[1], [1] * 250], {"max_new_tokens": 7}, r"prompt 1.*250 tokens \+ 7 new ones.*256"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens = 0"),
        ([[True]], {}, "must be a text or a list of whole token ids"),
        ([b"abc"], {}, "must be a text or a list of whole token ids"),
        ([[1], [2]], {"sequences": [4]}, r"sequences = \[4\]: give a whole number for each of the 2 prompts"),
        ([1], {"temperature": -1.0}, "temperature"),
    ],
    ids=str,
)
def test_impossible_requests_are_refused(decoder: SpeculativeDecoder, prompts, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder.generate(prompts, **settings)


def test_a_text_may_fill_the_positions(decoder: SpeculativeDecoder) -> None:
    """The last trees stand past the limit, and still the text is plain decoding's."""
    prompt = (PROMPTS[1] * 30)[:246]
    text = decoder.generate(prompt, max_new_tokens=10).sequences
    assert text == SpeculativeDecoder(decoder.pair, Plain()).generate(prompt, max_new_tokens=10).sequences


def test_a_policy_wider_than_the_vocabulary_is_refused(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(InputError, match=r"K = 49 .*48"):
        SpeculativeDecoder(decoder.pair, Eagle2(K=49))


def test_a_pair_without_a_classifier_gets_trees_that_need_none(home: Path, decoder: SpeculativeDecoder) -> None:
    bare = home / "checkpoints" / "bare"
    bare.mkdir(exist_ok=True)
    for part in ("target", "draft"):
        if not (bare / part).exists():
            (bare / part).symlink_to(home / "checkpoints" / "toy" / part)
    assert SpeculativeDecoder.from_pretrained("bare").policy == JointThreshold(0.1)
    assert isinstance(SpeculativeDecoder.from_pretrained("bare", policy=Plain()).policy, Plain)


def test_a_target_and_a_draft_that_are_no_pair_need_no_classifier(home: Path) -> None:
    parts = {part: home / "checkpoints" / "toy" / part for part in ("target", "draft")}
    assert isinstance(SpeculativeDecoder.from_pretrained(**parts).policy, JointThreshold)


def test_without_a_name_it_is_the_default_pair_and_what_that_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C2T_HOME", str(home))
    monkeypatch.setattr(paths, "DEFAULT_PAIR", "toy")
    for parts in ({}, {"draft": "eagle"}, {"draft": home / "checkpoints" / "toy" / "draft"}):
        assert isinstance(SpeculativeDecoder.from_pretrained(**parts).policy, C2T)


WRONG_KINDS = """
import torch
from c2t import C2T, Eagle2, InputError, SpeculativeDecoder
from c2t.sampling import Sampling
decoder = SpeculativeDecoder.from_pretrained("toy", policy=Eagle2(K=3, levels=2, N=4))
encoded = decoder.pair.tokenizer("w1 w2", return_tensors="pt")
for call in (
    lambda: decoder.generate(encoded),
    lambda: decoder.generate([dict(encoded)]),
    lambda: SpeculativeDecoder.from_pretrained("toy", policy="eagle"),
    lambda: SpeculativeDecoder.from_pretrained("toy", policy=Eagle2),
    lambda: C2T("tiny"),
    lambda: Eagle2(N=2.5),
    lambda: decoder.generate([[1.5]]),
    lambda: decoder.generate([1], sequences=[1.5]),
    lambda: decoder.generate([1], max_new_tokens=2.5),
    lambda: decoder.generate([1], top_k=1.5),
    lambda: decoder.generate([1], seed=1.5),
):
    try:
        print("not refused:", call())
    except InputError as error:
        print(error)
print(decoder.generate(encoded["input_ids"], max_new_tokens=1).total.new_tokens)
"""


@pytest.mark.slow
def test_values_of_other_kinds_are_refused(home: Path) -> None:
    """In a process of its own, where no hook checks types."""
    environment = {**os.environ, "C2T_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRONG_KINDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "a mapping is no prompt: give its input_ids, a text, or a list of messages",
        "a message's role = None must be one of system, developer, user, assistant, tool",
        f"no policy is called 'eagle'; known: {', '.join(POLICIES)}",
        "policy = Eagle2 is a class: give an instance, such as Eagle2()",
        "C2T: 'tiny' is no classifier: load one by TreeClassifier.from_pretrained",
        "Eagle2: N = 2.5 must be a whole number",
        "a prompt must be a text or a list of whole token ids",
        "sequence = 1.5 must be a whole number",
        "max_new_tokens = 2.5 must be a whole number",
        "Sampling: top_k = 1.5 must be a whole number",
        "Sampling: seed = 1.5 must be a whole number",
        "1",
    ], done.stderr


def test_an_empty_text_is_refused_where_a_bos_token_would_fill_it(small_home: Path) -> None:
    folder = small_home / "checkpoints" / "llama2-7b"
    decoder = SpeculativeDecoder.from_pretrained(target=folder / "target", draft=folder / "draft", policy=Plain())
    assert decoder.encode("a")[0][0] == decoder.pair.tokenizer.bos_token_id
    for prompts in ("", [""], ["a", ""]):
        with pytest.raises(InputError, match="an empty prompt"):
            decoder.generate(prompts)
    with pytest.raises(InputError, match="not UTF-8"):
        decoder.generate("a\ud800")


@pytest.mark.slow
def test_the_embedded_pair_writes_what_generate_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained weights, in float64: three prompts, 24 tokens."""
    monkeypatch.delenv("C2T_HOME", raising=False)
    decoder = SpeculativeDecoder.from_pretrained("tiny", dtype=torch.float64)
    prompts = [decoder.encode(prompt)[0] for prompt in ("def fibonacci(n):", "Return the ", ">>> import numpy as np")]
    model, expected = decoder.pair.target.model, []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        plain = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        expected.append(plain[0, len(prompt) :].tolist())
    for policy in (Eagle2(), decoder.policy):
        output = SpeculativeDecoder(decoder.pair, policy).generate(prompts, max_new_tokens=24)
        assert output.sequences == expected
        assert output.total.tau > 1  # else exactness would say little


BY_GRAPHS = {
    "eagle2": (Eagle2(K=3, levels=3, N=9), ""),
    "c2t": (C2T(toy_classifier(), beta=0.4), ""),
    "plain": (Plain(), ""),
    "drafted by the loop: n-grams": (Eagle2(K=3, levels=3, N=9), "+ngrams"),
    "drafted by the loop: sequoia": (Sequoia(acceptance=(0.5, 0.3), N=8, levels=3), ""),
    "trees of up to 111 tokens": (Eagle2(levels=2, N=None), ""),
}


@pytest.mark.parametrize("name", slow_except(BY_GRAPHS, "drafted by the loop: n-grams"))
def test_graphs_write_the_same_text(name: str, home: Path, tmp_path: Path) -> None:
    """On a CPU they are called, not replayed; the target has heads that the kernel serves."""
    policy, ending = BY_GRAPHS[name]
    model = language_model(LlamaConfig(**{**SIZES, "head_dim": 16}))
    save_language_model(tmp_path / "target", model)
    draft = f"{home / 'checkpoints' / 'toy' / 'draft'}{ending}"
    parts = {"target": tmp_path / "target", "draft": draft, "dtype": torch.float64}
    expected = SpeculativeDecoder.from_pretrained(**parts, policy=policy).generate(PROMPTS, 12)
    decoder = SpeculativeDecoder.from_pretrained(**parts, policy=policy, graph_tokens=40)
    assert decoder.generate(PROMPTS, 12).sequences == expected.sequences
    assert decoder.generate(PROMPTS[:1], 12).sequences == expected.sequences[:1]
    decoder.warm_up(len(PROMPTS))
    decoder.warm_up()
    assert decoder.generate(PROMPTS, 12).sequences == expected.sequences
    with pytest.raises(InputError, match="prompt 0: 4 tokens \\+ 37 new ones exceed the limit of 40"):
        decoder.generate(PROMPTS[:1], 37)


def test_graphs_refuse_what_they_do_not_serve(home: Path, tmp_path: Path) -> None:
    model = language_model(LlamaConfig(**{**SIZES, "head_dim": 16}))
    save_language_model(tmp_path / "target", model)
    parts = {"target": tmp_path / "target", "draft": home / "checkpoints" / "toy" / "draft", "graph_tokens": 40}
    experts = language_model(FAMILIES["mixtral"])
    save_language_model(tmp_path / "experts", experts)
    with pytest.raises(InputError, match="graphs cannot serve MixtralExperts, whose products depend on the text"):
        SpeculativeDecoder.from_pretrained(**parts | {"target": tmp_path / "experts"}, policy=Plain())
    with pytest.raises(InputError, match="graph_tokens = -1 must be at least 0"):
        SpeculativeDecoder.from_pretrained(**parts | {"graph_tokens": -1}, policy=Plain())
