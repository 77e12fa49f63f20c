"""Commands that measure speed, or count what is accepted.

python -m pipelines.bench COMMAND
"""

import typer

from pipelines import terminal
from pipelines.bench import (
    batches,
    breakdown,
    chains,
    decoding,
    forward,
    grammar,
    lengths,
    llama_bench,
    long_texts,
    noise,
    own_model,
    serve,
    vocabulary,
)

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help=__doc__)
app.command("decoding")(decoding.main)
app.command("batches")(batches.main)
app.command("breakdown")(breakdown.main)
app.command("chains")(chains.main)
app.command("forward")(forward.main)
app.command("grammar")(grammar.main)
app.command("llama-bench")(llama_bench.main)
app.command("lengths")(lengths.main)
app.command("long")(long_texts.main)
app.command("noise")(noise.main)
app.command("own-model")(own_model.main)
app.command("disturb")(own_model.disturb)
app.command("serve")(serve.main)
app.command("vocabulary")(vocabulary.main)

if __name__ == "__main__":
    with terminal.errors_in_one_line("pipelines.bench"):
        app()
