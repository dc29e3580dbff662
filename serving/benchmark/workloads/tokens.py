"""Token ids for segments: as many as a segment is long, the same for the same segment, different for another."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from serving.benchmark.workloads.base import Call, Segment, WorkloadError

Ids = NDArray[np.int64]


class Tokens:
    """Makes up the text of a workload, as token ids.

    The ids are uniform random numbers that depend on the segment's id alone. With a large vocabulary two segments
    practically never begin with the same token; with a few hundred ids they sometimes share a token or two.

    Args:
        vocabulary: ids are below this; the model's vocabulary size, up to 2**63 - 1.
        first: ids are at least this; set it above a model's special tokens.
        salt: another salt makes another text of every segment, so that runs on one server share nothing.
        cached_tokens: how many ids to remember, least recently used segments forgotten first. 8 bytes each.

    Raises:
        WorkloadError: no id lies between `first` and `vocabulary`.
    """

    def __init__(self, vocabulary: int, first: int = 0, salt: str = "", cached_tokens: int = 4_000_000) -> None:
        if not 0 <= first < vocabulary < 1 << 63:
            raise WorkloadError(f"token ids from {first} to below {vocabulary}; give 0 <= first < vocabulary < 2**63")
        self._low = first
        self._high = vocabulary
        self._salt = salt
        self._limit = cached_tokens
        self._cache: OrderedDict[tuple[str, int], Ids] = OrderedDict()
        self._cached = 0

    @property
    def cached_tokens(self) -> int:
        """How many ids are remembered now."""
        return self._cached

    def ids(self, segment: Segment) -> Ids:
        """The segment's token ids, shape (segment.tokens,), read-only."""
        key = (segment.id, segment.tokens)
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        made = self._make(segment)
        if segment.tokens <= self._limit:
            self._cache[key] = made
            self._cached += segment.tokens
            while self._cached > self._limit:
                (_, tokens), _ = self._cache.popitem(last=False)
                self._cached -= tokens
        return made

    def prompt_ids(self, call: Call, outputs: Mapping[int, Sequence[int]] | None = None) -> Ids:
        """The prompt's token ids, shape (call.prompt_tokens,).

        Args:
            outputs: what earlier calls of the workflow really generated, by their index. A segment that is the output
                of one of them takes these ids, cut to its length or filled up with made-up ids. Without an entry all
                of its ids are made up.
        """
        return np.concatenate([self._ids_of(segment, outputs or {}) for segment in call.prompt])

    def _ids_of(self, segment: Segment, outputs: Mapping[int, Sequence[int]]) -> Ids:
        if segment.output_of is None or segment.output_of not in outputs:
            return self.ids(segment)
        real: Ids = np.asarray(outputs[segment.output_of], dtype=np.int64)[: segment.tokens]
        if len(real) == segment.tokens:
            return real
        return np.concatenate([real, self.ids(segment)[len(real) :]])

    def _make(self, segment: Segment) -> Ids:
        digest = hashlib.blake2b(f"{self._salt}\0{segment.id}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        ids = generator.integers(self._low, self._high, size=segment.tokens, dtype=np.int64)
        ids.setflags(write=False)
        return ids
