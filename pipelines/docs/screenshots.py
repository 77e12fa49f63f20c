"""Screenshots of `c2t view` for the pages: python -m pipelines.docs.screenshots (needs Chromium and Playwright)."""

import shutil
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import sync_playwright

from c2t import C2T, Eagle2, TreeClassifier
from c2t.models.loading.load import load_pair
from c2t.sampling import Sampling
from c2t.viewer.page import page
from c2t.viewer.view import Viewer

FOLDER = Path(__file__).parents[2] / "docs" / "images"
PROMPT, NEW = "Why is the sky blue?", 64
COLOURS = 64  # of a PNG, which is then less than half as large


class Screenshot(NamedTuple):
    """One picture: the colour scheme, the round (from 0), whether EAGLE-2's tree is shown too, the size in pixels."""

    scheme: str
    round: int
    compared: bool
    width: int
    height: int


SCREENSHOTS = {
    "view-light.png": Screenshot("light", 6, False, 1240, 880),
    "view-compare-dark.png": Screenshot("dark", 6, True, 1500, 960),
}


def main() -> None:
    """Decode, open the page and take the pictures."""
    pair = load_pair("smollm2")
    policies = [C2T(TreeClassifier.from_pretrained("smollm2")), Eagle2(N=60)]
    viewer = Viewer(pair, policies, PROMPT, max_new_tokens=NEW, sampling=Sampling())
    for _ in viewer.events():
        pass
    with TemporaryDirectory() as folder, sync_playwright() as run:
        browser = run.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        file = Path(folder) / "tree.html"
        for name, shot in SCREENSHOTS.items():
            shown = viewer.document["policies"][: 1 + shot.compared]
            file.write_text(page(viewer.document | {"policies": shown}), encoding="utf-8")
            size = {"width": shot.width, "height": shot.height}
            view = browser.new_page(viewport=size, color_scheme=shot.scheme)
            view.goto(file.as_uri())
            for _ in range(shot.round):
                view.keyboard.press("ArrowRight")
            picture = Image.open(BytesIO(view.screenshot())).convert("RGB")
            picture.quantize(COLOURS).save(FOLDER / name, optimize=True)
            print(FOLDER / name)
        browser.close()


if __name__ == "__main__":
    main()
