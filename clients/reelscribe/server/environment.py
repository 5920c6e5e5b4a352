"""The environment variables that a server and its workers get.

A worker runs a model's code on data from strangers, so it must not see the secrets of the user who starts the server.
Variables that are not listed here are not passed, unless `--pass-env` names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from reelscribe.errors import UsageError

_PASSED = (
    # Locations of programs, libraries and the user's files.
    *("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON*"),
    # Time zone. The language and the encoding are those of _LOCALE.
    "TZ",
    # GPUs and their libraries.
    *("CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "NCCL_*", "TRITON_*", "ROCR_*", "HIP_*"),
    # How torch and the libraries below it compute, and with how many threads.
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*"),
    # Where weights come from and are cached; HF_TOKEN is missing because it is a secret.
    *("HF_HOME", "HF_HUB_*", "HF_ENDPOINT", "HF_XET_*", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_*", "XDG_CACHE_HOME"),
    *("TOKENIZERS_PARALLELISM", "SAFETENSORS_*"),
    # Proxies, and the certificates that are trusted.
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # reelscribe's own variables.
    "REELSCRIBE_*",
)

_LOCALE = {"LC_ALL": "C.UTF-8"}
"""Java and Python then agree about the bytes of paths, such as those of the sockets between them, in every locale."""

_PROXY = re.compile(r"_proxy$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"//[^/]*@")
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)$")
"""Names of secrets, which are not passed even if they match a pattern in `_PASSED`."""


def server_environment(environment: Mapping[str, str], passed: Iterable[str] = ()) -> dict[str, str]:
    """Select the variables that a server gets.

    Args:
        environment: The variables of the process that starts it.
        passed: Names of variables to pass even if they are not in the list of this module.

    Raises:
        UsageError: A name in `passed` is not in the environment, or would change TorchServe's settings after they were
            checked.
    """
    named = set(passed)
    if missing := sorted(named - environment.keys()):
        raise UsageError(f"--pass-env: {missing[0]} is not in the environment")
    if settings := sorted(name for name in named if name.startswith("TS_")):
        raise UsageError(f"--pass-env: {settings[0]}: TorchServe's settings belong in its config.properties")
    selected = {name: value for name, value in environment.items() if name in named or _is_passed(name, value)}
    return _LOCALE | selected


def _is_passed(name: str, value: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _PASSED) and not (
        _SECRET.search(name) or _holds_password(name, value)
    )


def _holds_password(name: str, value: str) -> bool:
    """Return whether a value is an address such as https://user:password@host; proxies may lack the scheme."""
    return "@" in value if _PROXY.search(name) else bool(_USER_IN_URL.search(value))
