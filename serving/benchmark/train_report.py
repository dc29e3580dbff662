"""A study of predictors as one HTML page, with pictures of the accuracy and of the call graph."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from predictor_actor.base import HORIZON, WorkflowTrace
from predictor_actor.graph import GraphView
from predictor_actor.markov import Markov
from serving.benchmark.plot_style import COLOURS, as_svg, policy_style, shorten, styled
from serving.benchmark.report import CSS, html_table
from serving.benchmark.train_tables import in_words, predictor_table

# More than these cannot be told apart in a picture.
MOST_AGENTS = 24
LEAST_CHANCE = 0.03


def write_page(figures: dict[str, Any], traces: Sequence[WorkflowTrace], path: Path) -> None:
    """Writes the page; its folder is made."""
    chain = Markov(1, memory=1 << 14)
    for trace in traces:
        chain.learn(trace)
    accuracy = as_svg(accuracy_picture(figures), "p1", "Share of forecasts whose likeliest agent was right")
    graph = as_svg(graph_picture(chain.graph.view()), "p2", "Call graph, the width of an edge by its probability")
    lines = "".join(f"<li>{escape(line)}</li>" for line in in_words(figures))
    body = (
        f"<h1>Who comes next</h1><ul>{lines}</ul>"
        f"<figure>{accuracy}<figcaption>Share of forecasts whose likeliest was right, by k.</figcaption></figure>"
        f"{html_table(predictor_table(figures))}"
        f"<figure>{graph}<figcaption>The call graph: an edge is as wide as the call is likely to follow; edges below "
        f"{LEAST_CHANCE:.0%} and all but the {MOST_AGENTS} most called agents are left out.</figcaption></figure>"
    )
    head = f'<meta charset="utf-8"><title>Who comes next</title><style>{CSS}</style>'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n', encoding="utf-8")


@styled
def accuracy_picture(figures: dict[str, Any]) -> Figure:
    """Top-1 against k, a line for each predictor."""
    figure = Figure(figsize=(8, 4.2))
    axes = figure.subplots()
    names = [name for name in figures["predictors"] if name != "oracle"]
    for name in names:
        axes.plot(range(1, HORIZON + 1), figures["predictors"][name]["top1"], label=name, **policy_style(name, names))
    axes.set(xlabel="calls ahead, k", ylabel="top-1", xticks=range(1, HORIZON + 1), ylim=(0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@styled
def graph_picture(view: GraphView) -> Figure:
    """Agents in a circle, the start and the end among them."""
    called = view.counts[:, 1:].sum(axis=0)
    shown = set((np.argsort(-called, kind="stable")[:MOST_AGENTS] + 1).tolist())
    names = {0: "START", **{number: shorten(view.names[number - 1], 22) for number in sorted(shown)}, -1: "END"}
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    chances = view.transitions()
    for row in (0, *sorted(shown)):
        for column in (0, *sorted(shown)):
            if chances[row, column] >= LEAST_CHANCE:
                graph.add_edge(row, column or -1, chance=float(chances[row, column]))
    figure = Figure(figsize=(9, 9))
    axes = figure.subplots()
    places = nx.circular_layout(graph)
    widths = [0.5 + 5 * chance for _, _, chance in graph.edges(data="chance")]
    nx.draw_networkx_nodes(graph, places, ax=axes, node_size=260, node_color="#FFFFFF", edgecolors=COLOURS[0])
    nx.draw_networkx_edges(
        graph, places, ax=axes, width=widths, edge_color=COLOURS[1], alpha=0.55, connectionstyle="arc3,rad=0.12"
    )
    outside = {node: (1.16 * x, 1.09 * y) for node, (x, y) in places.items()}
    nx.draw_networkx_labels(graph, outside, names, ax=axes, font_size=9)
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.25, 1.25))
    axes.set_axis_off()
    return figure
