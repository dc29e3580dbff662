"""Classes of somebody's own, named in a config by `package.module:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any


def imported(what: str, name: str, base: type, known: Iterable[str]) -> type[Any]:
    """The class at an import path.

    Args:
        what: such a class is, for errors ("router").
        name: `package.module:Class`.
        base: that it has to be a subclass of.
        known: names that may be said instead of a path, for errors.

    Raises:
        ValueError: it is no import path, nothing can be imported by it, or that is no such class.
    """
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(
            f"unknown {what} {name!r}; choose from {', '.join(known)}, or give the import path of your own: "
            "package.module:Class"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{what} {name!r} is no subclass of {base.__module__}.{base.__qualname__}")
    return found
