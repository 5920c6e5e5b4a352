"""A TorchServe on this machine: its settings, start, stop, state and logs.

`launcher` starts a server from a settings file and a folder of model archives, and returns when every worker is ready.
`state` tells whether a server is ready, and `logs` why a model does not load. `owned_server` has servers that end with
the process that started them.
"""
