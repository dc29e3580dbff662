"""A Ray cluster on this machine whose nodes come and go with the load.

As `ray.cluster_utils.AutoscalingCluster`, which needs a file that is not in Ray's wheel, and before it starts ends
every Ray on the machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from local_cluster import OBJECT_STORE, LocalCluster
from running_server import free_port

PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


class ScalingCluster(LocalCluster):
    """A head node, and up to `workers` nodes of one GPU each, which the head starts and ends."""

    def __init__(self, folder: Path, workers: int, cpus: int = 1) -> None:
        port = free_port()
        config = folder / "autoscaler.json"
        config.write_text(json.dumps(_launcher_config(f"127.0.0.1:{port}", workers, cpus)))
        environment = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        super().__init__(folder, port, f"--autoscaling-config={config}", environment=environment)


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
                "resources": {"CPU": cpus, "GPU": 1, "object_store_memory": OBJECT_STORE},
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
