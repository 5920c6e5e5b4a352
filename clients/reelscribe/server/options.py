"""What a server is started with, and how it is remembered for a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reelscribe.errors import StartupError, UsageError
from reelscribe.management.model_version import LOAD_SECONDS

DIRECTORY = Path(".server")
"""Where a server lives that is not told where."""

MODEL_STORE = Path("model_store")
CONFIG = Path("config.properties")


@dataclass(frozen=True)
class StartOptions:
    """How to start a TorchServe."""

    config: Path = CONFIG
    """TorchServe's settings."""
    model_store: Path = MODEL_STORE
    """Folder of archives."""
    load_seconds: float = LOAD_SECONDS
    """That all models together may take to be ready."""
    model_api: bool = False
    """Whether models can be registered while it runs."""
    insecure: bool = False
    """Whether addresses may be open that are refused otherwise."""
    certificate: Path | None = None
    """PEM file, the server's own certificate first."""
    private_key: Path | None = None
    """PEM file, RSA."""
    pass_environment: tuple[str, ...] = ()
    """Variables that the server gets besides those that it always does."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings in place of those of `config`."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("--certificate and --private-key belong together: give both, or neither")

    def save(self, path: Path) -> None:
        """For a restart, which may come from another folder."""
        values = {
            name: str(value.resolve()) if isinstance(value, Path) else value for name, value in asdict(self).items()
        }
        path.write_text(json.dumps(values, indent=2))

    @classmethod
    def load(cls, path: Path) -> StartOptions:
        """What `save` wrote. Raises UsageError if it wrote nothing, and StartupError for anything else."""
        if not path.exists():
            raise UsageError(f"{path.parent}: no server was ever started there; use `reelscribe server start`")
        try:
            values = json.loads(path.read_text())
            for name in ("config", "model_store", "certificate", "private_key"):
                values[name] = values[name] and Path(values[name])
            return cls(**{**values, "pass_environment": tuple(values["pass_environment"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StartupError(f"{path}: not what a server was started with ({error}); use `server start`") from None
