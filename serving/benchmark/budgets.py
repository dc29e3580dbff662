"""Figures that have a budget, and the table that sets the two side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a figure may be: at most `limit`, or at least."""

    name: str
    unit: str
    limit: float
    at_least: bool = False

    def met(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit


def missed(figures: Mapping[str, float], budgets: Sequence[Budget]) -> list[str]:
    """The names of the figures that are beyond their budgets."""
    return [budget.name for budget in budgets if budget.name in figures and not budget.met(figures[budget.name])]


def print_table(figures: Mapping[str, float], budgets: Sequence[Budget], console: Console) -> None:
    """The figures for people, with the budgets beside them."""
    table = Table("figure", "measured", "budget", "unit", "")
    known = {budget.name: budget for budget in budgets}
    for name, figure in figures.items():
        budget = known.get(name)
        if budget is None:
            table.add_row(name, f"{figure:.3g}", style="dim")
            continue
        limit = f"{'≥' if budget.at_least else '≤'} {budget.limit:.3g}"
        verdict = "[green]met[/]" if budget.met(figure) else "[red]missed[/]"
        table.add_row(name, f"{figure:.3g}", limit, budget.unit, verdict)
    console.print(table)
