"""How several decode processes read one source: its portions, and batches from all of them as if they came from one.

spans.py divides a source, merged.py puts together in the parent what comes from the processes, and kept_file.py spares
a process to open a file again for each portion.
"""
