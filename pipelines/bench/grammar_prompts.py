"""Prompts with a constraint on their answer, from data/grammars, and the judges of the answers.

json.jsonl holds JSON schemas of many kinds, each with a task; tools.json holds functions, and tasks that call for one
of them. All strings, arrays and numbers are bounded, because a small model repeats itself.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from c2t.grammars import tool_calls
from c2t.grammars.grammar import Grammar

FOLDER = Path(__file__).parents[2] / "data" / "grammars"
NO_JSON, NO_CALL, AGAINST_SCHEMA = "it is no JSON", "it is no call", "it is against its schema"
FRAME = replace(tool_calls.FRAME, between="")  # one call


@dataclass(frozen=True)
class ConstrainedPrompt:
    """A task and the constraint on its answer. kind: of the constraint. fault(answer): what is wrong with an answer
    that has ended, "" for a right one."""

    kind: str
    task: str
    constraint: Grammar
    fault: Callable[[str], str]


def json_prompts() -> list[ConstrainedPrompt]:
    """Return two prompts for each schema, one after the other: the task alone, and the task with the schema."""
    prompts = []
    for line in (FOLDER / "json.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        schema = json.dumps(row["schema"])
        constraint, judge = Grammar.json_schema(schema), judge_of(schema)
        tasks = f"{row['task']} Answer in JSON.", f"{row['task']} Answer with JSON that follows this schema:\n{schema}"
        prompts += [ConstrainedPrompt(row["kind"], task, constraint, judge) for task in tasks]
    return prompts


def tool_prompts() -> list[ConstrainedPrompt]:
    """Return a prompt for each task: it names the functions that the answer must call one of."""
    given = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
    prompts = []
    for row in given["tasks"]:
        tools = [{"name": name, "parameters": given["functions"][name]} for name in row["tools"]]
        constraint = Grammar.lark(FRAME.grammar(tools, required=True))
        lines = "\n".join(map(json.dumps, tools))
        task = f"{row['task']} Call one of these functions:\n{lines}"
        prompts.append(ConstrainedPrompt("tool call", task, constraint, judge_of_call(tools)))
    return prompts


def call_schema(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of a call of one of these tools."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "arguments": tool["parameters"]},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return {"anyOf": calls}


def judge_of(schema: str) -> Callable[[str], str]:
    """Return the judge of answers by a JSON schema. Numbers are decimal: 19.99 is a multiple of 0.01."""
    checker = Draft202012Validator.FORMAT_CHECKER
    validator = Draft202012Validator(_decimal(schema), format_checker=checker)

    def fault(answer: str) -> str:
        try:
            value = _decimal(answer)
        except ValueError:
            return NO_JSON
        return "" if validator.is_valid(value) else AGAINST_SCHEMA

    return fault


def judge_of_call(tools: list[dict[str, Any]]) -> Callable[[str], str]:
    """Return the judge of answers that must be a call of one of these tools."""
    judge = judge_of(json.dumps(call_schema(tools)))

    def fault(answer: str) -> str:
        framed = answer.startswith(FRAME.opening) and answer.endswith(FRAME.closing)
        return judge(answer.removeprefix(FRAME.opening).removesuffix(FRAME.closing)) if framed else NO_CALL

    return fault


def _decimal(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)
