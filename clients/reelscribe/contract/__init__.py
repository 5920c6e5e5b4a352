"""Values that client and server share: frames, audio samples, descriptions of models, and their answers.

Of reelscribe, handlers import only this package, `reelscribe.wire` and `reelscribe.errors`. It holds small dataclasses
and functions of plain arrays; nothing here opens a file or a connection.
"""
