"""What the benchmark serves: generated workloads and recorded traces, by name, deterministic by seed.

No Ray, no SGLang, no torch: workloads are data. `Tokens` turns their segments into token ids.
"""

from serving.benchmark.workloads import finance, fleet, hover, selector, swe, trace
from serving.benchmark.workloads.arrivals import Arrivals, Lanes, Poisson, Times
from serving.benchmark.workloads.base import Call, Segment, Statistics, Workflow, Workload, WorkloadError
from serving.benchmark.workloads.converters import Converted, convert, format_names
from serving.benchmark.workloads.registry import make_workload, workload_names, workload_parameters
from serving.benchmark.workloads.tokens import Tokens

__all__ = [
    "Arrivals",
    "Call",
    "Converted",
    "Lanes",
    "Poisson",
    "Segment",
    "Statistics",
    "Times",
    "Tokens",
    "Workflow",
    "Workload",
    "WorkloadError",
    "convert",
    "finance",
    "fleet",
    "format_names",
    "hover",
    "make_workload",
    "selector",
    "swe",
    "trace",
    "workload_names",
    "workload_parameters",
]
