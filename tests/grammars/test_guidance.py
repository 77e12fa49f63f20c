"""Grammars by llguidance: what is refused, and texts under schemas, which `jsonschema` judges."""

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from c2t import Grammar, SpeculativeDecoder
from c2t.batching import BatchDecoder
from c2t.errors import InputError
from c2t.grammars import guidance
from c2t.grammars.constraint import Vocabulary
from c2t.grammars.constraints import Constraints
from c2t.grammars.guidance import GuidanceMatcher, compiled, tokens_of
from c2t.grammars.row_constraint import RowConstraint
from c2t.grammars.tool_calls import FRAME
from c2t.hf import ConstraintProcessor, TreeDecoding
from c2t.kernels.masks import Mask
from c2t.kernels.native import kernels
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.policies import Eagle2, JointThreshold, Plain
from c2t.policies.spec import parse
from c2t.sampling import Sampling
from c2t.sessions import masked
from tests.every_policy import EVERY_POLICY, EXACT
from tests.marks import needs_smollm2

pytest.importorskip("llguidance")


def record(**properties) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS = {
    "person": record(name={"type": "string", "maxLength": 20}, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "call": record(name={"const": "get_weather"}, arguments=record(unit={"enum": ["celsius", "fahrenheit"]})),
    "union": {
        "anyOf": [record(radius={"type": "number"}), record(width={"type": "integer"}, tall={"type": "boolean"})]
    },
    "list": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, note={"type": "null"}),
}
POLICY = JointThreshold(0.05, K=6, W=6, levels=3)


@cache
def tiny() -> Pair:
    return load_pair("tiny")


@cache
def smollm2() -> Pair:
    return load_pair("smollm2")


def valid(pair: Pair, tokens: list[int], schema: dict) -> None:
    """Raise unless the text has ended by itself and follows the schema."""
    assert tokens[-1] in pair.target.eos
    text = pair.tokenizer.decode(tokens[:-1], clean_up_tokenization_spaces=False)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


REFUSED = {
    "an unknown keyword": (lambda: Grammar.json_schema({"not": {}}), r'Unimplemented keys: \["not"\]'),
    "a reference elsewhere": (
        lambda: Grammar.json_schema({"$ref": "http://example.com/x"}),
        "does not fetch resources",
    ),
    "no value": (lambda: Grammar.json_schema({"enum": []}), "Unsatisfiable schema"),
    "false": (lambda: Grammar.json_schema(False), "no value follows"),
    "a schema that is no JSON": (lambda: Grammar.json_schema("{"), "the schema is no JSON"),
    "brackets without end": (lambda: Grammar.json_schema("[" * 100_000), "the schema is no JSON"),
    "a list": (lambda: Grammar.json_schema("[]"), "must be a JSON schema"),
    "what is no JSON": (lambda: Grammar.json_schema({"const": float("nan")}), "what JSON can hold"),
    "a schema too deep": (lambda: Grammar.json_schema(nested(1000)), "more than 32 deep"),
    "a schema too large": (lambda: Grammar.json_schema({"enum": ["x" * 70_000]}), "at most 65,536 are served"),
    "a lookahead": (lambda: Grammar.regex("a(?=b)"), "look-around"),
    "an open bracket": (lambda: Grammar.regex("("), "unclosed group"),
    "neither Lark nor EBNF": (lambda: Grammar.lark("hello world"), "neither Lark nor EBNF"),
    "a rule without end": (lambda: Grammar.lark("start: start"), "allows no token"),
    "a limit of a rule": (lambda: Grammar.lark('start: "x" b\nb[max_tokens=3]: /[0-9]+/'), "cannot take tokens back"),
    "a number that is too long": (lambda: Grammar.json_schema({"const": 10**400}), "cannot compile it"),
    "many remainders": (lambda: Grammar.json_schema(record(a={"multipleOf": 1.31101})), "at most 100,000"),
    "remainders together": (
        lambda: Grammar.json_schema({"allOf": [{"multipleOf": 331}, {"multipleOf": 337}]}),
        "multipleOf: 331, 337: a least common multiple",
    ),
    "remainders of a tool": (
        lambda: Grammar.tool_calls([{"name": "a", "parameters": record(a={"multipleOf": 131_101})}]),
        "multipleOf: 131101: ",
    ),
    "remainders in Lark": (
        lambda: Grammar.lark('start: %json {"type": "integer", "multiple\\u004ff" : 131101}'),
        "multipleOf: 131101: ",
    ),
    "no tools": (lambda: Grammar.tool_calls([]), "give one at least"),
    "a tool without a name": (lambda: Grammar.tool_calls([{}]), "a name is"),
    "parameters that are none": (lambda: Grammar.tool_calls([{"name": "a", "parameters": "b"}]), "must be a JSON sch"),
    "no choice": (lambda: Grammar.choice([]), "a list of texts"),
    "an empty choice": (lambda: Grammar.choice(["a", ""]), "not empty"),
}


def nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        make().matcher(tiny().vocabulary)


@pytest.mark.parametrize("number", [0.01, 2.5e-7, 86_400, 1_000_000, 30_000_000])
def test_zeros_around_a_multiple_have_no_remainders(number: float) -> None:
    Grammar.json_schema({"type": "integer", "multipleOf": number}).matcher(tiny().vocabulary)


def test_calls_of_tools_are_what_their_frame_says() -> None:
    tools = [{"name": "add", "parameters": record(a={"type": "integer"})}]
    assert Grammar.tool_calls(tools, required=False) == Grammar.lark(FRAME.grammar(tools, required=False))
    constraint = Grammar.tool_calls(tools, frame=replace(FRAME, between=""))
    text = SpeculativeDecoder(tiny(), POLICY).generate([[5, 6]], 90, constraint=constraint).text
    assert text.startswith('<tool_call>{"name": "add", "arguments": {"a": ')
    with pytest.raises(InputError, match="32 deep"):
        Grammar.tool_calls([{"name": "add", "parameters": record(a=nested(40))}])


def test_options_of_a_schemas_author_are_not_followed() -> None:
    """`lenient` would let unknown keywords pass in silence."""
    with pytest.raises(InputError, match="Unimplemented"):
        Grammar.json_schema({"x-guidance": {"lenient": True}, "not": {}}).matcher(tiny().vocabulary)


def test_what_a_vocabulary_needs() -> None:
    with pytest.raises(InputError, match="no token that ends a text"):
        tokens_of(Vocabulary(tiny().tokenizer, 512, frozenset()))
    with pytest.raises(InputError, match="a fast tokenizer"):
        tokens_of(Vocabulary("slow", 512, frozenset({0})))


def test_text_that_looks_like_a_special_token_is_written_as_text() -> None:
    """A text does not end at the name of the token that would end it."""
    name = tiny().tokenizer.eos_token
    for constraint, expected in (
        (Grammar.choice([f"{name} é"]), f"{name} é"),
        (Grammar.json_schema({"const": f"x{name}y"}), f'"x{name}y"'),
        (Grammar.lark(f'start: "a{name}b" "c"'), f"a{name}bc"),
        (Grammar.lark(f'start: "a" {name}'), "a"),
    ):
        for policy in (Plain(), POLICY):
            found = SpeculativeDecoder(tiny(), policy).generate([[5, 6]], 60, constraint=constraint)
            assert found.text == expected
            assert found.sequences[0][-1] in tiny().target.eos


def test_text_that_looks_like_a_special_token_has_the_tokens_of_plain_decoding() -> None:
    """Also where a token is a part of its name."""
    end = "</s>"
    text = tiny().tokenizer.backend_tokenizer.to_str().replace(tiny().tokenizer.eos_token, end)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), eos_token=end)
    pair, first = replace(tiny(), tokenizer=tokenizer), tokenizer.convert_tokens_to_ids("<")
    assert tokenizer.convert_tokens_to_ids("</") != tokenizer.unk_token_id
    for number in range(8):
        constraint = Grammar.regex("(</s>){12}[a-z ]{30}")
        settings = {"temperature": float(number % 2), "seed": number, "constraint": constraint}
        plain, tree = (
            SpeculativeDecoder(pair, policy).generate([[first, 5 + number] * 12], 60, **settings).sequences
            for policy in (Plain(), POLICY)
        )
        assert plain == tree


