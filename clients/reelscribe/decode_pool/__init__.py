"""Processes that decode, and the shared memory that their frames and samples arrive in.

Paths and tasks come in; decoded batches go out, each a view on a slot of shared memory that is released after use. A
codec that crashes or hangs ends its own process and nothing else.
"""
