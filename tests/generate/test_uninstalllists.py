"""The lists of deploy/uninstall."""

from generate.uninstalllists import with_lists

SCRIPT = """set -e
# Lists made by scripts/generate; do not edit.
kinds='old'
# End of these lists.
echo "$kinds"
"""


def test_the_lists_are_made_anew_and_the_rest_of_the_script_stays() -> None:
    named = [
        ("v1", "Namespace", {"name": "tessera-system"}),
        ("apps/v1", "Deployment", {"name": "tessera-server", "namespace": "tessera-system"}),
        ("rbac.authorization.k8s.io/v1", "Role", {"name": "tessera-metrics-proxy", "namespace": "kube-system"}),
        ("storage.k8s.io/v1", "StorageClass", {"name": "tessera-local"}),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", {"name": "tessera-agents"}),
        ("tessera.dev/v1alpha1", "GPUPolicy", {"name": "default"}),
    ]
    objects = [{"apiVersion": version, "kind": kind, "metadata": metadata} for version, kind, metadata in named]
    lines = with_lists(SCRIPT, objects).splitlines()
    assert lines[:2] + lines[-2:] == SCRIPT.splitlines()[:2] + SCRIPT.splitlines()[-2:]
    assert lines[2] == "kinds='roles storageclasses validatingadmissionpolicies'"
    assert lines[3].startswith(r"own='tessera\.dev/(applied-config|")
    assert "TesseraLayoutApplied" in lines[4]
    assert with_lists("\n".join(lines), objects) == "\n".join(lines)
