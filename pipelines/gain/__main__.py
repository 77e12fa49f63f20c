"""Study of when a learned tree gains, two studies of drafts that are not calibrated, one of parallel drafts, one of
what their conditions learn from served texts, one of the fit behind autoregressive heads, one of how far the text's
n-grams are trusted, and one of a real pair.

python -m pipelines.gain [OPTIONS]
python -m pipelines.gain calibration|deep|other-domain|parallel|real-pair|served|trust [OPTIONS]
"""

import typer

from pipelines import terminal
from pipelines.gain import calibration, deep, other_domain, parallel, real_pair, served, study, trust

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.callback(invoke_without_command=True)(study.main)
app.command("calibration")(calibration.main)
app.command("deep")(deep.main)
app.command("other-domain")(other_domain.main)
app.command("parallel")(parallel.main)
app.command("real-pair")(real_pair.main)
app.command("served")(served.main)
app.command("trust")(trust.main)

if __name__ == "__main__":
    with terminal.errors_in_one_line("pipelines.gain"):
        app()
