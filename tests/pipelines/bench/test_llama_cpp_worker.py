"""The worker of llama.cpp on a library in its stead: speculation by n-grams writes the text of plain decoding, and the
cache holds the text alone after every round."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.bench.llama_cpp_worker import BATCH, LONGEST, TYPES, Failed, Model, NGrams, answer, main, time_rows
from tests.pipelines.bench import counting_llama as api

POSITIONS = 2048
TOKENS = st.lists(st.integers(0, api.VOCABULARY - 1), min_size=1, max_size=20)


def model(positions: int = POSITIONS) -> Model:
    return Model(api, "model.gguf", 1, positions)


def greedy(prompt: list[int], limit: int, eos: list[int]) -> list[int]:
    """The text by the library's law, from no cache."""
    text = list(prompt)
    while len(text) - len(prompt) < limit and (text == prompt or text[-1] not in eos):
        text.append(api.following(text))
    return text[len(prompt) :]


@given(TOKENS, st.integers(1, 24), st.lists(st.integers(0, api.VOCABULARY - 1), max_size=2))
def test_speculation_writes_the_text_of_plain_decoding(prompt: list[int], limit: int, eos: list[int]) -> None:
    shared, expected = model(), greedy(prompt, limit, eos)
    for lookup in (0, 1, 3, 10):
        for shortest in (1, 2):
            reply = answer(shared, prompt, limit, eos, lookup, shortest)
            assert reply["tokens"] == expected
            assert reply["rounds"] <= len(expected) - 1
            assert 0 <= reply["first"] <= reply["seconds"]


def test_a_draft_follows_the_longest_n_gram_that_was_there_last() -> None:
    ngrams = NGrams([1, 2, 3, 9, 2, 3, 5, 1, 2, 3])
    assert ngrams.draft(4) == [9, 2, 3, 5]  # after 1 2 3, not after the later 2 3
    assert ngrams.draft(1) == [9]
    ngrams.extend([7])
    assert ngrams.draft(4) == []
    ngrams.extend([3])
    assert ngrams.draft(2) == [7, 3]  # after the last 3 before this one
    assert ngrams.draft(2, shortest=2) == []
    assert NGrams([4] * 2 * LONGEST).draft(3) == [4]  # the text ends there


def test_a_prompt_longer_than_a_batch_is_run_in_parts() -> None:
    prompt = [number % api.VOCABULARY for number in range(2 * BATCH + 3)]
    one = model()
    assert one.forward(prompt, 0) == [api.following(prompt)]
    assert one.forward(prompt[:2], BATCH, every=True) == [
        api.following([*prompt[:BATCH], *prompt[:count]]) for count in (1, 2)
    ]
    assert one.length == BATCH + 2


def test_timed_rows_leave_the_prefix() -> None:
    one, prefix = model(), [1, 2, 3]
    for rows in (4, 1, 16):
        assert time_rows(one, prefix, rows)["seconds"] > 0
        assert one.length == len(prefix) + rows
        assert one.prefix == prefix
    answer(one, [5, 6], 3, [])
    assert one.prefix == []
    time_rows(one, prefix, 2)
    assert list(one._context.cache.values()) == [*prefix, 1, 2]


def test_what_the_library_refuses_is_said() -> None:
    with pytest.raises(Failed, match=r"does not load missing\.gguf"):
        Model(api, "missing.gguf", 1, POSITIONS)
    with pytest.raises(Failed, match="no room for 4096 positions"):
        model(2 * POSITIONS)
    one = model()
    one.forward([1, 2], 0)
    with pytest.raises(Failed, match="llama_decode returned 1"):
        one.forward([1], 5)


def test_requests_and_answers_are_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    asked = [
        {"prompt": [1, 2], "limit": 4, "eos": [], "temperature": 0, "seed": 3, "lookup": 2, "shortest": 1},
        {"prefix": [1, 2], "rows": 4},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(line) + "\n" for line in asked)))
    main(api, ["run", "model.gguf", "1", str(POSITIONS)])
    about, text, rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert about == {"system": "none"}
    assert text["tokens"] == greedy([1, 2], 4, [])
    assert set(text) == {"tokens", "first", "seconds", "rounds"}
    assert set(rows) == {"seconds"}


def test_a_file_is_rounded_to_a_type(tmp_path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    source.write_bytes(b"weights")
    for kind in TYPES:
        main(api, ["quantize", str(source), str(target), kind, "1"])
        assert target.read_bytes() == b"weights"
    with pytest.raises(Failed, match=r"llama_model_quantize returned 1 for missing\.gguf in Q8_0"):
        main(api, ["quantize", "missing.gguf", str(target), "Q8_0", "1"])
