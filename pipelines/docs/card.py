"""The white card that pictures are drawn on, which can be read in a light and in a dark theme."""

from collections.abc import Iterable

INK = "#1f2328"


def card(width: int, height: int, drawn: Iterable[str]) -> str:
    """Return an SVG of these elements."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<style>text {{ font: 12px ui-sans-serif, Helvetica, Arial, sans-serif; fill: {INK}; }}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            *drawn,
            "</svg>\n",
        ]
    )
