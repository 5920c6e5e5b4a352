"""A TorchServe that one process starts for itself on loopback, and that ends with this process, however it ends.

`server` starts it, says when it has ended by itself, and removes it at the end. `guard` and `guard_process` remove it
if its owner can no longer do so.
"""
