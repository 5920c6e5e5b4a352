"""A TorchServe on this machine: its settings, start, stop, state and logs.

`launcher` starts a server from a settings file and a folder of model archives, and returns when every worker is ready.
`state` and `logs` explain how a server is doing and why a model does not load.
"""
