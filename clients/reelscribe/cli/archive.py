"""`reelscribe archive`: what TorchServe loads, made of a handler and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.errors import UsageError
from reelscribe.server.options import MODEL_STORE

if TYPE_CHECKING:
    from reelscribe.archive.build import GpuWorkers


ModelStore = Annotated[Path, typer.Option(help="Folder of archives (*.mar); all of them are served.")]

_REVISION_HELP = "Branch, tag or commit of the hub; by default its newest. The archive says which commit that was."
_BUNDLE_HELP = (
    "Put the weights into the archive, for a server that has neither the directory nor the hub. TorchServe unpacks them"
    " into the server's directory each time that it starts."
)
_GPUS_HELP = (
    "Workers on the GPUs 0 to N-1, one for each, or with --stages 2 one for each two; by default as handlers/KIND.yaml"
    " says. TorchServe must see as many."
)
_DEVICES_HELP = (
    "Workers on these GPUs, such as 2,3; instead of --gpus. With --stages 2, TorchServe overwrites CUDA_VISIBLE_DEVICES"
    " with these numbers."
)
_PER_GPU_HELP = (
    "Workers of each GPU, whose memory must hold the model as often; 1 by default. With --gpus or --devices."
)
_STAGES_HELP = (
    "2 for a BLIP-2 or Whisper that does not fit one GPU: encoder and language model have one each, so that of 4 GPUs"
    " two workers have two each. torchrun, which starts both, listens on a port of all interfaces for each worker."
)
_VERSION_HELP = "Version of the model: NAME-VERSION.mar, beside its others. By default 1.0, as NAME.mar."


def archive(
    name: Annotated[str, typer.Argument(help="Name of the model on the server.")],
    weights: Annotated[str, typer.Option(help="Hub name, or a directory of safetensors and processor files.")],
    handler: Annotated[str, typer.Option(help="Kind of handler; its settings are handlers/KIND.yaml.")] = "caption",
    revision: Annotated[str | None, typer.Option(help=_REVISION_HELP)] = None,
    bundle: Annotated[bool, typer.Option("--bundle", help=_BUNDLE_HELP)] = False,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help=_GPUS_HELP)] = None,
    devices: Annotated[str | None, typer.Option(metavar="GPU,...", help=_DEVICES_HELP)] = None,
    workers_per_gpu: Annotated[int | None, typer.Option(min=1, metavar="N", help=_PER_GPU_HELP)] = None,
    stages: Annotated[int, typer.Option(min=1, max=2, help=_STAGES_HELP)] = 1,
    version: Annotated[str | None, typer.Option(help=_VERSION_HELP)] = None,
    model_store: ModelStore = MODEL_STORE,
) -> None:
    """Build a model archive with torch-model-archiver; one of that name and version is replaced."""
    with errors_as_one_line():
        from reelscribe.archive import build as archives

        built = archives.build(
            name,
            handler,
            weights,
            model_store,
            version=version,
            revision=revision,
            bundle=bundle,
            gpus=_gpu_workers(gpus, devices, workers_per_gpu),
            stages=stages,
        )
        typer.echo(f"built {built}")


def _gpu_workers(gpus: int | None, devices: str | None, per_gpu: int | None) -> GpuWorkers | None:
    from reelscribe.archive.build import GpuWorkers

    if gpus is not None and devices is not None:
        raise UsageError("--gpus says how many GPUs and --devices which; expected one of them")
    if gpus is None and devices is None:
        if per_gpu is not None:
            raise UsageError("--workers-per-gpu: expected --gpus or --devices with it")
        return None
    try:
        numbers = tuple(map(int, devices.split(","))) if devices is not None else tuple(range(gpus or 0))
    except ValueError:
        raise UsageError(f"--devices: expected numbers of GPUs with commas between them, got {devices!r}") from None
    return GpuWorkers(numbers, per_gpu or 1)
