"""`python -m reelscribe.cli` is the `reelscribe` command."""

from reelscribe.cli import app

app()
