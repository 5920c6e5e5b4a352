"""One source file -> its description and its chosen frames, or its audio in chunks.

A path and a task come in; arrays with their presentation times go out. All of it runs inside decode processes.
"""
