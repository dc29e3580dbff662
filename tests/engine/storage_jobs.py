"""Two engines with one storage folder: what the first computes, the second loads, whatever becomes of the files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_under_test import EngineUnderTest
from mixed_load import tokens

PAGE_TOKENS = 16
CONTEXT = tokens(301, 600)
NEXT = [*CONTEXT, *tokens(302, 40)]
STORED_TOKENS = len(CONTEXT) // PAGE_TOKENS * PAGE_TOKENS


def keep(engine: EngineUnderTest) -> dict[str, Any]:
    """The first engine: a workflow's first call, until it is in storage."""
    call = ask(engine, CONTEXT, "moving")
    deadline = time.monotonic() + 20
    while len(pages(engine)) < STORED_TOKENS // PAGE_TOKENS:
        assert time.monotonic() < deadline, f"{len(pages(engine))} pages are stored"
        time.sleep(0.1)
    return {"call": call}


def load(engine: EngineUnderTest) -> dict[str, Any]:
    """The second: the workflow's next call, again and again, with all of the files, damaged ones, and none."""
    folder = folder_of(engine)
    result: dict[str, Any] = {"loaded": ask(engine, NEXT, "moving")}
    result["nodes"] = engine.ask("dump")["nodes"]
    result["counters"] = engine.ask("figures")["counters"]
    result["again"] = ask(engine, NEXT, "moving")
    for name, harm in HARMS.items():
        result[name] = [after(engine, lambda harm=harm: harm(folder)), ask(engine, NEXT, "moving")]
    result["check"] = engine.ask("check")
    return result


def ask(engine: EngineUnderTest, prompt: list[int], workflow: str) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    status, answer = engine.answer(body, "completion", workflow=workflow)
    assert status == 200, answer
    return {"text": answer["choices"][0]["text"], **answer["usage"]["prompt_tokens_details"]}


def after(engine: EngineUnderTest, harm: Callable[[], None]) -> dict[str, Any]:
    """The next call once this has happened to the folder, with nothing in memory."""
    engine.flush()
    harm()
    return ask(engine, NEXT, "moving")


def folder_of(engine: EngineUnderTest) -> Path:
    return Path(engine.engine.server_args.file_storage_path)


def pages(engine: EngineUnderTest) -> list[Path]:
    return sorted(folder_of(engine).glob("*.bin"))


def truncate_all(folder: Path) -> None:
    for page in folder.glob("*.bin"):
        page.write_bytes(page.read_bytes()[:100])


def lengthen_all(folder: Path) -> None:
    """As files of a model with larger pages would be."""
    for page in folder.glob("*.bin"):
        page.write_bytes(bytes(2 * page.stat().st_size))


def make_unreadable(folder: Path) -> None:
    """A folder in each file's place: not even root can read it."""
    for page in folder.glob("*.bin"):
        page.unlink()
        page.mkdir()


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def put_a_file_in_its_place(folder: Path) -> None:
    """Nothing in it can be read, written or made, as on a disk that is full or gone."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.write_text("")


HARMS: dict[str, Callable[[Path], None]] = {
    "truncated": truncate_all,
    "too long": lengthen_all,
    "unreadable": make_unreadable,
    "removed": remove_folder,
    "a file": put_a_file_in_its_place,
}

STORAGE_JOBS: dict[str, Callable[[EngineUnderTest], dict[str, Any]]] = {
    "keep in storage": keep,
    "load from storage": load,
}
