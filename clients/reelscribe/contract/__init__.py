"""Values that client and server share: frames, audio samples, descriptions of models, and their answers.

This package, `reelscribe.wire` and `reelscribe.errors` are all that handlers import from reelscribe. It holds small
dataclasses and functions of plain arrays; nothing here opens a file or a connection.
"""
