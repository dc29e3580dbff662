"""The benchmark of forecasting: what it measures on, and its budgets."""

from __future__ import annotations

from rich.console import Console

from serving.benchmark.budgets import Budget, missed, print_table
from serving.benchmark.predictor_cost import AGENTS, BUDGETS, made_up


def test_its_workflows_use_all_agents_and_are_the_same_for_a_seed() -> None:
    assert len({call.agent for trace in made_up(400) for call in trace.calls}) == AGENTS
    assert made_up(5) == made_up(5)
    assert made_up(5) != made_up(5, seed=1)


def test_a_figure_beyond_its_budget_is_named() -> None:
    figures = {budget.name: budget.limit for budget in BUDGETS}
    assert missed(figures, BUDGETS) == []
    assert missed(figures | {"rss_mb": 701.0}, BUDGETS) == ["rss_mb"]
    assert missed({"hits": 0.5}, [Budget("hits", "×", 0.6, at_least=True)]) == ["hits"]


def test_figures_without_a_budget_are_shown_too() -> None:
    console = Console(record=True, width=100)
    print_table({"rss_mb": 701.0, "epochs": 7.0}, BUDGETS, console)
    text = console.export_text()
    assert "missed" in text
    assert "epochs" in text
