"""A chart as SVG, light and dark."""

from collections.abc import Iterable
from pathlib import Path

import usage  # noqa: F401

STYLE = (Path(__file__).parent / "style.css").read_text()
DASHED = 'stroke-dasharray="6 4"'


class Chart:
    def __init__(self, width: float, height: float, title: str = "", style: str = "") -> None:
        self._out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            f"<style>{STYLE}{style}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="10"/>',
        ]
        if title:
            self._out.insert(1, f"<title>{title}</title>")

    def text(
        self, x: float, y: float, words: str, anchor: str = "middle", soft: bool = True
    ) -> None:
        name = ' class="soft"' if soft else ""
        self._out.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{words}</text>'
        )

    def rule(self, x: float, y: float, width: float) -> None:
        self._out.append(f'<path class="line" d="M{x} {y:.1f}h{width}"/>')

    def key(self, x: float, y: float, width: float, stroke: str) -> None:
        self._out.append(f'<path d="M{x} {y}h{width}" {stroke} stroke-width="3"/>')

    def curve(self, points: Iterable[tuple[float, float]], stroke: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._out.append(f'<polyline points="{path}" fill="none" {stroke}/>')

    def __str__(self) -> str:
        return "\n".join([*self._out, "</svg>"]) + "\n"
