"""How the pictures of a report look: legible in grey and to the colour-blind, and as SVG inside an HTML page.

Colours are Okabe and Ito's ("Color Universal Design", 2008) without their yellow, which is too pale on white. Seven
colours with two line styles tell fourteen policies apart, and each has a marker of its own for readers without colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
from matplotlib.figure import Figure

P = ParamSpec("P")

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "d", "h", (4, 1, 0))
TIERS = (
    ("hit_device", "hit on device", "#0072B2", ""),
    ("hit_host", "hit on host", "#56B4E9", "///"),
    ("computed", "computed", "#E8E8E8", ""),
)
POOL = (
    ("active", "active", "#0072B2", ""),
    ("prefetched", "prefetched", "#009E73", "xxx"),
    ("retired", "retired", "#E69F00", "///"),
    ("free", "free", "#F2F2F2", ""),
)
RC: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "legend.fontsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 6.5,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "forecache",
    "text.usetex": False,
    "text.parse_math": False,
    "figure.constrained_layout.use": True,
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with `RC`, leaving matplotlib's own settings as they are."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(RC):
            return draw(*args, **kwargs)

    return inner


def policy_style(policy: str, policies: Sequence[str]) -> dict[str, Any]:
    """Colour, line and marker of a policy; the same in all pictures that are given the same list."""
    at = policies.index(policy)
    return {
        "color": COLOURS[at % len(COLOURS)],
        "linestyle": LINES[at // len(COLOURS) % len(LINES)],
        "marker": MARKERS[at % len(MARKERS)],
    }


def shorten(name: str, longest: int = 26) -> str:
    """A name that fits beside a picture; tables have it whole."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def save_png(figure: Figure, path: Path) -> None:
    """The same picture as a file, to look at."""
    with mpl.rc_context(RC):
        figure.savefig(path, format="png", dpi=110)


def as_svg(figure: Figure, prefix: str, title: str) -> str:
    """A picture as an `<svg>` element for an HTML page.

    Its ids get a prefix, since several pictures share a page, and its name spaces and metadata are left out: HTML needs
    neither, and a page without addresses is seen at once to load nothing.

    Args:
        title: plain text for screen readers; has to be escaped for HTML.
    """
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(RC):
        figure.savefig(file, format="svg", metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg, count=2)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = (
        svg.replace(' id="', f' id="{prefix}-')
        .replace('href="#', f'href="#{prefix}-')
        .replace("url(#", f"url(#{prefix}-")
    )
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
