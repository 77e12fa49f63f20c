"""Prompts with a constraint on their answer, from data/grammars, and the judges of the answers.

json.jsonl holds JSON schemas of many kinds, each with a task; tools.json holds functions, and tasks that call for one
of them. All strings, arrays and numbers are bounded, because a small model repeats itself.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from c2t.grammars.grammar import Grammar

FOLDER = Path(__file__).parents[2] / "data" / "grammars"
NO_JSON, NO_CALL, AGAINST_SCHEMA = "it is no JSON", "it is no list of calls", "it is against its schema"
LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
CALL = re.compile(r"<tool_call>(.*?)</tool_call>\s*", re.DOTALL)


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
        constraint = one_call(tools)
        lines = "\n".join(map(json.dumps, tools))
        task = f"{row['task']} Call one of these functions:\n{lines}"
        prompts.append(ConstrainedPrompt("tool call", task, constraint, judge_of_calls(tools)))
    return prompts


def one_call(tools: list[dict[str, Any]]) -> Grammar:
    """Return the constraint to one call of a tool."""
    call = json.dumps({"x-guidance": LAYOUT, **call_schema(tools)})
    return Grammar.lark(f'start: "<tool_call>" call "</tool_call>"\ncall: %json {call}')


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


def judge_of_calls(tools: list[dict[str, Any]]) -> Callable[[str], str]:
    """Return the judge of answers that must be one call of a tool, or several."""
    judge = judge_of(json.dumps(call_schema(tools)))

    def fault(answer: str) -> str:
        calls = CALL.findall(answer)
        if not calls or CALL.sub("", answer).strip():
            return NO_CALL
        return next(filter(None, map(judge, calls)), "")

    return fault


def _decimal(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)
