"""PyTorch Geometric's layers, without its data sets.

Importing the package reads all of its data sets too, which bring a language model's tokenizer and more with them. They
are therefore read when they are first used, if ever (`importlib.util.LazyLoader`); whoever uses them finds them as they
are. Nothing that others import goes this way: a module that is read in the midst of another's import may be asked for
what it does not have yet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

LATER = frozenset({"torch_geometric.datasets"})


class _LaterFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _later() -> Iterator[None]:
    finder = _LaterFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


with _later():
    from torch_geometric.nn import RGCNConv, SimpleConv

__all__ = ["RGCNConv", "SimpleConv"]