@pytest.mark.parametrize("name", SCHEMAS)
def test_masks_along_a_tree_are_those_of_a_new_matcher(name: str) -> None:
    """Whatever way the matcher has gone before; the end of a text does not disturb what is taken back."""
    vocabulary, chance = tiny().vocabulary, random.Random(0)
    compiled.cache_clear()
    row, text = RowConstraint.of(Grammar.json_schema(SCHEMAS[name]), vocabulary), []

    def new(tokens: list[int]) -> RowConstraint:
        other = RowConstraint.of(Grammar.json_schema(SCHEMAS[name]), vocabulary)
        other.advance(tokens)
        return other

    for _ in range(12):
        paths: list[tuple[int, ...]] = [()]
        for _ in range(8):
            path = chance.choice(paths)
            mask = row.mask(path)
            if mask is None:
                continue
            assert mask.flags().equal(new([*text, *path]).required(()).flags())
            may = [token for token in range(vocabulary.size) if token in mask]
            paths.append((*path, chance.choice(may)))
        forced = row.guessed_run(())
        for count, token in enumerate(forced):
            assert row.required(forced[:count]).flags().equal(new([*text, *forced[:count]]).required(()).flags())
            assert token in row.required(forced[:count])
        step = list(chance.choice(paths))
        row.advance(step)
        text += step
        if row.ended:
            break


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_about_tokens_are_those_of_the_mask(name: str) -> None:
    vocabulary, chance, seen = tiny().vocabulary, random.Random(1), Counter()
    special = tokens_of(vocabulary).is_special_token
    tokens = [token for token in range(vocabulary.size) if token in vocabulary.eos or not special(token)]
    matcher, mask = Grammar.json_schema(SCHEMAS[name]).matcher(vocabulary), Mask(vocabulary.size)
    for _ in range(80):
        text, forced = matcher.forced_text(), matcher.forced()
        allowed = None if forced else matcher.allows(tokens)
        matcher.fill(mask)
        seen[allowed is None] += 1
        if forced:
            assert mask.only == forced[0]
            assert text.startswith(tiny().tokenizer.decode(forced).encode())
        elif allowed is not None:
            assert allowed == [token in mask for token in tokens]
        may = [token for token in tokens if token in mask and token not in vocabulary.eos]
        if not may:
            break
        matcher.consume([chance.choice(may)])
    assert seen[False]


@pytest.mark.parametrize("seed", [2, 5])
def test_trees_that_use_up_the_lexer_of_a_grammar_cost_no_text(seed: int) -> None:
    tags = Grammar.json_schema({"type": "string", "pattern": "^[a-z]{1,20}(,? ?[a-z]{1,20}){0,30}$"})
    policies = Plain(), Eagle2(K=6, N=30), Eagle2(K=6, N=30), Plain()
    compiled.cache_clear()
    settings = {"temperature": 1.0, "seed": seed, "constraint": tags}
    texts = [
        SpeculativeDecoder(tiny(), policy).generate("def main():", 64, **settings).sequences for policy in policies
    ]
    assert texts == texts[:1] * 4


def test_a_text_that_uses_up_the_lexer_of_a_grammar_costs_no_other_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guidance.LIMITS, "max_lexer_states", 30_000)
    compiled.cache_clear()
    constraint, vocabulary = Grammar.regex("(.|\n)*[aeiou](.|\n){25}z(.|\n)*x"), tiny().vocabulary
    made = compiled(constraint.kind, constraint.source, vocabulary)._made
    rows = [RowConstraint.of(constraint, vocabulary) for _ in range(2)]
    rows[1].advance([tiny().tokenizer.encode("a", add_special_tokens=False)[0]])
    expected = rows[1].required(()).flags()
    chance = random.Random(0)
    while rows[0].given_up == 0:
        rows[0].advance([chance.choice(rows[0].required(()).flags()[5:].nonzero()[:, 0].tolist()) + 5])
    rows[1].advance([])
    assert rows[1].required(()).flags().equal(expected)
    assert rows[1].given_up == 1
    assert RowConstraint.of(constraint, vocabulary).given_up == 0
    assert compiled(constraint.kind, constraint.source, vocabulary)._made is not made
    compiled.cache_clear()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_of_tiny_are_valid_and_those_of_plain_decoding(temperature: float) -> None:
    prompts, schemas = [[5, 6, 7], [9, 8], [1, 2, 3, 4], [7]], [*SCHEMAS.values()][1:]
    constraint = [Grammar.json_schema(schema) for schema in schemas]
    settings = {"max_new_tokens": 100, "temperature": temperature, "seed": 3, "constraint": constraint}
    expected = SpeculativeDecoder(tiny(), Plain()).generate(prompts, **settings)
    for policy in (POLICY, Eagle2(K=4, levels=3, N=10)):
        for pair in (tiny(), with_ngrams(tiny())):
            found = SpeculativeDecoder(pair, policy).generate(prompts, **settings)
            assert found.sequences == expected.sequences
            assert found.total.rounds < expected.total.rounds
    for tokens, text, schema in zip(expected.sequences, expected.texts, schemas, strict=True):
        valid(tiny(), tokens, schema)
        assert json.loads(text) is not ...


