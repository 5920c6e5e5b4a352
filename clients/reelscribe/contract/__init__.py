"""What client and server agree on: the values that both sides of the wire use.

Handlers import this package, `wire` and `errors`, and nothing else of reelscribe. Plain arrays and JSON come in; small
validated values go out.
"""
