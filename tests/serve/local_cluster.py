"""A Ray cluster of its own on this machine, beside any other, with GPUs that are made up."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from running_server import eventually, free_port, is_alive

RAY = Path(sys.executable).parent / "ray"
START_LIMIT_S = 120
# Of each node, in bytes.
OBJECT_STORE = 200_000_000


class LocalCluster:
    """A head node without GPUs or CPUs, and those that are added.

    Args:
        folder: for logs.
        port: of the head node.
        options: more for `ray start --head`.
        environment: more for the head node.

    Attributes:
        address: of the head node.
        environment: what finds the cluster, for `serve` and `ray`.
    """

    def __init__(self, folder: Path, port: int, *options: str, environment: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._temp = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short names
        self.address = f"127.0.0.1:{port}"
        self.dashboard = f"http://127.0.0.1:{(dashboard_port := free_port())}"
        ours = {"RAY_ADDRESS": self.address, "RAY_AUTH_MODE": "disabled", "RAY_DASHBOARD_ADDRESS": self.dashboard}
        self.environment = os.environ | ours
        self._nodes: list[Node] = []
        try:
            self._head = self._start(
                "head",
                "--head",
                f"--port={port}",
                "--num-cpus=0",
                "--num-gpus=0",
                f"--dashboard-port={dashboard_port}",
                f"--ray-client-server-port={free_port()}",
                f"--temp-dir={self._temp}",
                *options,
                environment=environment,
            )
        except BaseException:
            self.close()
            raise

    def add_node(self, name: str, cpus: int = 1, gpus: int = 1) -> Node:
        """Another node, of GPUs that are made up."""
        return self._start(name, f"--address={self.address}", f"--num-cpus={cpus}", f"--num-gpus={gpus}")

    def nodes(self) -> int:
        """Living nodes, the head included."""
        processes = [process for node in self._nodes for process in node.processes()]
        return sum("raylet" in process.name() for process in processes if is_alive(process))

    def close(self) -> None:
        """Ends every process of every node."""
        processes = [process for node in self._nodes for process in node.processes()]
        for node in self._nodes[1:]:
            node.kill()
        for node in self._nodes[:1]:
            node.stop()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _start(self, name: str, *options: str, environment: dict[str, str] | None = None) -> Node:
        node = Node(self._folder / f"{name}.log", options, environment or {})
        self._nodes.append(node)
        eventually(node.has_started, f"node {name}", START_LIMIT_S)
        return node


class Node:
    """One `ray start --block` and all that it has started."""

    def __init__(self, log: Path, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self._log = log
        always = "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--dashboard-agent-listen-port=0"
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [str(RAY), "start", *always, f"--object-store-memory={OBJECT_STORE}", *options],
                env=os.environ | {"RAY_AUTH_MODE": "disabled"} | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_started(self) -> bool:
        log = self._log.read_text()
        assert self._process.poll() is None, log
        return "Ray runtime started" in log

    def processes(self) -> list[psutil.Process]:
        """All that it has started and that is still there, the command itself left out."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.name()
                    found.append(process)
        return found

    def kill(self) -> None:
        """As if its machine had lost its power: nothing of it says another word."""
        processes = self.processes()
        self._process.kill()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
