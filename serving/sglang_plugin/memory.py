"""What is remembered of a node that has left the tree, for when it is computed again."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from serving.sglang_plugin.entries import RETURNED, UNNAMED, Entry

MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """What is worth knowing of a node that has left the tree.

    users: workflows that had used it; `names` of some of those that were active, `last` of one that was not.
    """

    users: int
    unnamed: bool
    names: tuple[str, ...]
    last: str | None

    @classmethod
    def of(cls, entry: Entry) -> Memory:
        """Of a node that is about to leave."""
        names = tuple(owner.workflow for owner in itertools.islice(entry.owners, MAX_NAMES))
        ended = entry.past & (UNNAMED - 1)
        return cls(ended + len(entry.owners), entry.past >= UNNAMED, names, entry.last)

    def restore(self, entry: Entry) -> None:
        """The entry of the node that has taken its place, which a call has touched, knows of it again.

        Its uses are counted anew, and apart from those of nodes that are here for the first time.
        """
        if entry.uses < RETURNED:
            entry.uses += RETURNED
        known = {*self.names, self.last}
        others = self.users - sum(owner.workflow in known for owner in entry.owners)
        if entry.past == 1 and entry.last in known:  # it came back for a call that outlived its workflow
            others -= 1
        if others > 0:
            entry.past += others
            entry.last = self.last or next(iter(self.names), None)
        if self.unnamed:
            entry.past |= UNNAMED
