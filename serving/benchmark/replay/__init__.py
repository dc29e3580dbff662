"""Replay in virtual time: the real cache, ledger, policies and prefetcher under an engine that is a model of one."""
