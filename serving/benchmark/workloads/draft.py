"""How the generated workloads are written: agents that add to a context and are called with what they see of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from serving.benchmark.workloads.base import Call, Segment, Workflow
from serving.benchmark.workloads.registry import check_choice

ANCHOR_FIRST = "anchor-first"
CONTEXT_FIRST = "context-first"


def check_layout(workload: str, layout: str) -> None:
    """Raises WorkloadError unless the layout is one that a draft knows."""
    check_choice(workload, "layout", layout, (ANCHOR_FIRST, CONTEXT_FIRST))


def anchors_of(workload: str, tokens: Mapping[str, int]) -> dict[str, Segment]:
    """For each agent its system prompt and tools, the same text in every workflow of the workload."""
    return {agent: Segment(f"{workload}/anchor/{agent}", length) for agent, length in tokens.items()}


@dataclass(slots=True)
class Draft:
    """A workflow that is being written.

    Attributes:
        anchors: of each agent.
        layout: `anchor-first`: a prompt is the agent's anchor and then what it sees of the context, so an agent's
            calls share their beginning. `context-first`: the context and then the agent's anchor as instructions, so
            different agents' calls share the context, and only that.
    """

    id: str
    anchors: Mapping[str, Segment]
    layout: str
    _context: list[tuple[Segment, Collection[str] | None]] = field(default_factory=list)
    _calls: list[Call] = field(default_factory=list)

    def add(self, what: str, tokens: int, readers: Collection[str] | None = None) -> None:
        """Adds a text of this workflow to the context. `what` need not be unique; `readers` None is everybody."""
        self.share(Segment(f"{self.id}/{len(self._context)}-{what}", tokens), readers)

    def share(self, segment: Segment, readers: Collection[str] | None = None) -> None:
        """Adds a segment that other workflows may have as well."""
        self._context.append((segment, readers))

    def call(
        self,
        agent: str,
        output_tokens: int,
        *,
        pause_s: float = 0.0,
        tool: str | None = None,
        readers: Collection[str] | None = None,
    ) -> None:
        """Calls the agent with the context as it sees it, and adds what it says for `readers`."""
        seen = tuple(segment for segment, who in self._context if who is None or agent in who)
        anchor = (self.anchors[agent],)
        prompt = anchor + seen if self.layout == ANCHOR_FIRST else seen + anchor
        number = len(self._calls)
        self._calls.append(Call(agent, prompt, output_tokens, pause_s, tool))
        self.share(Segment(f"{self.id}/output-{number}", output_tokens, number), readers)

    def fork(self, name: str) -> Draft:
        """Another workflow's draft, which begins with this one's context as it is now."""
        context = [(Segment(segment.id, segment.tokens), who) for segment, who in self._context]
        return Draft(name, self.anchors, self.layout, context)

    def workflow(self, arrival_s: float | None = None, parent: str | None = None) -> Workflow:
        return Workflow(self.id, tuple(self._calls), arrival_s, parent)
