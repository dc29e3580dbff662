"""Importing PyTorch Geometric's layers reads no more than they need."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import predictor_actor.model
assert not {"sympy", "transformers", "llvmlite"} & set(sys.modules), "a part that is for later has been read"
assert not [finder for finder in sys.meta_path if "predictor_actor" in type(finder).__module__]
import torch._dynamo
assert callable(torch._dynamo.reset)
assert "sympy" in sys.modules
"""


def test_what_is_for_later_is_read_when_it_is_used_and_not_before() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
