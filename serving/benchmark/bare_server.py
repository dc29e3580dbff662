"""A bare SGLang server in a process of its own: what Forecache's overhead is measured against.

Run as a module with SGLang's server arguments as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

START_LIMIT_S = 240.0
POLL_S = 0.5
_LOG_TAIL = 2000


class BareServerError(RuntimeError):
    """The server did not start; the message has the end of its log."""


class BareServer:
    """A context manager. The server is up when it has been entered; leaving it takes it down with its children.

    Args:
        arguments: SGLang's server arguments by their Python names, without host and port.
        port: a free one.
        threads: compute threads.
    """

    def __init__(self, arguments: dict[str, Any], port: int, threads: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/"
        self._health = f"http://127.0.0.1:{port}/health"
        handle, log = tempfile.mkstemp(prefix="forecache-bare-", suffix=".log")
        self._log = Path(log)
        command = [sys.executable, "-m", __name__, json.dumps(arguments | {"host": "127.0.0.1", "port": port})]
        self._process = subprocess.Popen(
            command,
            stdout=handle,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore::UserWarning"},
            start_new_session=True,
        )
        os.close(handle)

    def __enter__(self) -> Self:
        """Raises BareServerError."""
        deadline = time.monotonic() + START_LIMIT_S
        try:
            while time.monotonic() < deadline and self._process.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(self._health, timeout=10).status_code == httpx.codes.OK:
                        return self
                time.sleep(POLL_S)
            tail = self._log.read_text(errors="replace")[-_LOG_TAIL:]
            raise BareServerError(f"the bare SGLang server did not come up within {START_LIMIT_S:g} s\n{tail}")
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            this = psutil.Process(self._process.pid)
            for process in [*this.children(recursive=True), this]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
        self._log.unlink(missing_ok=True)


if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import ServerArgs

    run_server(ServerArgs(**json.loads(sys.argv[1])))
