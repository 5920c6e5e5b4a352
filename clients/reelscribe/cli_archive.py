"""`reelscribe archive`: what TorchServe loads, made of a handler and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelscribe.cli_errors import errors_as_one_line

MODEL_STORE = Path("model_store")
ModelStore = Annotated[Path, typer.Option(help="Folder of archives (*.mar); all of them are served.")]


def archive(
    name: Annotated[str, typer.Argument(help="Name of the model on the server.")],
    weights: Annotated[str, typer.Option(help="Hub name, or a directory of safetensors and processor files.")],
    handler: Annotated[str, typer.Option(help="Kind of handler; its settings are handlers/KIND.yaml.")] = "caption",
    model_store: ModelStore = MODEL_STORE,
) -> None:
    """Build a model archive with torch-model-archiver."""
    with errors_as_one_line():
        from reelscribe import archive as archives

        typer.echo(f"built {archives.build(name, handler, weights, model_store)}")
