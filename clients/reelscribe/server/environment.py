"""Which variables of the environment a server and its workers get.

A worker runs a model's code and holds what strangers send, so it has no business with the secrets of whoever started
it: what is not named here stays outside, unless `--pass-env` names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from reelscribe.errors import UsageError

_PASSED = (
    # Where programs, libraries and the user's files are.
    *("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON*"),
    # How text and times are written.
    *("LANG", "LANGUAGE", "LC_*", "TZ"),
    # Which GPUs there are, and how they and their libraries are used.
    *("CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "NCCL_*", "TRITON_*", "ROCR_*", "HIP_*"),
    # How torch and the libraries under it compute, and on how many threads.
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*"),
    # Where weights are kept and come from; HF_TOKEN is a secret and not among them.
    *("HF_HOME", "HF_HUB_*", "HF_ENDPOINT", "HF_XET_*", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_*", "XDG_CACHE_HOME"),
    *("TOKENIZERS_PARALLELISM", "SAFETENSORS_*"),
    # How other machines are reached, and which of them are believed.
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    # Our own.
    "REELSCRIBE_*",
)

_PROXY = re.compile(r"_proxy$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"//[^/]*@")
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)$")
"""A name like this is passed by no pattern."""


def server_environment(environment: Mapping[str, str], passed: Iterable[str] = ()) -> dict[str, str]:
    """What of `environment` is passed on, with the variables that `passed` names.

    Raises UsageError for a name that is not there, or that would change TorchServe's settings after they were checked.
    """
    named = set(passed)
    if missing := sorted(named - environment.keys()):
        raise UsageError(f"--pass-env: {missing[0]} is not in the environment")
    if settings := sorted(name for name in named if name.startswith("TS_")):
        raise UsageError(f"--pass-env: {settings[0]}: TorchServe's settings belong into its config.properties")
    return {name: value for name, value in environment.items() if name in named or _is_passed(name, value)}


def _is_passed(name: str, value: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _PASSED) and not (
        _SECRET.search(name) or _holds_password(name, value)
    )


def _holds_password(name: str, value: str) -> bool:
    """As https://user:password@host does; proxies are also written without a scheme."""
    return "@" in value if _PROXY.search(name) else bool(_USER_IN_URL.search(value))
