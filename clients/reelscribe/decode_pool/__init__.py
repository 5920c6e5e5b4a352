"""Decode processes, and the shared memory to which they write decoded frames and audio.

Input are paths and decode tasks, output are digests of files and decoded batches. Each batch is a view of a slot of
shared memory and is released after use. A codec that crashes or hangs ends its own process and nothing else.

`pool.py` and `watched_process.py` are the parent's side, `child_main.py` and `child_channel.py` the process itself, and
`frames.py`, `clips.py`, `windows.py` and `audio.py` have both sides of what is read of a file.
"""
