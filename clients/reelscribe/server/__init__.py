"""A TorchServe of our own on this machine: settings, start, stop, state and logs.

A settings file and a folder of archives come in; a server whose workers are ready goes out, or the reason why not.
"""
