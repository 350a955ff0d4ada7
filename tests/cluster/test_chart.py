"""The chart as Helm and a real API server see it: what is refused, what is rendered, what is kept."""

import copy
import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cluster import Cluster
from controller.crds import definitions
from controller.resources import parse_workload_scaler
from controller.served_schema import compare
from tests.cluster.helm import CHART, Helm, RefusedError, container, values
from tests.cluster.kubectl import Kubectl
from tests.realparts import cloud, fakenodes
from tests.realparts.controlplane import ControlPlane

RULES = CHART.parents[1] / "rules"
NAMES = {"labels", "name", "namespace", "path", "matchNames", "resourceNames", "secretName", "serviceAccountName"}
NAMES |= {"priorityClassName", "runtimeClassName"}
EVERYTHING = (
    "serviceMonitor.enabled=true,prometheusRule.enabled=true,controller.podDisruptionBudget.enabled=true,"
    "controller.replicas=2,controller.prometheusSecret=servers,exporter.hostDriverPath=/opt/nvidia,"
    "exporter.webConfig.existingSecret=web,exporter.webConfig.tls=true,serviceMonitor.exporter.tlsConfig.serverName=web,"
    "controller.exporterAccess.existingSecret=access,controller.exporterAccess.caKey=ca.crt,"
    "exporter.runtimeClassName=nvidia,exporter.hostPID=true,exporter.migMonitor=true,exporter.priorityClassName=system-node-critical"
)
MONITORING = {"ServiceMonitor", "PrometheusRule"}
DEFINITIONS = [one["metadata"]["name"] for one in definitions()]


@pytest.fixture
def helm(programs: Path, tmp_path: Path) -> Helm:
    """Helm without a cluster."""
    return Helm(programs / "helm", tmp_path)


@dataclass(frozen=True)
class Site:
    """A cluster of our own, in which nothing of ours is installed."""

    plane: ControlPlane
    kubectl: Kubectl
    helm: Helm

    def owner(self, definition: str) -> str:
        """Say which release a definition belongs to: namespace/name, "" for none."""
        notes = self.kubectl.object("crd", definition)["metadata"].get("annotations", {})
        parts = [notes.get(f"meta.helm.sh/release-{part}", "") for part in ("namespace", "name")]
        return "/".join(parts) if all(parts) else ""

    def owners(self) -> set[str]:
        """Say whose the definitions are."""
        return {self.owner(name) for name in DEFINITIONS}

    def scalers(self) -> list[str]:
        """List the custom resources that are there."""
        return self.kubectl("get", "gws,gnps", "-A", "-o", "name").split()

    def add_scalers(self) -> None:
        """Make one custom resource of each kind, by a client that leaves the checks to the server."""
        for scaler in (WORKLOAD, POOL):
            self.kubectl("apply", "--validate=false", "-f", "-", stdin=json.dumps(scaler))


WORKLOAD = {
    "apiVersion": "gpuscale.dev/v1alpha1",
    "kind": "GPUWorkloadScaler",
    "metadata": {"name": "llm", "namespace": "default"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"},
        "maxReplicas": 3,
        "warmup": {"maxStartupSeconds": 60},
    },
}
POOL = {
    "apiVersion": "gpuscale.dev/v1alpha1",
    "kind": "GPUNodePoolScaler",
    "metadata": {"name": "h100"},
    "spec": {
        "pool": {
            "ref": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "x"},
            "nodeSelector": {"pool": "x"},
        },
        "bounds": {"max": 3},
    },
}


@pytest.fixture(scope="module")
def plane(programs: Path) -> Iterator[ControlPlane]:
    """A control plane with a plain node and one with tainted GPUs, and without our definitions."""
    with ControlPlane(programs) as running:
        fakenodes.start(running)
        kubectl = Kubectl(running)
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        for name, taints in (("plain", []), ("gpus", [taint])):
            spec = {"gpusPerNode": 8, "gpuSeconds": 0, "labels": {}, "taints": taints}
            kubectl.apply(cloud.node({"metadata": {"name": "fixed"}, "spec": spec}, name))
        yield running


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Iterator[Site]:
    """The cluster, cleaned after each test."""
    found = Site(plane, Kubectl(plane), Helm(plane.binaries / "helm", tmp_path, plane))
    yield found
    for release in json.loads(found.helm("list", "-A", "-o", "json")):
        found.helm.uninstall(release["name"], release["namespace"])
    found.kubectl("delete", "crd", *DEFINITIONS, "--ignore-not-found")


