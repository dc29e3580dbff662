"""`serve run` as a user runs it, with real engines, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

MODEL = "random"
START_LIMIT_S = 300
RANDOM_MODEL = {
    "source": "random-qwen3",
    "name": MODEL,
    "random": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32},
}
ENGINE = {
    "max_total_tokens": 20_000,
    "enable_hierarchical_cache": True,
    "hicache_ratio": 2.0,
    "max_running_requests": 16,
    "context_length": 4000,
    "dtype": "float32",
}


def eventually(check: Callable[[], Any], what: str, limit_s: float = 60, every_s: float = 0.2) -> Any:
    """The first true value of `check`; a failure after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(every_s)
    pytest.fail(f"not within {limit_s} s: {what}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def config(port: int, args: dict[str, Any]) -> dict[str, Any]:
    application = {"name": "forecache", "route_prefix": "/", "import_path": "serving.app:build_app", "args": args}
    # Nodes that are on one machine would share the port, and clients would lose a connection with the node of another.
    where = {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}
    return where | {"applications": [application]}


def run_tool(*command: str | Path) -> str:
    """Runs a command against the server's cluster as the README says to, with Ray's token; what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"RAY_AUTH_MODE": "token", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Server:
    """A running `serve run`, and what may be left of it.

    Args:
        environment: names the Ray cluster to run on; None: one of its own.
    """

    def __init__(self, folder: Path, args: dict[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.shared_memory_before = shared_memory()
        self.args = args
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=120)
        self._log = folder / "serve.log"
        self._process = subprocess.Popen(
            [Path(sys.executable).parent / "serve", "run", self.write_config(args)],
            env=environment,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            # A shell that runs the tests in the background has them ignore Ctrl-C, and what they start with them.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def write_config(self, args: dict[str, Any]) -> Path:
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(config(self.port, args)))
        return path

    def wait(self, engines: int) -> None:
        eventually(lambda: len(self.engines()) == engines, f"{engines} engines\n{self.log()[-3000:]}", START_LIMIT_S)

    def answers(self) -> bool:
        """Whether the endpoint is there, with or without engines."""
        try:
            return self.http.get("/v1/models").status_code == 200
        except httpx.TransportError:
            return False

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def engines(self) -> list[dict[str, Any]]:
        """What each engine says of itself; none while the server is not up."""
        assert self._process.poll() is None, f"`serve run` has ended\n{self.log()[-3000:]}"
        try:
            response = self.http.get("/v1/engines")
        except httpx.TransportError:
            return []
        return response.json()["data"] if response.status_code == 200 else []

    def engine(self, engine_id: str) -> dict[str, Any]:
        return next((engine for engine in self.engines() if engine["id"] == engine_id), {})

    def chat(self, text: str = "Hello", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
        return self.http.post("/v1/chat/completions", json=body | fields, headers=headers or {})

    def processes(self) -> list[psutil.Process]:
        """Every process that this server has started, Ray's included."""
        return psutil.Process(self._process.pid).children(recursive=True)

    @contextlib.contextmanager
    def silent_coordinator(self) -> Iterator[None]:
        """It says nothing meanwhile, nor does any that Serve puts in its place; all of them are killed then."""
        silenced: dict[int, psutil.Process] = {}
        over = threading.Event()

        def silence() -> None:
            while not over.wait(0.5):
                for process in self.processes():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if process.pid not in silenced and "CacheCoordinator" in str(process.cmdline()):
                            process.suspend()
                            silenced[process.pid] = process

        keeper = threading.Thread(target=silence)
        keeper.start()
        try:
            eventually(lambda: silenced, "a coordinator that can be silenced")
            yield
        finally:
            over.set()
            keeper.join()
            for process in silenced.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def interrupt(self) -> int:
        """Ctrl-C, as a terminal sends it to the foreground group; the exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(timeout=90)

    def close(self) -> None:
        """Takes the server down in whatever state it is: by Ctrl-C, or if that does not do, by force."""
        self.http.close()
        if self._process.poll() is not None:
            return
        processes = self.processes()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.interrupt()
        for process in [*processes, self._process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def shared_memory() -> set[str]:
    return {str(path) for pattern in ("sglang*", "sem.mp-*") for path in Path("/dev/shm").glob(pattern)}


def leftovers(processes: list[psutil.Process], before: set[str]) -> list[str]:
    """What is still there of these processes: themselves, folders, shared memory that was not there `before`."""
    alive = [f"{process.pid} {process.name()}" for process in processes if is_alive(process)]
    folders = [str(path) for path in Path(f"/tmp/forecache-{os.getuid()}").glob("*") if not owner_is_alive(path)]
    return alive + folders + sorted(shared_memory() - before)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def owner_is_alive(path: Path) -> bool:
    return psutil.pid_exists(int(path.name.partition("-")[0]))
