"""Reading prompt files, chat templates as the published scripts write them, and prompts that do not fit."""

import contextlib
import json
import logging
import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from c2t.errors import InputError
from c2t.models.loading.chat_templates import LLAMA_SYSTEM, VICUNA_SYSTEM, conversation
from c2t.replay.prompts import (
    MOST_BYTES,
    MOST_LINE_BYTES,
    MOST_LINES,
    Prompt,
    default_prompts,
    encode_all,
    read_prompts,
    spread,
)


@pytest.fixture(scope="module")
def tokenizer(small_home: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(small_home / "checkpoints" / "llama2-7b" / "target")


def test_reads_spec_bench_lines(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    first = {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["x"]}
    path.write_text(f'{json.dumps(first)}\n\n{{"turns": ["é"]}}\n')
    file = "question.jsonl"
    assert read_prompts(path) == [Prompt(81, "writing", ["a", "b"], file), Prompt(2, "", ["é"], file)]


def test_reads_speed_bench_lines(tmp_path: Path) -> None:
    line = {"question_id": "0a1f", "category": "coding", "sub_category": "python", "turns": ["a"], "multiturn": False}
    (tmp_path / "qualitative.jsonl").write_text(json.dumps(line))
    assert read_prompts(tmp_path / "qualitative.jsonl") == [Prompt("0a1f", "coding", ["a"], "qualitative.jsonl")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ("\n\n", "holds no prompts"),
        ('{"turns": ["a"]}\n{"turns": ["a"]', "line 2: no JSON"),
        ('{"turns": ["a"]}\n\n["a"]', "line 3: the document = .'a'. must be an object"),
        ('{"question_id": 1}', "line 1: turns is missing"),
        ('{"turns": []}', "line 1: turns = .. must have at least 1 item"),
        ('{"turns": ["a", ""]}', "line 1: turns.1 = '' must have at least 1 character"),
        ('{"turns": ["a", "\\udfff"]}', "line 1: no JSON .* surrogate"),
        ('{"turns": ["a"], "category": "\\ud800"}', "line 1: no JSON .* hex escape"),
        ('{"turns": "a"}', "line 1: turns = 'a' must be a list"),
        ('{"turns": ["a"], "question_id": [1]}', r"line 1: question_id.* = \[1\] must be a whole number"),
    ],
)
def test_malformed_files_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_prompts(tmp_path / "bad.jsonl")
    assert str(tmp_path / "bad.jsonl") in str(error.value)


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    """Texts may hold the other line ends of Unicode, and files a byte order mark and Windows' line ends."""
    turn = "one\u2028two\u0085three"
    lines = [json.dumps({"turns": [turn]}, ensure_ascii=False), json.dumps({"turns": ["b"]})]
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    assert [prompt.turns for prompt in read_prompts(tmp_path / "p.jsonl")] == [[turn], ["b"]]


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b'{"turns": ["\xe9"]}')
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (tmp_path / "latin", "UTF-8")):
        with pytest.raises(InputError, match=message):
            read_prompts(path)


