"""Read one source file: its description, and the chosen frames of its video or its audio in chunks.

A task with the path comes in; arrays with their presentation times go out. All of this runs inside decode processes,
which may be lost, because FFmpeg hangs or crashes on some damaged files.
"""
