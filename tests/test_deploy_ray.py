"""The manifests in deploy/ fit Kubernetes, the KubeRay operator, images and each other; docs/cluster.md fits Ray."""

import gzip
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import ray
import yaml
from jsonschema import Draft202012Validator
from ray.scripts.scripts import cli as ray_cli

import reelscribe
from support.commands import command_options
from support.documents import ROOT, blocks

DEPLOY = ROOT / "deploy" / "ray"
SCHEMAS = Path(__file__).parent / "data" / "kuberay"
DOCUMENT = ROOT / "docs" / "cluster.md"
MANIFESTS = [part for path in sorted(DEPLOY.glob("*.yaml")) for part in yaml.safe_load_all(path.read_text())]
RAY_CODE = Path(ray.__file__).parent


def of_kind(kind: str) -> list[dict]:
    return [each for each in MANIFESTS if each["kind"] == kind]


(CLUSTER,), (JOB,) = of_kind("RayCluster"), of_kind("RayJob")
HEAD, WORKERS = CLUSTER["spec"]["headGroupSpec"], CLUSTER["spec"]["workerGroupSpecs"]
GROUPS = [HEAD, *WORKERS]


def schema(kind: str) -> dict:
    """The schema of a resource of KubeRay, which refuses unknown fields as the operator's API server does."""
    return strict(json.loads(gzip.decompress((SCHEMAS / f"{kind}.v1.json.gz").read_bytes())))


def strict(part):
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = isinstance(part.get("properties"), dict) and not part.get("x-kubernetes-preserve-unknown-fields")
    return ({"additionalProperties": False} if closed else {}) | {name: strict(each) for name, each in part.items()}


def faults(manifest: dict) -> list[str]:
    found = Draft202012Validator(schema(manifest["kind"])).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("manifest", [CLUSTER, JOB], ids=lambda manifest: manifest["kind"])
def test_manifests_fit_the_schemas_of_the_operator(manifest):
    assert manifest["apiVersion"] == "ray.io/v1"
    assert faults(manifest) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"authOptions": {"mode": "tokens"}}, "'tokens' is not one of ['disabled', 'token']"),
        ({"workerGroups": []}, "('workerGroups' was unexpected)"),
        ({"workerGroupSpecs": [{**WORKERS[0], "maxReplicas": "8"}]}, "'8' is not of type 'integer'"),
        ({"headGroupSpec": {"rayStartParams": {}}}, "'template' is a required property"),
    ],
)
def test_a_mistake_in_a_manifest_is_found(change, fault):
    (found,) = faults({**CLUSTER, "spec": {**CLUSTER["spec"], **change}})
    assert fault in found


def test_the_pod_of_a_server_fits_kubernetes_and_the_image_and_its_probes_need_no_key():
    deployment = yaml.safe_load((ROOT / "deploy/kubernetes.yaml").read_text())
    pod, image = deployment["spec"]["template"], (ROOT / "deploy/Dockerfile").read_text()
    of_pods = schema("RayCluster")["properties"]["spec"]["properties"]["headGroupSpec"]["properties"]["template"]
    assert [error.message for error in Draft202012Validator(of_pods).iter_errors(pod)] == []
    assert pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    assert f"USER {pod['spec']['securityContext']['runAsUser']}:" in image
    (container,) = pod["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"] == json.loads(re.search(r"HEALTHCHECK .* CMD (.*)", image)[1])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == mounts.keys()
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["server"]
    # A folder of Kubernetes for .server would be of root, and TorchServe's user could not protect the keys there.
    written = {volume["target"] for volume in compose["volumes"] if volume["type"] == "volume"}
    assert {*written, "/srv/reelscribe/model_store"} - {"/srv/reelscribe/.server"} == {*mounts.values()}


def test_the_head_does_no_work_and_the_gpu_nodes_come_and_go_with_it():
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
    assert CLUSTER["spec"]["enableInTreeAutoscaling"]
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    for group in WORKERS:
        (container,) = group["template"]["spec"]["containers"]
        assert (group["minReplicas"], group["replicas"]) == (0, 0)
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) > 0
    assert JOB["spec"]["clusterSelector"] == {"ray.io/cluster": CLUSTER["metadata"]["name"]}


