"""Other people's routers behind Forecache's contract, for comparison."""

from serving.benchmark.routers import power_of_two, prefix_affinity

__all__ = ["power_of_two", "prefix_affinity"]
