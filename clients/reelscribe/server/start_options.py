"""The options that a server is started with, and the file that keeps them for a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from reelscribe._files import read_small_file
from reelscribe.errors import MALFORMED, StartupError, UsageError
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server.config_properties import read_properties

DIRECTORY = Path(".server")
"""Default folder of a server."""

INFERENCE_ADDRESS = "http://127.0.0.1:8080"
"""Address of a server of which nothing else is known: that of config.properties, or the near end of a tunnel."""

SERVER_VARIABLE = "REELSCRIBE_SERVER"
"""Environment variable with the inference addresses of servers, separated by spaces."""

KEY_FILE_VARIABLE = "REELSCRIBE_KEY_FILE"
"""Environment variable with the key file of the servers, or with one for each, separated by colons."""

API_KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the key for the only server with OpenAI's API that a command is given."""

MODEL_STORE = Path("model_store")
"""Default folder of model archives."""

CONFIG = Path("config.properties")
"""Default file of TorchServe's settings, if there is one."""

SUPPLIED_CONFIG = Path(__file__).with_name("config.properties")
"""The file of TorchServe's settings that comes with the package: a link in a clone, a file where installed."""


@dataclass(frozen=True)
class StartOptions:
    """The options of one start of a TorchServe.

    Raises:
        UsageError: There is a certificate without a private key, or the other way round.
    """

    config: Path = field(default_factory=lambda: CONFIG if CONFIG.exists() else SUPPLIED_CONFIG)
    """File of TorchServe's settings."""
    model_store: Path = MODEL_STORE
    """Folder of model archives."""
    load_seconds: float = LOAD_SECONDS
    """Timeout, in seconds, for all models together to become ready."""
    model_api: bool = False
    """True if models can be registered and unregistered while the server runs."""
    insecure: bool = False
    """True if the server may listen beyond loopback without TLS and tokens."""
    certificate: Path | None = None
    """PEM file with the server's own certificate first, then those that signed it; None without TLS."""
    private_key: Path | None = None
    """PEM file with the certificate's RSA key; None without TLS."""
    pass_environment: tuple[str, ...] = ()
    """Names of environment variables that the server gets besides those that it always gets."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings that replace those of `config`."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("--certificate and --private-key belong together: give both, or neither")

    def settings(self) -> dict[str, str]:
        """Read the settings of `config`, with those of `overrides`.

        Raises:
            StartupError: There is no such file.
        """
        if not self.config.is_file():
            raise StartupError(f"{self.config}: no such file; expected TorchServe's settings, which --config names")
        return {**read_properties(read_small_file(self.config).decode()), **self.overrides}

    def save(self, path: Path) -> None:
        """Write the options as JSON, with absolute paths, because a restart may be run in another folder."""
        values = {
            name: str(value.resolve()) if isinstance(value, Path) else value for name, value in asdict(self).items()
        }
        path.write_text(json.dumps(values, indent=2))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            UsageError: There is no such file, so no server was ever started there.
            StartupError: The file cannot be read, or holds something else.
        """
        if not path.exists():
            raise UsageError(f"{path.parent}: no server was ever started there; use `reelscribe server start`")
        try:
            values = json.loads(read_small_file(path))
            for name in ("config", "model_store", "certificate", "private_key"):
                values[name] = values[name] and Path(values[name])
            return cls(**{**values, "pass_environment": tuple(values["pass_environment"])})
        except (OSError, *MALFORMED) as error:
            raise StartupError(
                f"{path}: not the options of a server ({error}); use `reelscribe server start --config FILE"
                " --model-store FOLDER`"
            ) from None
