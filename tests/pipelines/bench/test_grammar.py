"""Trees under constraints, in turns on the same prompts: the data, the judges, the figures and their table."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from c2t.costs.statistics import Statistics
from c2t.models.loading.load import Pair
from pipelines.bench import grammar
from pipelines.bench.__main__ import app
from pipelines.bench.contenders import Written
from pipelines.bench.decoding import Result
from pipelines.bench.grammar_prompts import (
    AGAINST_SCHEMA,
    FOLDER,
    NO_CALL,
    NO_JSON,
    ConstrainedPrompt,
    json_prompts,
    judge_of,
    judge_of_call,
    tool_prompts,
)
from pipelines.docs import grammar as table
from tests.rounding import figure

BOUNDS = {"string": {"maxLength", "pattern", "format"}, "array": {"maxItems", "prefixItems"}, "integer": {"maximum"}}
BOUNDS |= {"number": {"maximum"}, "object": {"additionalProperties"}}


def schemas() -> list[dict[str, Any]]:
    """Return every schema, those of the functions' parameters too."""
    rows = [json.loads(line) for line in (FOLDER / "json.jsonl").read_text(encoding="utf-8").splitlines()]
    tools = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
    return [row["schema"] for row in rows] + list(tools["functions"].values())


def unbounded(schema: Any) -> list[Any]:
    """Return the parts of a schema that let a small model go on for ever, recursion not counted."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    named = schema.get("type") if isinstance(schema, dict) else None
    types = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    loose = [schema for name in types if name in BOUNDS and not BOUNDS[name] & set(schema)]
    return loose + [part for inner in parts for part in unbounded(inner)]


def test_the_schemas_are_of_many_kinds_and_bounded() -> None:
    prompts = json_prompts()[: -grammar.CHOSEN_ON[grammar.SCHEMAS]]
    kinds = Counter(prompt.kind for prompt in prompts)
    assert len(prompts) >= 2 * 60
    assert len(kinds) >= 12
    assert min(kinds.values()) >= 2 * 3
    assert len(tool_prompts()) - grammar.CHOSEN_ON[grammar.TOOLS] >= 12
    assert [part for schema in schemas() for part in unbounded(schema)] == []
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 40 * 1024
    assert unbounded({"type": ["string", "null"], "items": {"type": "number", "minimum": 3}}) != []


def test_every_schema_is_one_and_can_be_followed(small_pair: Pair) -> None:
    for schema in schemas():
        Draft202012Validator.check_schema(schema)
    for prompt in (*json_prompts()[::2], *tool_prompts()):
        prompt.constraint.matcher(small_pair.vocabulary)  # raises InputError for what is not supported


def test_answers_are_judged_by_their_schema() -> None:
    fault = judge_of('{"type": "array", "items": {"type": "number", "multipleOf": 0.01}, "maxItems": 2}')
    assert [fault(text) for text in ("[19.99, 3]", "[0.005]", "[1, 2, 3]", "[1", "")] == [
        *("", AGAINST_SCHEMA, AGAINST_SCHEMA, NO_JSON, NO_JSON)
    ]
    assert judge_of('{"format": "date"}')('"2023-02-30"') == AGAINST_SCHEMA


def test_a_call_is_judged_by_its_function() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    fault = judge_of_call([{"name": "f", "parameters": parameters}])

    def call(name: str, arguments: str) -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'

    right = call("f", '{"n": 1}')
    assert fault(right) == ""
    assert {fault(text) for text in ("", "f(1)", right + " and more")} == {NO_CALL}
    assert fault(call("f", '{"n": "1"}')) == fault(call("g", '{"n": 1}')) == AGAINST_SCHEMA
    assert fault("<tool_call>{</tool_call>") == fault(right * 2) == NO_JSON


def written(tokens: list[int], seconds: float, verified: list[int], masks: float = 0.0) -> Written:
    """Return a text of which the first token took a second."""
    accepted = [1] * len(verified)
    return Written([tokens], 1.0, 1.0 + seconds, Statistics(1, len(tokens), 0, 0, verified, accepted, accepted), masks)


def results(pair: Pair) -> dict[str, Result]:
    """Return texts of every way for two prompts: `1` with its end, and a text that meets the limit."""
    [number] = pair.tokenizer("1").input_ids
    tokens = [number, min(pair.target.eos)], [number] * 5
    plain = Result([""], [written(text, len(text) - 1.0, [1] * (len(text) - 1)) for text in tokens])
    other = Result(["chain"], [written(text, (len(text) - 1) / 2, [4] * (len(text) - 1), 0.1) for text in tokens])
    better = Result(["chain"], [written(text, (len(text) - 1) / 4, [3] * (len(text) - 1)) for text in tokens])
    ways = (grammar.PLAIN, plain), (grammar.TARGET_ONLY, other), (grammar.MASKED, better), (grammar.FASTEST, better)
    return dict(ways)


PROMPTS = [ConstrainedPrompt(kind, "", json_prompts()[0].constraint, judge_of("true")) for kind in ("array", "map")]


def test_figures_are_those_of_the_texts(small_pair: Pair) -> None:
    plain, other, better, _ = grammar.figures(small_pair, PROMPTS, results(small_pair))
    assert plain["against_plain"] == figure((1, 1, 1))
    assert other["decoding_against_plain"] == figure((2, 2, 2))
    assert (plain["verified_per_token"], better["verified_per_token"]) == (1, 3)
    assert better["verified_against_target_only"] == figure((0.75, 0.75, 0.75))
    assert other["masks"] == figure(0.2 / 2.5)
    assert (other["texts"], other["ended"], other["valid"], other["equal_to_plain"]) == (2, 1, 1, 1)
    assert [better["by_kind"][kind][0] for kind in ("array", "map")] == figure((4, 4))
    wrong = [replace(prompt, fault=judge_of("false")) for prompt in PROMPTS]
    row = next(grammar.figures(small_pair, wrong, results(small_pair)))
    assert (row["valid"], row["faults"]) == (0, {AGAINST_SCHEMA: 1})


def test_the_table_shows_them(small_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"pair": "tiny", "policy": "chain", "max_new_tokens": 5, "threads": 1, "dtype": "float32"}
    about = {"commit": "0", "time": "2026-11-28T00:00:00Z", "hardware": "here"}
    rows = [
        {"figures": json.loads(json.dumps({"set": name, **row})), "configuration": {**run, "temperature": degree}}
        | about
        for name, degree in table.TEXTS
        for row in grammar.figures(small_pair, PROMPTS, results(small_pair))
    ]
    monkeypatch.setattr(table, "lines", lambda _: rows)
    shown = table.grammar().strip().splitlines()
    assert shown[3].startswith(f"| {grammar.MASKED} | 4.00 (4.00-4.00) | 4.00")
    assert (table.texts(), table.same(), table.ended(), table.valid()) == ("24", "24", "12", "12")
    assert table.verified() == "0.75 (0.75-0.75)"
    assert table.kinds() == "4.0 (array) to 4.0 (map)"


@pytest.mark.slow
def test_every_way_writes_the_text_of_plain_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "TREES", ())
    monkeypatch.setattr(grammar, "CHOSEN_ON", dict.fromkeys(grammar.CHOSEN_ON, 1))
    out = tmp_path / "lines.jsonl"
    words = ["--pair", "tiny", "--prompts", "2", "--new-tokens", "40", "--json", str(out)]
    done = CliRunner().invoke(app, ["grammar", *words])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line)["figures"] for line in out.read_text().splitlines()]
    assert [row["contender"] for row in rows] == 4 * [
        *(grammar.PLAIN, grammar.TARGET_ONLY, grammar.MASKED, grammar.FORCED, grammar.WITH_NGRAMS, grammar.FASTEST)
    ]
    assert [row for row in rows if row["equal_to_plain"] < 1 or row["valid"] < row["ended"]] == []
    plain, target_only, masked, forced, *_ = rows
    assert masked["tau"] >= target_only["tau"] > plain["tau"] == 0
    assert forced["tau"] >= masked["tau"]
