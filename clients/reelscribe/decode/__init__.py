"""Decode one source file: the chosen frames of its video, or its audio in chunks.

Input is a task with the path of the file. Output is a description of the file, and arrays with presentation times. All
of this runs in decode processes, because FFmpeg hangs or crashes on some damaged files.
"""
