"""The manifests of deploy/kubernetes/ are valid, fit the options of the server, and one another."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.cli.root import run
from logitport_server.cli.serve import Serve
from tests.certificates import Authority
from tests.conftest import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.config import ServerConfig
from logitport_server.config.sources import VARIABLES

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
COMPONENTS = sorted(folder.name for folder in (FOLDER / "components").iterdir())
VARIANTS = ["base", *COMPONENTS, "example"]
# The first version of which the manifests use no feature that is off by default, and the last one that is known.
VERSIONS = ["1.33.0", kubernetes_validate.latest_version()]
# How long the server may take to end after its own deadlines.
EXIT_SECONDS = 10


def rendered(variant: str, folder: Path) -> list[dict[str, Any]]:
    """The resources of a variant: the base, the base with one component, or the example."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    source = FOLDER / variant
    if variant in COMPONENTS:
        # Kustomize takes relative paths only.
        base, component = (os.path.relpath(FOLDER / path, folder) for path in ("base", f"components/{variant}"))
        content = {"kind": "Kustomization", "resources": [base], "components": [component]}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        source = folder
    ran = subprocess.run([kubectl, "kustomize", str(source)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    return list(yaml.safe_load_all(ran.stdout))


@pytest.fixture(params=VARIANTS)
def resources(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    return rendered(request.param, tmp_path)


def one(resources: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [resource for resource in resources if resource["kind"] == kind]
    return found


def pod_of(resources: list[dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = one(resources, "Deployment")["spec"]["template"]
    return pod


def container_of(resources: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = pod_of(resources)["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def variables_of(resources: list[dict[str, Any]]) -> dict[str, str]:
    """The environment of the container. Values of Secrets are made up."""
    container = container_of(resources)
    (source,) = container["envFrom"]
    config = one(resources, "ConfigMap")
    assert config["metadata"]["name"] == source["configMapRef"]["name"]
    secrets = {"LOGITPORT_STORE": "rediss://logitport:PASSWORD@redis:6380/0"}
    return config["data"] | {
        it["name"]: it["value"] if "value" in it else secrets[it["name"]] for it in container["env"]
    }


def config_of(resources: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> ServerConfig:
    """The options as `logitport serve` reads them."""
    parsed: list[ServerConfig] = []
    for name in [name for name in os.environ if name.startswith("LOGITPORT_")]:
        monkeypatch.delenv(name)
    variables = variables_of(resources)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Serve, "run", lambda self: parsed.append(self))  # noqa: PLW0108 - a method of list is not bound
    container = container_of(resources)
    run(container["args"])
    assert {name for name in variables if name.startswith("LOGITPORT_")} <= {*VARIABLES}
    (config,) = parsed
    return config


def port(address: str | None) -> int:
    assert address is not None
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid(resources: list[dict[str, Any]], version: str) -> None:
    assert {resource["kind"] for resource in resources} == {
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
    }
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("path", sorted((FOLDER / "base").glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_of_the_base_is_valid(path: Path) -> None:
    """Without kubectl, too."""
    resource = yaml.safe_load(path.read_text())
    if resource["kind"] != "Kustomization":
        kubernetes_validate.validate(resource, VERSIONS[-1], strict=True)


def test_ports_are_those_of_the_server(resources: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(resources, monkeypatch)
    container = container_of(resources)
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    assert ports == {"grpc": port(config.listen), "metrics": port(config.metrics_listen)}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    service = one(resources, "Service")["spec"]
    assert service["clusterIP"] == "None"
    for it in service["ports"]:
        assert it["port"] == ports[it["targetPort"]]
    policy = one(resources, "NetworkPolicy")["spec"]
    assert {it["port"] for rule in policy["ingress"] for it in rule["ports"]} == {"grpc", "metrics"}


def test_the_grace_period_is_longer_than_a_drain(
    resources: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(resources, monkeypatch)
    grace = pod_of(resources)["spec"]["terminationGracePeriodSeconds"]
    assert grace >= config.stop_seconds + EXIT_SECONDS


def test_selectors_are_those_of_the_pod(resources: list[dict[str, Any]]) -> None:
    pod = pod_of(resources)
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    selectors = [
        one(resources, "Deployment")["spec"]["selector"]["matchLabels"],
        one(resources, "Service")["spec"]["selector"],
        one(resources, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= pod["metadata"]["labels"].items()


def test_files_are_mounted(resources: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the server reads are in Secrets, and what it writes is in an empty folder."""
    config = config_of(resources, monkeypatch)
    container, volumes = container_of(resources), {it["name"]: it for it in pod_of(resources)["spec"]["volumes"]}
    kinds = {it["mountPath"]: set(volumes[it["name"]]) - {"name"} for it in container["volumeMounts"]}
    read = [path for path in (config.tokens, config.tls_cert, config.tls_key, config.store_key) if path is not None]
    written = [Path("/tmp"), Path(variables_of(resources)["XDG_CACHE_HOME"])]
    if not config.has_remote_store:
        written.append(Path(config.store or ""))
    for paths, kind in ((read, "secret"), (written, "emptyDir")):
        for path in paths:
            assert [kinds[mount] for mount in kinds if path.is_relative_to(mount)] == [{kind}], path


def test_the_container_has_no_privileges(resources: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    pod, container = pod_of(resources)["spec"], container_of(resources)
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not pod["automountServiceAccountToken"]
    shipped = config_of(resources, monkeypatch).enable_custom_logit_processor
    assert pod["securityContext"]["seccompProfile"]["type"] == ("Unconfined" if shipped else "RuntimeDefault")
    assert pod.get("hostUsers", True) is not shipped


# Options of podman, and what they are in a pod.
PODMAN = {
    "--read-only": ("readOnlyRootFilesystem", True),
    "--cap-drop=ALL": ("capabilities", {"drop": ["ALL"]}),
    "--security-opt=no-new-privileges": ("allowPrivilegeEscalation", False),
    "--security-opt=unmask=ALL": ("procMount", "Unmasked"),
}


@pytest.mark.parametrize(("variant", "ran"), [("base", "rootless"), ("shipped-code", "rootless, unmasked")])
def test_the_security_context_is_that_in_which_the_image_ran(variant: str, ran: str, tmp_path: Path) -> None:
    """As `make image` has seen it, with all layers of the sandbox that the component needs."""
    resources = rendered(variant, tmp_path)
    pod, container = pod_of(resources)["spec"], container_of(resources)
    seen = json.loads((ROOT / "tests/machine/image.json").read_text())["runs"][ran]
    assert seen["denied"] == [5]
    assert dict(PODMAN[option] for option in seen["arguments"] if option in PODMAN) == container["securityContext"]
    mounted = {it["mountPath"] for it in container["volumeMounts"] if not it.get("readOnly")}
    assert {option.partition("=")[2] for option in seen["arguments"] if option.startswith("--tmpfs=")} <= mounted
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "deploy/Containerfile").read_text(), re.MULTILINE)
    assert user
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (int(user[1]), int(user[2]))
    if variant == "shipped-code":
        assert {*seen["layers"].values()} == {"active"}


def test_the_example_names_the_image(tmp_path: Path) -> None:
    assert container_of(rendered("base", tmp_path))["image"] == "logitport"
    assert container_of(rendered("example", tmp_path))["image"] == "registry.example.com/logitport:0.1.0"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_server_runs_in_such_a_container(tmp_path: Path) -> None:
    """As another user than root, on a read-only file system, it writes only to what is mounted."""
    resources = rendered("base", tmp_path)
    container = container_of(resources)
    folders = {it["mountPath"]: tmp_path / "container" / it["name"] for it in container["volumeMounts"]}
    for folder in folders.values():
        folder.mkdir(parents=True)
    files = Authority(tmp_path).issue_server()
    shutil.copy(files.cert, folders["/etc/logitport/tls"] / "tls.crt")
    shutil.copy(files.key, folders["/etc/logitport/tls"] / "tls.key")
    (folders["/etc/logitport/tokens"] / "tokens").touch()
    temporary = str(folders.pop("/tmp"))
    # This machine lacks the other folders, and has a read-only file system below: they keep their own paths.
    replaced = {mount: str(folder) for mount, folder in folders.items()}
    replaced |= {f"0.0.0.0:{it['containerPort']}": "127.0.0.1:0" for it in container["ports"]}

    def inside(text: str) -> str:
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    binds = ["--bind", temporary, "/tmp", "--ro-bind", str(ROOT), str(ROOT)]  # the project may be below /tmp
    for it in container["volumeMounts"]:
        if it["mountPath"] in folders:
            folder = str(folders[it["mountPath"]])
            binds += ["--ro-bind" if it.get("readOnly") else "--bind", folder, folder]
    variables = {name: inside(value) for name, value in variables_of(resources).items()}
    bwrap = ["bwrap", "--die-with-parent", "--unshare-user", "--uid", "10001", "--gid", "10001"]
    bwrap += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *binds]
    command = [*bwrap, COMMAND, *map(inside, container["args"])]
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment() | variables
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("logitport listening on "), log.read_text()
        finally:
            process.kill()
    assert "metrics on port" in log.read_text()
    assert (folders["/var/lib/logitport"] / "store" / "registry.db").is_file()
