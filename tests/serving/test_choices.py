"""Several texts in one request, and conversations that go on: each text is the decoder's own."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from c2t.decoder import SpeculativeDecoder
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2
from c2t.serving.server import Server
from tests.serving.served import client, gained, metrics, serving, until, with_template

PROMPTS = ["def add(a, b):", "The sum of"]
NEW = 8


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    pair = with_template(load_pair("tiny"), "{% for m in messages %}{{ m.role + ': ' + m.content + ';' }}{% endfor %}")
    pair.tokenizer.chat_template += "{% if add_generation_prompt %}assistant: {% endif %}"
    return SpeculativeDecoder(pair, Eagle2(K=3, levels=3, N=8))


@pytest.fixture(scope="module")
def server(decoder: SpeculativeDecoder) -> Iterator[Server]:
    with serving(decoder, max_rows=3, max_waiting=8) as running:
        yield running


def complete(ai: OpenAI, **fields: Any) -> Any:
    return ai.completions.create(**{"model": "tiny", "max_tokens": NEW, "seed": 5, "temperature": 1.0} | fields)


def test_each_of_n_texts_has_a_stream_of_the_seed(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    answer = complete(ai, prompt=PROMPTS[0], n=3)
    alone = decoder.generate(PROMPTS[:1] * 3, NEW, 1.0, seed=5, chat=False)
    assert [choice.text for choice in answer.choices] == alone.texts
    assert len(set(alone.texts)) > 1
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.choices[0].text == complete(ai, prompt=PROMPTS[0]).choices[0].text
    [ids] = decoder.encode(PROMPTS[0], chat=False)
    assert answer.usage.prompt_tokens == len(ids), "it is one prompt"
    assert answer.usage.completion_tokens == sum(map(len, alone.sequences))


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_list_of_prompts_has_the_texts_of_the_decoder(ai: OpenAI, decoder: SpeculativeDecoder, as_ids: bool) -> None:
    ids = decoder.encode(PROMPTS, chat=False)
    answer = complete(ai, prompt=ids if as_ids else PROMPTS, n=2)
    alone = decoder.generate([prompt for prompt in ids for _ in range(2)], NEW, 1.0, seed=5)
    assert [choice.text for choice in answer.choices] == alone.texts
    assert answer.usage.prompt_tokens == sum(map(len, ids))


def test_a_stream_of_several_texts_says_which_each_piece_belongs_to(ai: OpenAI) -> None:
    whole = complete(ai, prompt=PROMPTS, n=2)
    texts, reasons = {}, {}
    *chunks, last = complete(ai, prompt=PROMPTS, n=2, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        [choice] = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert [texts[index] for index in range(4)] == [choice.text for choice in whole.choices]
    assert [reasons[index] for index in range(4)] == [choice.finish_reason for choice in whole.choices]
    assert (last.choices, last.usage) == ([], whole.usage)


def test_a_prompt_that_is_refused_costs_the_others_of_its_request_their_rows(server: Server, ai: OpenAI) -> None:
    before = metrics(server)
    with pytest.raises(openai.BadRequestError, match="exceed the target's"):
        complete(ai, prompt=[[5] * 10, [5] * 1020])
    until(lambda: metrics(server)["c2t_requests_running"] + metrics(server)["c2t_requests_waiting"] == 0)
    assert gained(server, before)["c2t_requests_total.refused"] == 2


def test_who_leaves_frees_all_rows(server: Server, ai: OpenAI) -> None:
    before = metrics(server)
    stream = complete(ai, prompt=PROMPTS, n=2, stream=True, max_tokens=900)
    next(iter(stream))
    stream.close()
    until(lambda: gained(server, before)["c2t_requests_total.cancelled"] == 4)
    until(lambda: metrics(server)["c2t_requests_running"] == 0)


def chat(ai: OpenAI, messages: list[dict[str, Any]], **fields: Any) -> str:
    settings: dict[str, Any] = {"model": "tiny", "max_tokens": NEW, "temperature": 0.0, "extra_body": fields}
    return ai.chat.completions.create(**settings, messages=messages).choices[0].message.content


def test_an_assistants_message_is_continued(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    said = [{"role": "developer", "content": "b"}, {"role": "user", "content": "a"}]
    begun = [*said, {"role": "assistant", "content": "def add"}]

    def alone(text: str) -> str:
        return decoder.generate(decoder.pair.tokenizer(text, add_special_tokens=False).input_ids, NEW).text

    assert chat(ai, said) == alone("system: b;user: a;assistant: ")
    assert chat(ai, begun, continue_final_message=True) == alone("system: b;user: a;assistant: def add")
    assert chat(ai, said, add_generation_prompt=False) == alone("system: b;user: a;")
    for messages, fields in (
        (said, {"continue_final_message": True}),
        (begun, {"continue_final_message": True, "add_generation_prompt": True}),
        ([*said, {"role": "assistant", "content": ""}], {"continue_final_message": True}),
    ):
        with pytest.raises(openai.BadRequestError, match="continue_final_message") as error:
            chat(ai, messages, **fields)
        assert error.value.param == "continue_final_message"


def test_a_template_has_variables(decoder: SpeculativeDecoder) -> None:
    template = "{% if enable_thinking %}think: {% endif %}{{ size }}{{ name }}{{ messages[0].content }}"
    decoder = SpeculativeDecoder(with_template(decoder.pair, template), decoder.policy)
    said = [{"role": "user", "content": "a"}]

    def alone(text: str) -> str:
        return decoder.generate(decoder.pair.tokenizer(text, add_special_tokens=False).input_ids, NEW).text

    with serving(decoder) as server:
        ai = client(server)
        for variables, text in (
            ({}, "a"),
            ({"enable_thinking": False, "unread": 1}, "a"),
            ({"enable_thinking": True, "size": 2.5, "name": "b"}, "think: 2.5ba"),
        ):
            assert chat(ai, said, chat_template_kwargs=variables) == alone(text)
        for variables, reason in (
            ({"messages": "b"}, "the template gets messages from c2t"),
            ({"eos_token": "b"}, "the template gets eos_token from c2t"),
            ({"a b": 1}, "'a b' is no name of a variable"),
            ({"a": [1]}, "a must be true, false, a number or a text of up to 1000 characters"),
            ({"a": None}, "a must be"),
            ({"a": 2**63}, "a must be"),
            ({"a": "b" * 1001}, "a must be"),
            ({f"a{number}": 1 for number in range(17)}, "at most 16"),
        ):
            with pytest.raises(openai.BadRequestError, match=reason) as error:
                chat(ai, said, chat_template_kwargs=variables)
            assert error.value.param == "chat_template_kwargs"
        with pytest.raises(openai.BadRequestError, match="support enable_thinking: use chat_template_kwargs"):
            chat(ai, said, enable_thinking=False)


def test_acceptance_is_reported_as_vllm_does(server: Server, ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    before = metrics(server)
    answer = complete(ai, prompt=PROMPTS, temperature=0.0)
    alone = decoder.generate(PROMPTS, NEW, chat=False).total
    reported = answer.metrics["speculative_decoding"]
    assert reported == {
        "mean_acceptance_length": 1 + alone.accepted_tokens / alone.rounds,
        "draft_acceptance_rate": alone.accepted_tokens / (alone.verified_tokens - alone.rounds),
        "acceptance_histogram": [alone.accepted.count(count) for count in range(max(alone.accepted) + 1)],
        "num_spec_steps": alone.rounds,
        "num_accepted_draft_tokens": alone.accepted_tokens,
        "num_draft_tokens": alone.verified_tokens - alone.rounds,
        "num_spec_tokens": 3,
    }
    *_, last = complete(ai, prompt=PROMPTS, temperature=0.0, stream=True, stream_options={"include_usage": True})
    assert last.metrics["speculative_decoding"] == reported
    found = gained(server, before)
    counted = {name.partition(":")[2].partition(".")[0]: value for name, value in found.items() if "vllm:" in name}
    assert counted["spec_decode_num_drafts_total"] == 2 * reported["num_spec_steps"]
    assert counted["spec_decode_num_draft_tokens_total"] == 2 * reported["num_draft_tokens"]
    assert counted["spec_decode_num_accepted_tokens_total"] == 2 * reported["num_accepted_draft_tokens"]
    assert counted["generation_tokens_total"] == 2 * answer.usage.completion_tokens
    assert counted["prompt_tokens_total"] == 2 * answer.usage.prompt_tokens
    assert counted["time_to_first_token_seconds_count"] == 4
    assert found["vllm:request_success_total.0.length.tiny"] == 4
    at = [found[f"vllm:spec_decode_num_accepted_tokens_per_pos_total.0.tiny.{depth}"] for depth in range(3)]
    assert sum(at) == 2 * alone.accepted_tokens
    assert at == sorted(at, reverse=True)
    text = httpx.get(f"{server.address}/metrics", timeout=60).text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text


def test_a_text_may_go_on_after_its_end(ai: OpenAI, decoder: SpeculativeDecoder) -> None:
    """As benchmarks want it, whose texts have all the same length."""
    ends = {str(min(decoder.eos)): 100}
    answer = complete(ai, prompt=PROMPTS[0], logit_bias=ends)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", 1)
    answer = complete(ai, prompt=PROMPTS[0], logit_bias=ends, extra_body={"ignore_eos": True})
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", NEW)