@pytest.mark.slow
@needs_smollm2
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", [*EXACT, "hierarchical", "ngrams", "budget auto"])
def test_texts_of_smollm2_are_those_of_plain_decoding(name: str, temperature: float) -> None:
    policy = EVERY_POLICY[name].policy if name in EVERY_POLICY else POLICY
    pair = with_ngrams(smollm2()) if name == "ngrams" else smollm2()
    if name == "hierarchical":
        policy = parse("hierarchical", None)
        try:
            policy.check_target(pair.target)
        except InputError:
            pytest.skip("this processor has no 4-bit form")
    prompts = ["Invent a person.", "What is the weather? Call the function."]
    constraint = [Grammar.json_schema(SCHEMAS[schema]) for schema in ("person", "call")]
    settings = {"max_new_tokens": 48, "temperature": temperature, "seed": 3, "constraint": constraint}
    expected = plain_of_smollm2(temperature)
    rule = "target-only" if policy.proposal == "sampled" else None
    decoder = SpeculativeDecoder(pair, policy, budget=20 if name == "budget auto" else None)
    assert decoder.generate(prompts, **settings, rule=rule).sequences == expected
    for tokens, schema in zip(expected, ("person", "call"), strict=True):
        valid(pair, tokens, SCHEMAS[schema])


@cache
def plain_of_smollm2(temperature: float) -> list[list[int]]:
    prompts = ["Invent a person.", "What is the weather? Call the function."]
    constraint = [Grammar.json_schema(SCHEMAS[schema]) for schema in ("person", "call")]
    settings = {"max_new_tokens": 48, "temperature": temperature, "seed": 3, "constraint": constraint}
    return SpeculativeDecoder(smollm2(), Plain()).generate(prompts, **settings).sequences


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
@needs_smollm2
def test_trees_of_the_fused_phase_are_those_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constraints, "ask_draftable", lambda self, row, path, tokens: self.draftable(row, path))
    found = {}
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(masked.MaskedSession, "grow_tree", lambda *args, **inputs: None)
        steps = []
        SpeculativeDecoder(smollm2(), POLICY).generate(
            "Invent a person.", 32, constraint=Grammar.json_schema(SCHEMAS["person"]), watch=steps.append
        )
        found[fused] = [step.tree.token.tolist() for step in steps[1:]]
    assert found[True] == found[False]
    assert sum(len(tokens[0]) for tokens in found[True]) > 20


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
@needs_smollm2
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_about_the_tokens_of_a_tree_replace_most_masks(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, masks, texts = GuidanceMatcher.fill, Counter(), {}

    def counted(self: GuidanceMatcher, mask: Mask) -> None:
        masks[answers] += 1
        fill(self, mask)

    monkeypatch.setattr(GuidanceMatcher, "fill", counted)
    for answers in (True, False):
        if not answers:
            monkeypatch.setattr(RowConstraint, "allows", lambda self, path, tokens: None)
        texts[answers] = SpeculativeDecoder(smollm2(), POLICY).generate(
            "Invent a person.", 48, temperature, seed=3, constraint=Grammar.json_schema(SCHEMAS["person"])
        )
    assert texts[True].sequences == texts[False].sequences
    assert 2 * masks[True] < masks[False]


@dataclass(frozen=True)
class Without:
    """A constraint that forbids some tokens everywhere."""

    tokens: frozenset[int]

    def matcher(self, vocabulary: Vocabulary) -> "Without":
        return self

    def consume(self, tokens: list[int]) -> None: ...

    def rollback(self, count: int) -> None: ...

    def forced_text(self) -> bytes:
        return b""

    def forced(self) -> list[int]:
        return []

    def allows(self, tokens: list[int]) -> list[bool]:
        return [token not in self.tokens for token in tokens]

    def fill(self, mask: Mask) -> None:
        mask.words.fill(0xFFFFFFFF)
        for token in self.tokens:
            mask.words[token >> 5] &= ~np.uint32(1 << (token & 31))


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
@needs_smollm2
def test_candidates_in_the_place_of_forbidden_ones_are_those_of_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    draftable, masks = Constraints.draftable, Counter()

    def counted(self: Constraints, row: int, path: tuple[int, ...]) -> Mask | None:
        masks[count] += 1
        return draftable(self, row, path)

    def tree(forbidden: list[int], prompt: str) -> list[int]:
        """The tokens of the first round's tree."""
        steps, policy = [], Eagle2(K=6, levels=1, N=7)
        constraint = Without(frozenset(forbidden))
        SpeculativeDecoder(smollm2(), policy).generate(prompt, 2, constraint=constraint, watch=steps.append)
        return steps[1].tree.token[0, 1:].tolist()

    monkeypatch.setattr(Constraints, "draftable", counted)
    count = 0
    for prompt in ("Invent a person.", "Count to ten.", "What is the weather?"):
        count = 0
        best = tree([], prompt)
        for count in range(1, 6):
            found = tree(best[:count], prompt)
            with monkeypatch.context() as patch:
                patch.setattr(Constraints, "ask_draftable", lambda self, row, path, tokens: draftable(self, row, path))
                exact = tree(best[:count], prompt)
            assert set(found) == set(exact)
    assert masks[0] == masks[1] == 0


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
@needs_smollm2
def test_nothing_is_drafted_where_the_next_tokens_must_follow() -> None:
    text = "the only sentence that this constraint allows, whatever a draft would say"
    found = SpeculativeDecoder(smollm2(), POLICY).generate([[5, 6]], 40, constraint=Grammar.choice([text]))
    assert found.text == text
    assert found.statistics[0].accepted[0] > POLICY.levels
    assert sum(found.statistics[0].passes) == 0


def test_a_request_without_a_grammar_keeps_its_text() -> None:
    decoder, texts = BatchDecoder(tiny(), POLICY, max_rows=4), {}
    for constraint in (None, Grammar.json_schema(SCHEMAS["list"])):
        free = decoder.submit([5, 6, 7], 12)
        other = decoder.submit([9, 8], 40, Sampling(0.8, seed=2), constraint=constraint)
        while decoder.step():
            pass
        texts[constraint] = free.tokens
    assert texts[None] == texts[constraint]
    assert other.finish == "stop"
    valid(tiny(), other.tokens, SCHEMAS["list"])
    with pytest.raises(InputError, match="Unimplemented"):
        decoder.submit([9, 8], 40, constraint=Grammar.json_schema({"not": {}}))


@needs_smollm2
def test_characters_that_no_token_has_end_their_own_request_alone() -> None:
    """No token of SmolLM2 has the byte 0xF1, with which characters from U+40000 on begin."""
    decoder = BatchDecoder(smollm2(), POLICY, max_rows=4)
    good = decoder.submit([5, 6, 7], 12)
    bad = decoder.submit([9, 8], 12, constraint=Grammar.choice(["ab\U00050000"]))
    while decoder.step():
        pass
    assert (good.finish, bad.finish) == ("length", "failed")
    assert isinstance(bad.error, InputError)


def test_every_call_of_generate_starts_again_and_beams_are_refused() -> None:
    pair = load_pair("tiny", dtype=torch.float32)
    processor = ConstraintProcessor(Grammar.json_schema(SCHEMAS["call"]), pair.tokenizer, sorted(pair.target.eos))
    settings = {"pad_token_id": 0, "eos_token_id": sorted(pair.target.eos), "do_sample": False}

    def generate(ids: torch.Tensor, count: int, **more: int) -> torch.Tensor:
        return pair.target.model.generate(ids, logits_processor=[processor], max_new_tokens=count, **settings | more)

    prompt = torch.tensor([[5, 6, 7]])
    first = generate(prompt, 60)
    for text in (first, torch.cat([prompt, torch.tensor([[8]])], 1)):  # as long as if it went on
        valid(pair, generate(text, 60)[0, text.shape[1] :].tolist(), SCHEMAS["call"])
        generate(prompt, 1)
    cut = generate(prompt, 9)
    assert generate(cut, 60).equal(first)
    for ids in (prompt, torch.tensor([[5, 6, 7], [9, 8, 4]])):
        with pytest.raises(InputError, match="leave out num_beams"):
            generate(ids, 60, num_beams=4)


def test_trees_that_meet_the_limit_of_tokens_leave_what_the_constraint_allows() -> None:
    pair = load_pair("tiny", dtype=torch.float32)
    ends, prompt = sorted(pair.target.eos), torch.tensor([[5, 6, 7]])
    settings = {"pad_token_id": 0, "eos_token_id": ends, "do_sample": True, "top_k": 1, "temperature": 1.2}
    for count in (8, 24):
        processors = [ConstraintProcessor(Grammar.regex("(foo|foobar)+!"), pair.tokenizer, ends) for _ in range(2)]
        plain, trees = (
            pair.target.model.generate(prompt, logits_processor=[one], max_new_tokens=count, **settings, **how)
            for one, how in zip(processors, ({}, {"custom_generate": TreeDecoding("tiny", policy=POLICY)}), strict=True)
        )
        assert plain.equal(trees)


def test_calls_of_generate_go_on_with_trees_too() -> None:
    """Where the last call's limit of tokens has cut the text, whether that call had trees or not."""
    pair = load_pair("tiny", dtype=torch.float32)
    trees = {"custom_generate": TreeDecoding("tiny", policy=POLICY)}
    ends = sorted(pair.target.eos)
    settings = {"pad_token_id": 0, "eos_token_id": ends, "do_sample": False}
    for prompt in (torch.tensor([[5, 6, 7]]), torch.tensor([[5, 6, 7], [9, 8, 4]])):
        processor = ConstraintProcessor(Grammar.json_schema(SCHEMAS["call"]), pair.tokenizer, ends)

        def generate(ids: torch.Tensor, count: int, processor: ConstraintProcessor = processor, **how) -> torch.Tensor:
            called = {"logits_processor": [processor], "max_new_tokens": count, **settings, **how}
            return pair.target.model.generate(ids, **called)

        whole = generate(prompt, 60)
        assert generate(prompt, 60, **trees).equal(whole)
        for kinds in ([trees], [trees, {}], [{}, trees]):
            text, calls = prompt, 0
            while text.shape[1] < whole.shape[1]:
                text, calls = generate(text, 3, **kinds[calls % len(kinds)]), calls + 1
            assert text[:, : whole.shape[1]].equal(whole)
            assert calls > 3
            assert generate(prompt, 60, **trees).equal(whole), "another text starts again"


@pytest.mark.parametrize("sampled", [False, True])
def test_in_generate_of_transformers_the_text_is_the_same_with_trees(sampled: bool) -> None:
    pair = load_pair("tiny", dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7], [9, 8, 4]])
    settings = {"max_new_tokens": 60, "do_sample": sampled, "pad_token_id": 0, "eos_token_id": sorted(pair.target.eos)}
    settings |= {"top_k": 20, "top_p": 0.9} if sampled else {}

    def processor() -> ConstraintProcessor:
        return ConstraintProcessor(Grammar.json_schema(SCHEMAS["call"]), pair.tokenizer, sorted(pair.target.eos))

    trees = TreeDecoding("tiny", policy=POLICY, seed=1)
    found = pair.target.model.generate(ids, logits_processor=[processor()], custom_generate=trees, **settings)
    if not sampled:
        plain = pair.target.model.generate(ids, logits_processor=[processor()], **settings)
        assert found.tolist() == plain.tolist()
    else:
        plain = TreeDecoding(policy=Plain(), seed=1)
        alone = pair.target.model.generate(ids, logits_processor=[processor()], custom_generate=plain, **settings)
        assert found.tolist() == alone.tolist()
    for row in found[:, 3:].tolist():
        end = next(index for index, token in enumerate(row) if token in pair.target.eos)
        valid(pair, row[: end + 1], SCHEMAS["call"])
    with pytest.raises(InputError, match="2 constraints"):
        pair.target.model.generate(ids, logits_processor=[processor(), processor()], custom_generate=trees, **settings)
