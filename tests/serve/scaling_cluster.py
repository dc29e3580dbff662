"""A Ray cluster on this machine whose nodes come and go, with GPUs that are made up.

As `ray.cluster_utils.AutoscalingCluster`, which needs a file that is not in Ray's wheel, and before it starts ends
every Ray on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from running_server import eventually, free_port, is_alive

PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


class ScalingCluster:
    """A head node without GPUs, and up to `workers` nodes of one GPU each.

    Attributes:
        environment: what finds the cluster, for `serve` and `ray`.
    """

    def __init__(self, folder: Path, workers: int, cpus: int = 1) -> None:
        self._temp = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short names
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.dashboard = f"http://127.0.0.1:{(dashboard_port := free_port())}"
        ours = {"RAY_ADDRESS": self.address, "RAY_AUTH_MODE": "disabled", "RAY_DASHBOARD_ADDRESS": self.dashboard}
        self.environment = os.environ | ours
        config = folder / "autoscaler.json"
        config.write_text(json.dumps(_launcher_config(self.address, workers, cpus)))
        command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=0", "--num-gpus=0"]
        command += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--autoscaling-config={config}"]
        command += [f"--dashboard-port={dashboard_port}", "--dashboard-agent-listen-port=0"]
        command += [f"--ray-client-server-port={free_port()}"]
        command += ["--object-store-memory=200000000", f"--temp-dir={self._temp}", "--disable-usage-stats"]
        self._log = folder / "ray.log"
        self._process = subprocess.Popen(
            [str(part) for part in command],
            env=os.environ
            | {"RAY_AUTH_MODE": "disabled", "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"},
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            eventually(self._started, "the head node", 120)
        except BaseException:
            self.close()
            raise

    def _started(self) -> bool:
        log = self._log.read_text()
        assert self._process.poll() is None, log
        return "Ray runtime started" in log

    def nodes(self) -> int:
        """Living nodes, the head included."""
        return sum("raylet" in process.name() for process in self._descendants() if is_alive(process))

    def close(self) -> None:
        descendants = self._descendants()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self._temp, ignore_errors=True)

    def _descendants(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.name()
                found.append(process)
        return found


def _launcher_config(address: str, workers: int, cpus: int) -> dict[str, Any]:
    return {
        "cluster_name": "made-up",
        "max_workers": workers,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.2,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_launch_config_check": True,
            "disable_node_updaters": True,
            "worker_liveness_check": False,
            "worker_rpc_drain": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "gpu": {
                "resources": {"CPU": cpus, "GPU": 1, "object_store_memory": 200_000_000},
                "node_config": {},
                "min_workers": 0,
                "max_workers": workers,
            },
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }
