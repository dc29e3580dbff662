"""PyTorch Geometric as it is imported here: without what nobody uses, and without harm to those who import more."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import predictor_actor.geometric
assert "transformers" not in sys.modules and "pandas" not in sys.modules, "data sets were read"
"""
AFTERWARDS = {
    "the data sets": "from torch_geometric.datasets import Planetoid; assert Planetoid.url",
    "torch's compiler": "import torch; assert torch.compiler.disable(lambda: 1)() == 1; torch._dynamo.reset()",
    "SGLang and transformers": "import sglang; from sglang.srt.server_args import ServerArgs",
}


@pytest.mark.parametrize("then", AFTERWARDS.values(), ids=AFTERWARDS.keys())
def test_whoever_imports_more_in_the_same_process_finds_it_whole(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + then], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
