"""`reelscribe archive`: builds a model archive for TorchServe from a handler, its settings and weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe.cli.messages import errors_as_one_line
from reelscribe.errors import UsageError
from reelscribe.server.start_options import MODEL_STORE

if TYPE_CHECKING:
    from reelscribe.archive.build import GpuWorkers

_AUTO = "auto"
"""The start of the server decides, by the GPUs that it sees and their memory."""

_WEIGHTS_HELP = (
    "Model name on the hub, or a directory with safetensors and processor files; for shots, a file of TransNetV2 (.pth,"
    " .pt or .safetensors), and for speakers, of a GE2E voice encoder, or its directory."
)
_HANDLER_HELP = "Kind of handler: caption, speech, clip, shot or speaker. Its settings are in handlers/KIND.yaml."
_REVISION_HELP = (
    "Branch, tag or commit on the hub; by default the newest commit. The archive records which commit it was."
)
_BUNDLE_HELP = (
    "Put the weights into the archive, for a server that can reach neither the directory nor the hub. TorchServe"
    " unpacks them into the server's directory at each start."
)
_GPUS_HELP = (
    "auto: a worker on each GPU that the server sees when it starts, or with --stages 2 on each pair of them; where"
    " there are none, one on the CPU. N: on each of the GPUs 0 to N-1; TorchServe must see that many. minWorkers and"
    " deviceIds in handlers/KIND.yaml take precedence over auto."
)
_DEVICES_HELP = (
    "Run the workers on these GPUs, such as 2,3, instead of --gpus. With --stages 2, TorchServe overwrites"
    " CUDA_VISIBLE_DEVICES with these numbers."
)
_PER_GPU_HELP = (
    "Number of workers on each GPU; with --stages 2 only 1. The memory of a GPU must hold the model that many times."
    " auto: 2 if all models then take at most half of each GPU's free memory and of the machine's, and otherwise 1, as"
    " with --gpus N, --devices or --compile."
)
_STAGES_HELP = (
    "Number of processes that each worker is split over. 2 is for a BLIP-2, Whisper or Qwen3-VL that does not fit one"
    " GPU: the encoder and the language model get one GPU each, so 4 GPUs hold two workers. For each worker, torchrun"
    " then listens on a port of all network interfaces."
)
_ENGINE_HELP = (
    "What runs the model: torch, or for a Whisper ctranslate2. Its weights are converted here, and the archive holds"
    " them. By default handlers/KIND.yaml decides."
)
_DTYPE_HELP = (
    "Data type that the model computes in: auto, float32, float16 or bfloat16, and with --engine ctranslate2 also int8."
    " By default handlers/KIND.yaml decides."
)
_COMPILE_HELP = (
    "Compile the steps in which a GPU generates tokens, for a BLIP-2, Qwen-VL, Whisper, Canary or Qwen3-ASR. It loads"
    " for minutes longer, and then small device batches take less time. The server needs a C compiler."
)
_VERSION_HELP = (
    "Version of the model. The archive becomes NAME-VERSION.mar, beside those of other versions; by default it is"
    " version 1.0 in NAME.mar."
)


def archive(
    name: Annotated[str, typer.Argument(help="Name of the model on the server.")],
    weights: Annotated[str, typer.Option(metavar="NAME|FOLDER", help=_WEIGHTS_HELP)],
    handler: Annotated[str, typer.Option(metavar="KIND", help=_HANDLER_HELP)] = "caption",
    revision: Annotated[str | None, typer.Option(metavar="COMMIT", help=_REVISION_HELP)] = None,
    bundle: Annotated[bool, typer.Option("--bundle", help=_BUNDLE_HELP)] = False,
    gpus: Annotated[str, typer.Option(metavar="auto|N", help=_GPUS_HELP)] = _AUTO,
    devices: Annotated[str | None, typer.Option(metavar="GPU,...", help=_DEVICES_HELP)] = None,
    workers_per_gpu: Annotated[str, typer.Option(metavar="auto|N", help=_PER_GPU_HELP)] = _AUTO,
    stages: Annotated[int, typer.Option(min=1, max=2, metavar="N", help=_STAGES_HELP)] = 1,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help=_ENGINE_HELP)] = None,
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help=_DTYPE_HELP)] = None,
    compiled: Annotated[bool, typer.Option("--compile", help=_COMPILE_HELP)] = False,
    version: Annotated[str | None, typer.Option(metavar="VERSION", help=_VERSION_HELP)] = None,
    model_store: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of model archives (*.mar). The server serves all of them.")
    ] = MODEL_STORE,
) -> None:
    """Build a model archive with torch-model-archiver, replacing one of the same name and version."""
    with errors_as_one_line():
        from reelscribe.archive.build import build

        built = build(
            name,
            handler,
            weights,
            model_store,
            version=version,
            revision=revision,
            bundle=bundle,
            gpus=_gpu_workers(gpus, devices, workers_per_gpu),
            stages=stages,
            engine=engine,
            dtype=dtype,
            compiled=compiled,
        )
        typer.echo(f"built {built}")


def _gpu_workers(gpus: str, devices: str | None, workers_per_gpu: str) -> GpuWorkers:
    from reelscribe.archive.build import GpuWorkers

    per_gpu = _number_or_auto(workers_per_gpu, "--workers-per-gpu")
    if gpus != _AUTO and devices is not None:
        raise UsageError("--gpus says how many GPUs and --devices says which; expected one of them, got both")
    if devices is None:
        count = _number_or_auto(gpus, "--gpus")
        return GpuWorkers(None if count is None else tuple(range(count)), per_gpu)
    try:
        return GpuWorkers(tuple(map(int, devices.split(","))), per_gpu)
    except ValueError:
        raise UsageError(f"--devices: expected numbers of GPUs, separated by commas, got {devices!r}") from None


def _number_or_auto(value: str, option: str) -> int | None:
    """Return the number that an option has; None for auto."""
    if value == _AUTO:
        return None
    if not (value.isascii() and value.isdigit() and int(value)):
        raise UsageError(f"{option}: expected auto, or a number of 1 or more, got {value!r}")
    return int(value)