def test_what_has_no_end_or_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    for place in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(InputError, match=r"cannot be read as a prompt file \(no regular file"):
            read_prompts(place)
    for name, content, message in (
        ("line", b'{"turns": ["' + b"x" * MOST_LINE_BYTES + b'"]}', "line 1: more than 1 MiB; shorten its texts"),
        ("turns", json.dumps({"turns": ["a"] * 200_000}).encode(), "must have at most 1000 items"),
        ("lines", b"\n" * (MOST_LINES + 1), "more than 1,000,000 lines; split the file"),
        ("number", b'{"turns": ["a"], "question_id": 1' + b"0" * 40 + b"}", "question_id.* = 10000"),
        ("deep", b'{"turns": ' + b"[" * 100_000, "line 1: no JSON .recursion limit"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_prompts(tmp_path / name)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(InputError, match="more than 256 MiB"):
        read_prompts(tmp_path / "large")


@pytest.mark.parametrize(
    ("place", "message"),
    [("a" * 300, "File name too long"), ("a\0b", "embedded null byte"), ("loop", "symbolic links"), ("", "empty path")],
)
def test_what_cannot_be_a_path(place: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with contextlib.chdir(tmp_path), pytest.raises(InputError, match=message):
        read_prompts(place)


def written(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_plain_text_is_the_text(tokenizer: PreTrainedTokenizerBase) -> None:
    assert conversation(tokenizer, "", ["a number"]) == tokenizer("a number").input_ids
    ids = conversation(tokenizer, "", ["one", "two", "three"], [" and", "!"])
    assert written(tokenizer, ids) == "<s>one and\ntwo!\nthree"


def test_vicuna(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = conversation(tokenizer, "vicuna", ["one", "two"], [" yes "])
    assert written(tokenizer, ids) == f"<s>{VICUNA_SYSTEM} USER: one ASSISTANT: yes</s>USER: two ASSISTANT:"
    assert ids.count(tokenizer.eos_token_id) == 1


def test_llama2_with_its_trailing_space(tokenizer: PreTrainedTokenizerBase) -> None:
    start = f"<s>[INST] <<SYS>>\n{LLAMA_SYSTEM}\n<</SYS>>\n\none [/INST]"
    assert written(tokenizer, conversation(tokenizer, "llama2", ["one"])) == f"{start} "
    ids = conversation(tokenizer, "llama2", ["one", "two"], ["yes"])
    assert written(tokenizer, ids) == f"{start} yes </s><s>[INST] two [/INST] "


@pytest.mark.parametrize(("template", "system"), [("llama3", f"system: {LLAMA_SYSTEM}\n"), ("other", "")])
def test_chat_template_of_the_tokenizer(tokenizer: PreTrainedTokenizerBase, template: str, system: str) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    ids = conversation(tokenizer, template, ["one", "two"], ["yes"])
    assert written(tokenizer, ids) == f"{system}user: one\nassistant: yes\nuser: two\nassistant:"


def test_default_prompts(home: Path) -> None:
    assert default_prompts("tiny", "bench") == [home / "data" / "prompts" / "tiny" / "code.jsonl"]
    assert default_prompts("tiny", "harvest") == [home / "data" / "prompts" / "tiny" / "harvest" / "code.jsonl"]
    with pytest.raises(InputError, match=r"llama2-7b.*--prompts FILE"):
        default_prompts("llama2-7b", "bench")


def prompts(*turns: list[str]) -> list[Prompt]:
    return [Prompt(i, "", list(t), "f") for i, t in enumerate(turns)]


def test_later_turns_follow_the_answers(tokenizer: PreTrainedTokenizerBase) -> None:
    asked: list[list[list[int]]] = []

    def answer(ids: list[list[int]]) -> list[str]:
        asked.append(ids)
        return [f" answer {len(asked)}" for _ in ids]

    encoded = encode_all(tokenizer, "", prompts(["a", "b", "c"], ["d"], ["e", "f"]), 100, answer)
    first, second = ["<s>a", "<s>d", "<s>e"], ["<s>a answer 1\nb", "<s>e answer 1\nf"]
    third = ["<s>a answer 1\nb answer 2\nc"]
    assert [written(tokenizer, ids) for ids in encoded.ids] == [*first, *second, *third]
    assert [prompt.question_id for prompt in encoded.prompts] == [0, 1, 2, 0, 2, 0]
    assert [len(ids) for ids in asked] == [2, 1]
    assert encoded.skipped == 0


def test_too_long_turns_are_left_out_with_those_after_them(tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = encode_all(tokenizer, "", prompts(["a" * 50, "b", "c"], ["d", "e" * 50], ["f"]), 20, lambda ids: [""])
    assert [written(tokenizer, ids) for ids in encoded.ids] == ["<s>d", "<s>f"]
    assert encoded.skipped == 4
    with pytest.raises(InputError, match="all 1 prompts are longer than 20 tokens"):
        encode_all(tokenizer, "", prompts(["a" * 50]), 20, lambda ids: [""])
    with pytest.raises(InputError, match="there are no prompts: give at least one"):
        encode_all(tokenizer, "", [], 20, lambda ids: [""])


def test_too_long_texts_are_told_by_c2t_alone(tokenizer: PreTrainedTokenizerBase, monkeypatch) -> None:
    """transformers would print a line of its own, about indexing errors."""
    said: list[str] = []
    monkeypatch.setattr(logging.StreamHandler, "emit", lambda _, record: said.append(record.getMessage()))
    monkeypatch.setattr(tokenizer, "model_max_length", 20)
    assert len(conversation(tokenizer, "", ["a" * 50])) > 20
    assert said == []
    tokenizer("a" * 50)
    assert "Token indices" in said[0]


def test_spread_takes_from_all_files_and_categories() -> None:
    many = [Prompt(i, "known" if i % 4 else "heldout", ["x"], f"{i % 2}.jsonl") for i in range(16)]
    chosen = spread(many, 6)
    assert {(prompt.file, prompt.category) for prompt in chosen} == {(p.file, p.category) for p in many}
    assert spread(many, None) == spread(many, 99) == many
