"""The command line: options become settings, the library does the work, a table says what came out."""

from c2t.cli.bench import bench
from c2t.cli.catalog import drafts, policies
from c2t.cli.data import finetune, harvest, train
from c2t.cli.draft import app as draft
from c2t.cli.export import export_hub
from c2t.cli.generate import generate
from c2t.cli.info_command import info
from c2t.cli.overview import PANELS
from c2t.cli.parity import parity
from c2t.cli.program import program
from c2t.cli.serve import serve
from c2t.cli.study import plot, sweep
from c2t.cli.tune import tune
from c2t.cli.view import view

app = program(
    *(harvest, train, finetune),
    *(generate, serve, view, bench, tune, export_hub),
    *(sweep, plot, info, parity, policies, drafts),
)
app.add_typer(draft, name="draft", rich_help_panel=PANELS["draft"])
