"""Log-probabilities by OpenAI's client, and as lm-eval asks for them."""

import json
from typing import Any

import httpx
import openai
import pytest
import torch
from openai import OpenAI
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import Pair
from c2t.policies import Eagle2
from c2t.serving.logprobs import LOWEST, ChatLogprobs, CompletionLogprobs, TokenBytes
from c2t.serving.server import Server
from c2t.storage.paths import find
from c2t.verification.logprobs import TokenLogprob
from tests.marks import needs_smollm2
from tests.output.test_detokenizer import sentencepiece
from tests.rounding import assert_same_network
from tests.serving.served import with_template
from tests.serving.test_app import TEMPLATE

PROMPT, NEW = "The sum of \u20ac", 8


@pytest.fixture(scope="module")
def decoder(small_pair: Pair) -> SpeculativeDecoder:
    return SpeculativeDecoder(with_template(small_pair, TEMPLATE), Eagle2(K=3, levels=3, N=8))


def complete(ai: OpenAI, **fields: Any) -> Any:
    usual = {"model": ai.models.list().data[0].id, "prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "logprobs": 3}
    return ai.completions.create(**usual | fields)


def exact(pair: Pair, ids: list[int]) -> torch.Tensor:
    """Log-probabilities after each token but the last, by transformers."""
    with torch.no_grad():
        return pair.target.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def floats(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_completions_have_those_of_the_text(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    [ids] = decoder.encode(PROMPT, chat=False)
    alone = decoder.generate([ids], NEW, logprobs=3)
    choice = complete(ai).choices[0]
    found, tokens = choice.logprobs, alone.sequences[0]
    assert found.token_logprobs == [value.logprob for value in alone.logprobs[0]]
    assert_same_network(
        floats(found.token_logprobs), exact(decoder.pair, ids + tokens)[len(ids) - 1 :][torch.arange(NEW), tokens]
    )
    assert found.tokens == [TokenBytes(decoder.pair.tokenizer)(token).decode("utf-8", "replace") for token in tokens]
    for token, logprob, top, value in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, alone.logprobs[0], strict=True
    ):
        assert max(top.values()) == value.top[0][1]
        assert top[token] >= logprob
    assert found.text_offset[0] == 0
    assert found.text_offset == sorted(found.text_offset)
    for token, start in zip(found.tokens, found.text_offset, strict=True):
        assert "\ufffd" in token or choice.text[start:].startswith(token)
    assert complete(ai, logprobs=None).choices[0].logprobs is None
    assert [len(top) for top in complete(ai, logprobs=0).choices[0].logprobs.top_logprobs] == [1] * NEW


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_has_the_same_in_parts(ai: OpenAI, echo: bool) -> None:
    whole = complete(ai, echo=echo).choices[0]
    chunks = [chunk.choices[0] for chunk in complete(ai, echo=echo, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        assert [value for part in parts for value in part] == getattr(whole.logprobs, name)


@pytest.mark.parametrize("stream", [False, True])
def test_chats_have_those_of_the_text(ai: OpenAI, decoder: SpeculativeDecoder, stream: bool) -> None:
    fields: dict[str, Any] = {"model": decoder.pair.name, "messages": [{"role": "user", "content": "sum"}]}
    fields |= {"max_tokens": NEW, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    if stream:
        choices = [chunk.choices[0] for chunk in ai.chat.completions.create(**fields, stream=True)]
        text = "".join(choice.delta.content or "" for choice in choices)
        content = [value for choice in choices if choice.logprobs for value in choice.logprobs.content]
    else:
        choice = ai.chat.completions.create(**fields).choices[0]
        text, content = choice.message.content, choice.logprobs.content
    alone = decoder.generate("user: sum\nassistant:", NEW, chat=False, logprobs=2)
    assert text == alone.text
    assert [value.logprob for value in content] == [value.logprob for value in alone.logprobs[0]]
    end = b"<|endoftext|>" if alone.sequences[0][-1] in decoder.eos else b""
    assert b"".join(bytes(value.bytes) for value in content).removesuffix(end).decode("utf-8", "replace") == text
    for value, right in zip(content, alone.logprobs[0], strict=True):
        assert [top.logprob for top in value.top_logprobs] == [logprob for _, logprob in right.top]
    assert ai.chat.completions.create(**fields | {"logprobs": False, "top_logprobs": None}).choices[0].logprobs is None


@pytest.mark.parametrize("most", [0, 1])
def test_lm_evals_loglikelihood_is_transformers_log_softmax(ai: OpenAI, decoder: SpeculativeDecoder, most: int) -> None:
    """Of a context and its continuation in one prompt of ids: their sum, and whether it is what greedy decoding
    writes, read as lm-eval reads them."""
    [context], [words] = (decoder.encode(text, chat=False) for text in ("The sum of two", " numbers is"))
    greedy = decoder.generate([context], 4).sequences[0]
    for continuation, is_greedy in ((words, False), (greedy, True)):
        ids = context + continuation
        answer = complete(ai, prompt=ids, max_tokens=most, logprobs=1, echo=True, seed=1234)
        found = answer.choices[0].logprobs
        end = len(found.tokens) - most
        values, tops = (column[len(context) : end] for column in (found.token_logprobs, found.top_logprobs))
        right = exact(decoder.pair, ids)[torch.arange(len(ids) - 1), ids[1:]]
        assert_same_network(floats(found.token_logprobs[1:end]), right)
        assert_same_network(floats([sum(values)]), right[len(context) - 1 :].sum()[None])
        assert all(value == max(top.values()) for value, top in zip(values, tops, strict=True)) == is_greedy
        assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), most)
        assert answer.choices[0].finish_reason == "length"
        assert answer.choices[0].text.startswith(decoder.pair.tokenizer.decode(ids))


def test_an_echo_repeats_the_prompt(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    text = complete(ai, logprobs=None).choices[0].text
    echoed = complete(ai, echo=True, logprobs=None).choices[0]
    assert (echoed.text, echoed.logprobs) == (PROMPT + text, None)
    chunks = list(complete(ai, echo=True, logprobs=None, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + text
    assert complete(ai, echo=True, max_tokens=0, logprobs=None).choices[0].text == PROMPT
    found = complete(ai, echo=True).choices[0].logprobs
    [ids] = decoder.encode(PROMPT, chat=False)
    assert found.text_offset[len(ids)] == len(PROMPT)
    with pytest.raises(openai.BadRequestError, match="max_tokens = 0: must be at least 1"):
        complete(ai, max_tokens=0)


def test_settings_that_change_the_text_change_it_as_in_python(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    more = {"min_p": 0.05, "repetition_penalty": 1.1, "top_k": 40}
    usual = {"frequency_penalty": 0.5, "presence_penalty": -0.25, "logit_bias": {"40": 3, "41": -100}}
    answer = complete(ai, temperature=0.8, seed=3, **usual, extra_body=more, logprobs=None)
    settings = {**more, **usual, "logit_bias": {40: 3.0, 41: -100.0}, "seed": 3, "chat": False}
    assert answer.choices[0].text == decoder.generate(PROMPT, NEW, 0.8, **settings).text
    assert complete(ai, extra_body={"top_k": -1}).choices[0].text == complete(ai).choices[0].text


REFUSED = [
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"min_p": float("nan")}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"frequency_penalty": 1e9}, "frequency_penalty"),
    ({"presence_penalty": float("nan")}, "presence_penalty"),
    ({"presence_penalty": "1"}, "presence_penalty"),
    ({"temperature": 1e9}, "temperature"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5": float("inf")}}, "logit_bias"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"100000000": 1}}, "logit_bias"),
    ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
    ({"logit_bias": [[5, 1]]}, "logit_bias"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields)[:40] for fields, _ in REFUSED])
def test_values_out_of_range_are_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, **fields}
    answer = httpx.post(
        f"{server.address}/v1/completions",
        content=json.dumps(body | {"model": server.front.decoder.pair.name}),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert next(iter(fields)) in error["message"]
    assert len(error["message"]) < 400
    assert error["message"].isprintable()


def test_a_chat_asks_for_the_most_probable_tokens_with_the_others(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    fields: dict[str, Any] = {"model": decoder.pair.name, "messages": [{"role": "user", "content": "a"}]}
    for wrong, name in (
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ):
        with pytest.raises(openai.BadRequestError, match=name) as refused:
            ai.chat.completions.create(**fields, **wrong)
        assert refused.value.param == name
    with pytest.raises(openai.BadRequestError, match="logprobs") as refused:
        ai.chat.completions.create(**fields, extra_body={"logprobs": 3})
    assert refused.value.param == "logprobs"


@pytest.mark.parametrize("kind", ["tiny", pytest.param("smollm2", marks=needs_smollm2), "sentencepiece"])
def test_bytes_of_tokens_are_the_text(kind: str) -> None:
    tokenizer: PreTrainedTokenizerBase
    tokenizer = sentencepiece() if kind == "sentencepiece" else AutoTokenizer.from_pretrained(find(kind, "target"))
    of = TokenBytes(tokenizer)
    text = "a a. \u20ac \U0001f600\x00\x7f\u00a0\u00ad\n" if kind != "sentencepiece" else "a.a\u20ac"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(of, ids)).decode().removeprefix(" ") == text
    every = [of(token) for token in range(len(tokenizer))]
    assert {bytes([byte]) for byte in range(256)} <= set(every) or kind == "smollm2"
    for token in tokenizer.all_special_ids:
        assert every[token].decode() == tokenizer.convert_ids_to_tokens(token)
    assert of(10**6) == b"", "a padded vocabulary has ids without a token"


def test_what_json_cannot_hold_is_bounded() -> None:
    values = [TokenLogprob(0, None, ()), TokenLogprob(1, -torch.inf, ((2, -0.5), (1, -torch.inf)))]
    tokenizer = AutoTokenizer.from_pretrained(find("tiny", "target"))
    [value] = ChatLogprobs(TokenBytes(tokenizer))(values[1:])["content"]
    assert value["logprob"] == value["top_logprobs"][1]["logprob"] == LOWEST
    found = CompletionLogprobs(TokenBytes(tokenizer))(values)
    assert (found["token_logprobs"], found["top_logprobs"][0]) == ([None, LOWEST], None)
    assert min(found["top_logprobs"][1].values()) == LOWEST
