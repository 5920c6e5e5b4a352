"""Decode processes, and the shared memory to which they write decoded frames and audio.

Input are paths and decode tasks, output are digests of files and decoded batches. Each batch is a view of a slot of
shared memory and is released after use. A codec that crashes or hangs ends its own process and nothing else.

Everything here is the parent's side, from the pool down to the commands that it sends; `child` is the process.
"""
