"""Decode processes, and the shared memory that decoded frames and audio arrive in.

Paths and decode tasks come in; decoded batches go out. Each batch is a view on a slot of shared memory and is released
after use. A codec that crashes or hangs ends its own process and nothing else.
"""