def test_ray_start_has_every_parameter():
    for group in GROUPS:
        words = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        context = ray_cli.commands["start"].make_context("start", words)
        assert context.params.keys() >= {name.replace("-", "_") for name in group["rayStartParams"]}


def test_pods_mount_claims_that_exist_and_only_the_head_may_write():
    claims = {each["metadata"]["name"] for each in of_kind("PersistentVolumeClaim")}
    volumes = {each["metadata"]["name"] for each in of_kind("PersistentVolume")}
    for group in GROUPS:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        claimed = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"]}
        assert set(claimed.values()) <= claims
        assert {mount["name"] for mount in container["volumeMounts"]} == claimed.keys()
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert writable == (["/driver"] if group is HEAD else [])
        assert pod["securityContext"]["runAsNonRoot"]
    for claim in of_kind("PersistentVolumeClaim"):
        assert claim["spec"].get("volumeName") in {None, *volumes}


def test_the_command_of_the_job_exists_and_its_folders_are_mounted():
    program, command, *words = shlex.split(JOB["spec"]["entrypoint"])
    assert program == "reelscribe"
    options = {word for word in words if word.startswith("--")}
    assert options <= command_options()[command]
    mounts = {mount["mountPath"] for mount in HEAD["template"]["spec"]["containers"][0]["volumeMounts"]}
    folders = [Path(word) for word in words if word.startswith("/")]
    assert folders
    assert all(any(folder.is_relative_to(mount) for mount in mounts) for folder in folders)
    processes = int(words[words.index("--decode-workers") + 1])
    cpus = WORKERS[0]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    assert processes < int(cpus)


def test_the_image_has_what_the_manifests_say_and_copies_files_that_exist():
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        *sources, _ = line.split()
        assert [source for source in sources if not (ROOT / source).exists()] == []
    users = {group["template"]["spec"]["securityContext"]["runAsUser"] for group in GROUPS}
    assert re.findall(r"^USER (\d+):", text, re.M) == [str(user) for user in users]
    images = {group["template"]["spec"]["containers"][0]["image"] for group in GROUPS}
    assert images == {f"reelscribe-ray:{reelscribe.__version__}"}
    assert f"--tag {images.pop()} ." in DOCUMENT.read_text()
    assert CLUSTER["spec"]["rayVersion"] == ray.__version__


@pytest.mark.parametrize("path", [DOCUMENT, DEPLOY / "Dockerfile"], ids=lambda path: path.name)
def test_extras_that_are_installed_exist(path):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for names in re.findall(r"'\.\[([\w,]+)\]'", path.read_text()) for extra in names.split(",")}
    assert "ray" in named
    assert named <= extras.keys()


def test_options_in_the_document_exist():
    text = DOCUMENT.read_text()
    known = set().union(*command_options().values(), *(command_of_ray.opts for command_of_ray in ray_options()))
    others = {"--for", "--follow", "--force", "--file", "--tag"}  # of kubectl and docker
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    assert named - known - others == set()


def ray_options():
    return [parameter for command in ray_cli.commands.values() for parameter in command.params]


def test_commands_of_ray_in_the_document_can_be_parsed():
    lines = [line for block in blocks(DOCUMENT) if block.language == "sh" for line in block.code.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("ray ")]
    assert len(commands) > 3
    for _, name, *words in commands:
        plain = words[: words.index(">/dev/null")] if ">/dev/null" in words else words
        ray_cli.commands[name].make_context(name, plain)
    assert set(re.findall(r"`ray ([\w-]+)`", DOCUMENT.read_text())) <= ray_cli.commands.keys()


def test_environment_variables_of_ray_exist():
    names = set(re.findall(r"\bRAY_\w+", DOCUMENT.read_text()))
    names |= {each["name"] for group in GROUPS for each in group["template"]["spec"]["containers"][0].get("env", [])}
    binary = (RAY_CODE / "_raylet.so").read_bytes()
    in_python = "\n".join(path.read_text() for path in (RAY_CODE / "dashboard" / "modules" / "job").glob("*.py"))
    for name in names:
        setting = name.removeprefix("RAY_")  # RAY_ and a setting in lower case overrides that setting
        assert setting.islower() or name in in_python or name.encode() in binary
        assert not setting.islower() or setting.encode() in binary
    assert "RAY_AUTH_MODE" in names
