"""Which environment variables a server gets."""

import pytest

from reelscribe.errors import UsageError
from reelscribe.server.environment import server_environment

SECRETS = {
    "HF_TOKEN": "1",
    "HF_HUB_TOKEN": "2",
    "AWS_SECRET_ACCESS_KEY": "3",
    "SSH_AUTH_SOCK": "4",
    "LANG": "de_DE.ISO-8859-1",
}
USEFUL = {"PATH": "/bin", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1", "HF_HOME": "/hf"}


def test_secrets_stay_outside_and_what_computing_needs_goes_in():
    assert server_environment({**SECRETS, **USEFUL, "TS_CONFIG_FILE": "x"}) == USEFUL


LOCALE = {"LC_ALL": "C.UTF-8"}
PROXIES = {"https_proxy": "http://me:secret@proxy:3128", "HTTP_PROXY": "me:secret@proxy:3128"}
ENDPOINT = {"HF_ENDPOINT": "https://me:secret@mirror/"}
HARMLESS = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost", "PYTHONPATH": "/srv/a@2:/srv/b"}


def test_an_address_with_a_password_in_it_stays_outside_unless_it_is_named():
    assert server_environment({**PROXIES, **ENDPOINT, **HARMLESS}) == LOCALE | HARMLESS
    assert server_environment({**PROXIES, **HARMLESS}, PROXIES) == LOCALE | PROXIES | HARMLESS


def test_a_secret_that_is_named_goes_in():
    assert server_environment({**SECRETS, **USEFUL}, ["HF_TOKEN"]) == {**USEFUL, "HF_TOKEN": "1"}


@pytest.mark.parametrize(("name", "reason"), [("NOT_THERE", "not in the env"), ("TS_X", "in its config.properties")])
def test_a_variable_that_cannot_be_passed_is_named(name, reason):
    with pytest.raises(UsageError, match=f"--pass-env: {name}.*{reason}"):
        server_environment({"TS_X": "1"}, [name])
