"""Files of workflow traces: written as workflows end, readable meanwhile, and not lost by a damaged byte.

A folder holds the files of any number of writers, `NAME-000001.msgpack` and on. A file is a sequence of frames, each a
length, a checksum and a record (`trace_frames.py`); the first record names the format and its version, each other one
is a workflow (`trace_record.py`). Nothing that has been written is ever changed.
"""

from predictor_actor.trace_reader import Problem, ReadResult, TraceError, read_traces
from predictor_actor.trace_tail import TraceTail
from predictor_actor.trace_writer import TraceWriter

__all__ = ["Problem", "ReadResult", "TraceError", "TraceTail", "TraceWriter", "read_traces"]
