"""Values that client and server share: frames, audio samples, descriptions of models, and their answers.

Handlers import this package, `reelscribe.wire` and `reelscribe.errors`, and nothing else of reelscribe. Everything here
is a small validated value or a function of plain arrays; nothing opens a file or a connection.
"""
