"""Caption and transcribe whole video libraries on a multi-GPU TorchServe.

Start with `caption`, `describe`, `transcribe` and `annotate`: each takes paths, some of them arrays, and returns
captions, descriptions of clips, transcripts or records. `Run` is what the `reelscribe` command runs, and
`ManagementClient` controls the models and workers of a server. Each name is imported when it is first used, so `import
reelscribe` is fast. Only names in `__all__` are public.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reelscribe._api import annotate as annotate
    from reelscribe._api import annotate_async as annotate_async
    from reelscribe._api import caption as caption
    from reelscribe._api import caption_async as caption_async
    from reelscribe._api import describe as describe
    from reelscribe._api import describe_async as describe_async
    from reelscribe._api import transcribe as transcribe
    from reelscribe._api import transcribe_async as transcribe_async
    from reelscribe._values import Results as Results
    from reelscribe._values import SavedRecord as SavedRecord
    from reelscribe.client.credentials import Credentials as Credentials
    from reelscribe.client.endpoint import Server as Server
    from reelscribe.client.models import CaptionClient as CaptionClient
    from reelscribe.client.models import ClipClient as ClipClient
    from reelscribe.client.models import SpeechClient as SpeechClient
    from reelscribe.contract.chunking import Cutting as Cutting
    from reelscribe.contract.outcomes import Caption as Caption
    from reelscribe.contract.outcomes import ClipFailure as ClipFailure
    from reelscribe.contract.outcomes import DescribedClip as DescribedClip
    from reelscribe.contract.outcomes import Failure as Failure
    from reelscribe.contract.outcomes import Silence as Silence
    from reelscribe.contract.outcomes import SpeechFailure as SpeechFailure
    from reelscribe.contract.outcomes import Translation as Translation
    from reelscribe.contract.outcomes import Turn as Turn
    from reelscribe.contract.outcomes import Utterance as Utterance
    from reelscribe.contract.speech import TranscriptionOptions as TranscriptionOptions
    from reelscribe.contract.voices import SpeakerBounds as SpeakerBounds
    from reelscribe.decode.clips import ClipCutting as ClipCutting
    from reelscribe.decode.sampling import Sampling as Sampling
    from reelscribe.decode.shots import ShotDetection as ShotDetection
    from reelscribe.errors import MediaError as MediaError
    from reelscribe.errors import OutputError as OutputError
    from reelscribe.errors import ReelscribeError as ReelscribeError
    from reelscribe.errors import RequestRefused as RequestRefused
    from reelscribe.errors import ServerError as ServerError
    from reelscribe.errors import UsageError as UsageError
    from reelscribe.management.management_client import ManagementClient as ManagementClient
    from reelscribe.management.torchserve_api import ServerAddresses as ServerAddresses
    from reelscribe.reporting.summary import Summary as Summary
    from reelscribe.run.driver import Run as Run
    from reelscribe.run.single_file import caption_file as caption_file
    from reelscribe.run.single_file import describe_file as describe_file
    from reelscribe.run.single_file import transcribe_file as transcribe_file
    from reelscribe.run.source_list import SourceList as SourceList
    from reelscribe.run.tracks.captions import CaptionOptions as CaptionOptions
    from reelscribe.run.tracks.captions import CaptionTrack as CaptionTrack
    from reelscribe.run.tracks.clips import ClipOptions as ClipOptions
    from reelscribe.run.tracks.clips import ClipTrack as ClipTrack
    from reelscribe.run.tracks.shots import ShotOptions as ShotOptions
    from reelscribe.run.tracks.shots import ShotTrack as ShotTrack
    from reelscribe.run.tracks.speakers import SpeakerOptions as SpeakerOptions
    from reelscribe.run.tracks.transcripts import SpeechOptions as SpeechOptions
    from reelscribe.run.tracks.transcripts import TranscriptTrack as TranscriptTrack

__version__ = "0.1.0"

_MODULES = {
    "_api": (
        "annotate",
        "annotate_async",
        "caption",
        "caption_async",
        "describe",
        "describe_async",
        "transcribe",
        "transcribe_async",
    ),
    "_values": ("Results", "SavedRecord"),
    "client.credentials": ("Credentials",),
    "client.endpoint": ("Server",),
    "client.models": ("CaptionClient", "ClipClient", "SpeechClient"),
    "contract.outcomes": (
        "Caption",
        "ClipFailure",
        "DescribedClip",
        "Failure",
        "Silence",
        "SpeechFailure",
        "Translation",
        "Turn",
        "Utterance",
    ),
    "contract.chunking": ("Cutting",),
    "contract.speech": ("TranscriptionOptions",),
    "contract.voices": ("SpeakerBounds",),
    "decode.clips": ("ClipCutting",),
    "decode.sampling": ("Sampling",),
    "decode.shots": ("ShotDetection",),
    "errors": ("MediaError", "OutputError", "ReelscribeError", "RequestRefused", "ServerError", "UsageError"),
    "management.torchserve_api": ("ServerAddresses",),
    "management.management_client": ("ManagementClient",),
    "reporting.summary": ("Summary",),
    "run.driver": ("Run",),
    "run.tracks.captions": ("CaptionOptions", "CaptionTrack"),
    "run.tracks.clips": ("ClipOptions", "ClipTrack"),
    "run.tracks.shots": ("ShotOptions", "ShotTrack"),
    "run.tracks.speakers": ("SpeakerOptions",),
    "run.source_list": ("SourceList",),
    "run.single_file": ("caption_file", "describe_file", "transcribe_file"),
    "run.tracks.transcripts": ("SpeechOptions", "TranscriptTrack"),
}
"""The public names of each module."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # so that Python finds it without this function from now on
    return value


def __dir__() -> list[str]:
    return __all__
