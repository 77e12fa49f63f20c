"""Run the command line as `python -m c2t`."""

from c2t.cli.app import app

app(prog_name="c2t")
