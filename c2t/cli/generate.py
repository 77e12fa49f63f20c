"""The command that decodes texts: generate."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from c2t.cli import options as o
from c2t.cli import reports, shared, terminal
from c2t.cli.chat import Settings as ChatSettings
from c2t.cli.chat import converse
from c2t.cli.tuned import check_tuned_with, tuned_policy
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.grammars.grammar import Grammar
from c2t.models.loading.load import Pair
from c2t.models.target.tensor_parallel import FirstProcessTrees, rank_and_world
from c2t.output.stoppable import checked_stops
from c2t.policies.spec import describe
from c2t.sampling import Sampling
from c2t.storage.checked import read_file
from c2t.study import acceptance
from c2t.verification.prompt_ids import check_length, check_new_tokens

PROMPT = "Write a Python function that returns the n-th Fibonacci number."
# Options of generate -> options that cannot be given with them, and the line that says so.
EXCLUSIVE = {
    "prompts": (("chat", "prompt"), "--prompts is in place of PROMPT and of --chat: leave one out"),
    "raw": (("chat", "system"), "--{} is for the pair's chat template: leave --raw out"),
    "tp": (("chat",), "--chat reads a terminal, which only one process has: leave --tp out"),
    "graphs": (("chat", "tp"), "--graphs decodes texts of a known length in one process: leave --{} out"),
    "tuned": (("policy", "beta"), "--tuned chooses the policy: leave --policy and --beta out"),
    "json_schema": (("regex", "grammar"), "a text has one constraint: leave --json-schema or --{} out"),
    "regex": (("grammar",), "a text has one constraint: leave --regex or --{} out"),
}


@o.with_models
def generate(
    context: terminal.Context,
    models: o.Models,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="Text to answer; without a chat template, to continue.", metavar="PROMPT", show_default=False
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Hold a conversation, a line a turn, until /exit."),
    ] = False,
    system: o.System = None,
    raw: o.Raw = False,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Decode the first turns of a JSONL file together.",
            parser=o.a_path,
            metavar="FILE",
        ),
    ] = None,
    policy: o.PolicySpec = None,
    tuned: o.Tuned = False,
    classifier: o.Classifier = None,
    beta: Annotated[
        float | None,
        typer.Option(
            help="Least confidence of policy c2t.",
            show_default="the classifier's",
        ),
    ] = None,
    max_new_tokens: o.MaxNewTokens = 128,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    seed: o.NewSeed = None,
    stop: o.Stop = None,
    json_schema: o.JsonSchema = None,
    regex: o.Regex = None,
    grammar: o.GrammarFile = None,
    rule: o.Rule = None,
    tp: o.TensorParallel = False,
    graphs: o.Graphs = False,
    threads: o.Threads = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Show rounds, gamma and draft passes.", rich_help_panel=o.OUTPUT_PANEL),
    ] = False,
    json: o.Json = None,
) -> None:
    """Answer or continue a prompt, and show how fast that was.

    The text appears round by round, those tokens green that the draft guessed.
    Texts of --prompts appear when all of them have ended. Ctrl-C ends an answer of --chat.
    """
    for option, (others, line) in EXCLUSIVE.items():
        terminal.refuse(context, option, others, line)
    texts = [turns.turns[0] for turns in shared.read(prompts)] if prompts else [PROMPT if prompt is None else prompt]
    if tp and rank_and_world()[0]:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        json = None
    constraint = _constraint(json_schema, regex, grammar)
    how = ChatSettings(
        max_new_tokens, temperature, top_k, top_p, min_p, seed, rule, checked_stops(stop or ()), constraint
    )
    if threads is not None:
        torch.set_num_threads(threads)
    Sampling(temperature, top_k=top_k, top_p=top_p, min_p=min_p)  # InputError before the model is loaded
    check_new_tokens(max_new_tokens)
    pair = shared.load(models, tp, specs=[policy] if policy else ())
    if graphs:
        o.check_graphed(pair.target.device)
    if tuned:
        pair, chosen, entry = tuned_policy(pair, len(texts), temperature, classifier, tp)
        check_tuned_with(entry, classifier)
    else:
        rates = acceptance.lookup(pair, temperature, rule, top_p)
        spec = policy or ("c2t" if beta is not None else shared.default_policy(pair, classifier))
        (chosen,) = shared.policies(pair, classifier, [spec], rates, shared.costs(pair, tp), beta=beta)
    if beta is not None and getattr(chosen, "beta", None) != beta:
        raise InputError(
            f"--beta {beta:g} cannot be applied to the policy {describe(chosen, brief=True)}: give it with --policy c2t"
        )
    decoder = SpeculativeDecoder(pair, FirstProcessTrees(chosen) if tp else chosen)
    if graphs:
        longest = max(map(len, decoder.encode(texts, not raw, system)))
        check_length(longest, max_new_tokens, pair.target.max_positions, "the prompt")
        decoder = SpeculativeDecoder(pair, chosen, graph_tokens=longest + max_new_tokens)
    if constraint is not None:
        constraint.matcher(pair.vocabulary)  # compiled here: part of loading, as the first tokens are
    decoder.warm_up(len(texts))
    about = {"pair": pair.name, "policy": describe(chosen), "raw": raw, "system": system}
    if chat:
        talk = converse(decoder, prompt, how, system, verbose)
        figures = {"turns": talk.turns, "answers": talk.answers, **talk.total.figures(), "seconds": talk.seconds}
        seed = talk.seed
    else:
        figures, seed = _decode(decoder, texts, how, system, raw, verbose)
    terminal.result(json, "generate", figures, about | how.facts() | {"seed": seed})


def _constraint(json_schema: Path | None, regex: str | None, grammar: Path | None) -> Grammar | None:
    """Return what the text must follow, None for anything; InputError that names the file that is none."""
    if regex is not None:
        return Grammar.regex(regex)
    file = json_schema or grammar
    if file is None:
        return None
    data = read_file(file)
    try:
        return Grammar.json_schema(data.decode()) if json_schema else Grammar.lark(data.decode())
    except ValueError as error:
        said = "no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(f"{file}: {said}") from error


def _decode(
    decoder: SpeculativeDecoder, texts: list[str], settings: ChatSettings, system: str | None, raw: bool, verbose: bool
) -> tuple[dict[str, Any], int]:
    """Print what one text becomes round by round, or several when they have ended; return the figures and the seed."""
    streams = [settings.stream(decoder, _continued(decoder.pair, text, raw)) for text in texts]
    alone = len(texts) == 1
    watch = streams[0] if alone else lambda step: None
    start = time.perf_counter()
    try:
        output = decoder.generate(texts, **settings._asdict(), chat=not raw, system=system, watch=watch)
    except InputError:
        if streams[0].tokens:  # a constraint became too complex on the way
            streams[0].end()
        raise
    seconds = time.perf_counter() - start
    if alone:
        streams[0].end()
    else:
        for stream, tokens in zip(streams, output.sequences, strict=True):
            stream.whole(tokens)
    seed = output.seed if settings.temperature else None
    terminal.say(reports.statistics_line(output.total, seconds, seed, verbose), error=True)
    generated = {"text": output.text} if alone else {"texts": output.texts}
    return {**generated, **output.total.figures(), "seconds": seconds}, output.seed


def _continued(pair: Pair, text: str, raw: bool) -> str:
    """Return what to print before a prompt's new text: the prompt, where it is continued and not answered."""
    return text if raw or not pair.template else ""