def kinds(objects: dict[tuple[str, str], Any]) -> set[str]:
    return {kind for kind, _ in objects}


def names_in(node: Any, key: str = "") -> Iterator[Any]:
    """Whatever stands where the API wants a name, a path or a label's value."""
    if isinstance(node, dict):
        for below, value in node.items():
            yield from names_in(value, "labels" if key in {"labels", "matchLabels"} else below)
    elif isinstance(node, list):
        for value in node:
            yield from names_in(value, key)
    elif key in NAMES:
        yield node


class TestRendering:
    def test_the_linter_has_nothing_to_say(self, helm: Helm) -> None:
        said = helm("lint", "--strict", str(CHART))
        assert "0 chart(s) failed" in said
        assert "[WARNING]" not in said

    def test_definitions_are_those_of_the_code_and_are_kept(self, helm: Helm) -> None:
        rendered = helm.render()
        for definition in definitions():
            found = rendered["CustomResourceDefinition", definition["metadata"]["name"]]
            assert found["spec"] == definition["spec"]
            assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"

    @pytest.mark.parametrize(
        ("given", "named"),
        [
            ("controller.replicas=two", "/controller/replicas"),
            ("exporter.enabled=maybe", "/exporter/enabled"),
            ("exporter.enabld=true", "'enabld'"),
            ("controller.lease.nme=x", "'nme'"),
            ("exporter.webConfig.tls=on", "/exporter/webConfig/tls"),
            ("exporter.webConfig.secret=web", "'secret'"),
            ("controller.exporterAccess.caKey=../x", "/controller/exporterAccess/caKey"),
            ("controller.exporterAccess.password=x", "'password'"),
            ("serviceMonitor.exporter.tlsConfig.serverNme=x", "'serverNme'"),
            ("serviceMonitor.exporter.basicAuth.username=me", "/serviceMonitor/exporter/basicAuth/username"),
            ("exporter.tolerations[0].keys=a", "'keys'"),
            ("exporter.maxUnavailable=0", "/exporter/maxUnavailable"),
            ("exporter.maxUnavailable=many", "/exporter/maxUnavailable"),
            ("controller.podDisruptionBudget.maxUnavailable=101%", "/controller/podDisruptionBudget/maxUnavailable"),
            ("surprise=1", "'surprise'"),
            ("image.repository=", "/image/repository"),
        ],
    )
    def test_a_wrong_type_or_an_unknown_key_is_refused_by_its_name(self, helm: Helm, given: str, named: str) -> None:
        with pytest.raises(RefusedError) as refused:
            helm.render("--set", given)
        assert named in str(refused.value)

    def test_null_maps_render_without_their_block(self, helm: Helm, tmp_path: Path) -> None:
        empty = dict.fromkeys(("resources", "nodeSelector", "tolerations", "affinity", "podLabels", "extraArgs"))
        given = {
            "image": None,
            "crds": None,
            "exporter": empty | {"podResources": None, "maxUnavailable": None, "webConfig": None},
            "controller": empty
            | {"podDisruptionBudget": None, "lease": None, "prometheus": None, "exporterAccess": None},
            "rbac": {"scale": None},
            "serviceAccount": None,
            "serviceMonitor": {},
            "prometheusRule": None,
            "dashboard": None,
        }
        rendered = helm.render("-f", values(tmp_path, given))
        assert not kinds(rendered) & {"ConfigMap", "PodDisruptionBudget", *MONITORING}
        for kind in ("DaemonSet", "Deployment"):
            assert not {"resources", "volumeMounts"} & set(container(rendered, kind))
        for (kind, _), one in rendered.items():
            if kind in {"DaemonSet", "Deployment"}:
                pod = one["spec"]["template"]["spec"]
                assert not {"nodeSelector", "tolerations", "affinity", "volumes"} & set(pod)

    def test_every_map_alone_may_be_null(self, helm: Helm) -> None:
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())
        for key, value in defaults.items():
            if isinstance(value, dict):
                assert helm.render("--set", f"{key}=null")

    def test_values_with_windows_line_ends_render_the_same(self, helm: Helm, tmp_path: Path) -> None:
        text = (CHART / "values.yaml").read_text()
        for name, ends in (("lf", "\n"), ("crlf", "\r\n")):
            (tmp_path / name).write_bytes(text.replace("\n", ends).encode())
        rendered = [
            helm("template", "gs", str(CHART), "--set", EVERYTHING, "-f", str(tmp_path / name))
            for name in ("lf", "crlf")
        ]
        assert rendered[0] == rendered[1]

    @pytest.mark.parametrize("name", ["123", "true", "null"])
    def test_a_name_that_yaml_reads_as_something_else_stays_a_name(self, helm: Helm, name: str) -> None:
        named = (
            *("serviceAccount.name", "exporter.priorityClassName", "exporter.runtimeClassName"),
            *("exporter.webConfig.existingSecret", "controller.exporterAccess.existingSecret"),
            *("controller.priorityClassName", "controller.prometheusSecret"),
            *("controller.lease.name", "controller.lease.namespace"),
        )
        given = ",".join(f"{key}={name}" for key in named)
        kept = ("--set", "crds.render=never")
        rendered = helm.render(*kept, "--set", EVERYTHING, "--set-string", given, release=name, namespace=name)
        wrong = [(key, text) for key, one in rendered.items() for text in names_in(one) if not isinstance(text, str)]
        assert wrong == []
        assert rendered["ServiceAccount", name]["metadata"]["namespace"] == name

    def test_a_release_may_have_a_dot_in_its_name_where_a_service_may_not(self, helm: Helm) -> None:
        services = [name for kind, name in helm.render(release="a.b") if kind == "Service"]
        assert services == ["a-b-gpuscale-exporter", "a-b-gpuscale"]

    @pytest.mark.parametrize(("given", "most"), [("0", 0), ("2", 2), ("50%", "50%"), ("null", 1)])
    def test_no_eviction_at_all_is_what_a_budget_of_0_says(self, helm: Helm, given: str, most: int | str) -> None:
        budget = "controller.podDisruptionBudget"
        rendered = helm.render("--set", f"{budget}.enabled=true,{budget}.maxUnavailable={given}")
        assert rendered["PodDisruptionBudget", "gs-gpuscale"]["spec"]["maxUnavailable"] == most

    def test_the_exporter_sees_gpus_and_asks_for_no_more_than_that(self, helm: Helm) -> None:
        only = container(helm.render(), "DaemonSet")
        environment = {row["name"]: row.get("value") for row in only["env"]}
        assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
        security = only["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert security["runAsUser"] == 0
        mounts = {mount["name"]: mount["readOnly"] for mount in only["volumeMounts"]}
        assert mounts == {"pod-resources": True, "container-logs": True}
        alone = container(helm.render("--set", "exporter.podResources.enabled=false"), "DaemonSet")
        assert alone["securityContext"]["runAsNonRoot"] is True
        assert "--kubelet-socket=" in alone["args"]
        privileged = container(helm.render("--set", "exporter.hostDriverPath=/opt/nvidia"), "DaemonSet")
        assert privileged["securityContext"]["privileged"] is True
        assert "capabilities" not in privileged["securityContext"]

    def test_the_right_to_look_at_all_gpu_instances_comes_on_request_alone(self, helm: Helm) -> None:
        plain = container(helm.render(), "DaemonSet")
        assert "NVIDIA_MIG_MONITOR_DEVICES" not in {row["name"] for row in plain["env"]}
        for more in ("", ",exporter.podResources.enabled=false"):
            looks = container(helm.render("--set", f"exporter.migMonitor=true{more}"), "DaemonSet")
            assert {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"} in looks["env"]
            security = looks["securityContext"]
            assert security["capabilities"] == {"add": ["SYS_ADMIN"], "drop": ["ALL"]}
            assert "allowPrivilegeEscalation" not in security  # the API server refuses both together
            assert security["runAsUser"] == 0

    def test_monitoring_objects_come_on_request_with_honoured_labels_and_our_rules(self, helm: Helm) -> None:
        assert not MONITORING & kinds(helm.render())
        rendered = helm.render("--set", EVERYTHING)
        monitors = [one for (kind, _), one in rendered.items() if kind == "ServiceMonitor"]
        assert [endpoint["honorLabels"] for one in monitors for endpoint in one["spec"]["endpoints"]] == [True, True]
        services = [one for (kind, _), one in rendered.items() if kind == "Service"]
        for monitor, service in zip(monitors, services, strict=True):
            assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
            assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
        [rules] = [one for (kind, _), one in rendered.items() if kind == "PrometheusRule"]
        files = [yaml.safe_load(path.read_text())["groups"] for path in sorted(RULES.glob("*.yaml"))]
        assert rules["spec"]["groups"] == [group for groups in files for group in groups]

    @pytest.mark.parametrize(("given", "looked_in"), [("a,b", ["a", "b"]), ("*", []), ("a,*", [])])
    def test_exporters_are_looked_for_in_the_namespaces_that_are_named(
        self, helm: Helm, given: str, looked_in: list[str]
    ) -> None:
        args = container(helm.render("--set", f"controller.exporterNamespaces={{{given}}}"), "Deployment")["args"]
        assert [arg for arg in args if arg.startswith("--exporter-namespace=")] == [
            f"--exporter-namespace={name}" for name in looked_in
        ]

    def test_without_a_list_of_namespaces_exporters_are_looked_for_in_the_releases_own(self, helm: Helm) -> None:
        for more in ([], ["--set", "controller.exporterNamespaces=null"]):
            assert "--exporter-namespace=gpus" in container(helm.render(*more), "Deployment")["args"]

    def test_the_dashboard_arrives_as_it_is(self, helm: Helm) -> None:
        [found] = [one for (kind, _), one in helm.render().items() if kind == "ConfigMap"]
        committed = (CHART / "dashboards/gpuscale.json").read_text()
        assert json.loads(found["data"]["gpuscale.json"]) == json.loads(committed)

    def test_a_scrape_that_may_take_longer_than_its_interval_is_refused(self, helm: Helm) -> None:
        given = "serviceMonitor.enabled=true,serviceMonitor.intervalSeconds=5"
        with pytest.raises(RefusedError, match=r"serviceMonitor\.scrapeTimeoutSeconds"):
            helm.render("--set", given)

    @pytest.mark.parametrize("given", ["exporter.enabled=false", "controller.enabled=false"])
    def test_one_half_alone_leaves_nothing_of_the_other(self, helm: Helm, given: str) -> None:
        rendered = helm.render("--set", given)
        gone = "DaemonSet" if given.startswith("exporter") else "Deployment"
        assert gone not in kinds(rendered)
        assert ("ClusterRole" in kinds(rendered)) == (gone == "DaemonSet")
        assert len([1 for kind, _ in rendered if kind == "Service"]) == 1


class TestLife:
    def test_the_api_server_knows_every_field(self, site: Site) -> None:
        rendered = site.helm.render("--set", EVERYTHING, namespace="default")
        for (kind, _), one in rendered.items():
            if kind not in MONITORING:
                site.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(one))

    def test_install_upgrade_uninstall_and_again_lose_no_custom_resource(self, site: Site) -> None:
        said = site.helm.install("gs", "gpus")
        assert "exporter.runtimeClassName" in said
        example = said[said.index("  apiVersion:") : said.index("Then:")]
        assert parse_workload_scaler(yaml.safe_load(textwrap.dedent(example))).spec.mode == "Preview"
        assert site.owners() == {"gpus/gs"}
        exporters = site.kubectl.object("daemonset", "-n", "gpus", "gs-gpuscale-exporter")["status"]
        assert exporters["numberReady"] == 2
        site.add_scalers()
        site.helm.upgrade("gs", "gpus", "--set", "controller.replicas=2,controller.podDisruptionBudget.enabled=true")
        assert site.kubectl.object("deployment", "-n", "gpus", "gs-gpuscale")["status"]["readyReplicas"] == 2
        site.helm.uninstall("gs", "gpus")
        assert len(site.scalers()) == 2
        assert site.kubectl("get", "deployments,daemonsets", "-n", "gpus", "-o", "name") == ""
        site.helm.install("gs", "gpus")
        assert len(site.scalers()) == 2
        assert site.owners() == {"gpus/gs"}

    def test_a_second_release_leaves_the_definitions_to_the_first(self, site: Site) -> None:
        site.helm.install("first", "one")
        site.add_scalers()
        said = site.helm.install("second", "two")
        assert "belongs to release one/first" in said
        assert site.owners() == {"one/first"}
        site.helm.uninstall("second", "two")
        site.helm.install("second", "two")
        site.helm.uninstall("first", "one")
        assert len(site.scalers()) == 2
        roles = site.kubectl("get", "clusterroles", "-o", "name").split()
        assert [role for role in roles if "gpuscale" in role] == [
            "clusterrole.rbac.authorization.k8s.io/second-gpuscale-two"
        ]

    def test_two_releases_contend_for_one_lease(self, site: Site) -> None:
        leases = set()
        for release, namespace in (("first", "one"), ("second", "two")):
            args = container(site.helm.render(release=release, namespace=namespace), "Deployment")["args"]
            leases.add(tuple(arg for arg in args if arg.startswith("--lease")))
        assert len(leases) == 1

    def test_definitions_that_kubectl_brought_stay_as_they_are_until_the_release_is_told_to_adopt_them(
        self, site: Site
    ) -> None:
        site.kubectl("apply", "--server-side", "-f", str(CHART / "files/crds"))
        site.kubectl("wait", "--for=condition=Established", "crd", *DEFINITIONS, "--timeout=30s")
        site.add_scalers()
        said = site.helm.install("gs", "gpus")
        assert "was not installed by Helm" in said
        assert site.owners() == {""}
        site.helm.upgrade("gs", "gpus", "--set", "crds.render=always", "--take-ownership", "--force-conflicts")
        assert site.owners() == {"gpus/gs"}
        site.helm.uninstall("gs", "gpus")
        assert len(site.scalers()) == 2

    async def test_an_upgrade_brings_the_fields_that_an_older_definition_lacks(
        self, site: Site, tmp_path: Path
    ) -> None:
        site.helm.install("gs", "gpus", chart=_older(tmp_path))
        assert await lacking(site) == {DEFINITIONS[0]: ["spec.warmup"], DEFINITIONS[1]: []}
        site.add_scalers()
        assert "warmup" not in site.kubectl.object("gws", "llm")["spec"]
        site.helm.upgrade("gs", "gpus")
        assert await lacking(site) == {DEFINITIONS[0]: [], DEFINITIONS[1]: []}
        assert len(site.scalers()) == 2
        site.add_scalers()
        assert site.kubectl.object("gws", "llm")["spec"]["warmup"] == {"maxStartupSeconds": 60}


async def lacking(site: Site) -> dict[str, list[str]]:
    """What the controller would report."""
    client = await Cluster.connect(kubeconfig=str(site.plane.kubeconfig))
    try:
        return await compare(client)
    finally:
        await client.close()


def _older(tmp_path: Path) -> Path:
    """The chart as it was before workload scalers had a warmup."""
    chart = tmp_path / "older"
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("__pycache__"))
    definition = copy.deepcopy(definitions()[0])
    version = definition["spec"]["versions"][0]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["warmup"]
    [file] = (chart / "files/crds").glob("*workloadscalers.yaml")
    file.write_text(yaml.safe_dump(definition))
    return chart
