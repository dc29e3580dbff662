"""Other people's routers behind Forecache's contract, for comparison."""

from serving.benchmark.routers import power_of_two, prefix_affinity

__all__ = ["BENCHMARK_ROUTERS", "power_of_two", "prefix_affinity"]

# By the names under which they are registered here: what a server that knows nothing of benchmarks imports them by.
BENCHMARK_ROUTERS = {
    "power-of-two": "serving.benchmark.routers.power_of_two:PowerOfTwo",
    "prefix-affinity": "serving.benchmark.routers.prefix_affinity:PrefixAffinity",
}
