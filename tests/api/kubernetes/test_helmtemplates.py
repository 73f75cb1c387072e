"""The subset of Helm's language; tests/kube/test_chart.py compares whole charts with Helm itself."""

import pytest

from tessera.api.kubernetes.helmtemplates import Chart, render
from tessera.errors import InvalidInput

VALUES = {"on": True, "off": False, "name": "a", "empty": "", "list": [{"x": 1}], "map": {}, "deep": {"n": 3}}
BUILT_IN = {"Release": {"Namespace": "ns"}, "Capabilities": {"KubeVersion": {"Version": "v1.35.2-eks-1"}}}


def rendered(text: str, **files: str) -> str:
    chart = Chart(files={"templates/a.yaml": text, **files}, built_in=BUILT_IN)
    return render(chart, VALUES)["templates/a.yaml"]


PRINTED = {
    "text alone": ("a: b\n", "a: b\n"),
    "a value": ("{{ .Values.name }} {{ .Values.deep.n }} {{ .Values.on }}", "a 3 true"),
    "what is built in": ("{{ .Release.Namespace }}", "ns"),
    "literals": ('{{ "x{" }} {{ 12 }} {{ false }}', "x{ 12 false"),
    "trimmed on the left": ("a\n  {{- .Values.name }}\nb", "aa\nb"),
    "trimmed on the right": ("a {{ .Values.name -}}\n  b", "a ab"),
    "a comment": ("a\n{{- /* said {{ */ -}}\nb", "ab"),
    "a branch": ("{{ if .Values.on }}yes{{ else }}no{{ end }}", "yes"),
    "the other": ("{{ if .Values.map }}yes{{ else if .Values.empty }}no{{ else }}none{{ end }}", "none"),
    "none of them": ("{{ if .Values.list }}{{ if .Values.off }}yes{{ end }}{{ end }}", ""),
    "and, or, not": ("{{ and .Values.on .Values.name }}{{ or .Values.empty 7 }}{{ not .Values.on }}", "a7false"),
    "equal to one of several": ('{{ eq .Values.name "b" "a" }}{{ ne .Values.name "a" }}', "truefalse"),
    "a pipeline": ('{{ .Values.name | printf "%s!" | quote }}', '"a!"'),
    "parentheses": ('{{ not (eq .Values.name (default "b" .Values.empty)) }}', "true"),
    "YAML of a list": ("k: {{- toYaml .Values.list | nindent 2 }}\n", "k:\n  - x: 1\n"),
    "YAML of nothing": ("k: {{ toYaml .Values.map }}", "k: {}"),
    "indented": ('{{ indent 2 "a" }}', "  a"),
    "a file": ('{{ .Files.Get "files/f" }}', "{{ raw }}"),
    "a file as a template": ('{{ tpl (.Files.Get "files/t") . }}', "ns"),
    "a sum": ('{{ "a" | sha256sum }}', "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
    "a version that is old": ('{{ semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version }}', "false"),
    "a version that is new": ('{{ semverCompare ">=1.36-0" "v2.0.1" }}', "true"),
    "part of a text": ('{{ regexFind "^v[0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}', "v1.35"),
    "no such part": ('{{ regexFind "x" "y" }}', ""),
    "a part with its own dot": ('{{ include "two" (dict "n" .Values.deep "m" 2) }}', "3 2"),
}


@pytest.mark.parametrize("case", PRINTED)
def test_a_template_prints(case: str) -> None:
    text, want = PRINTED[case]
    parts = {
        "templates/_parts.tpl": '{{ define "two" }}{{ .n.n }} {{ .m }}{{ end }}',
        "files/f": "{{ raw }}",
        "files/t": "{{ .Release.Namespace }}",
    }
    assert rendered(text, **parts) == want


def test_files_that_only_define_and_those_beside_templates_are_not_rendered() -> None:
    chart = Chart(files={"templates/_p.tpl": "", "values.yaml": "", "templates/N.txt": "hi"}, built_in={})
    assert render(chart, {}) == {"templates/N.txt": "hi"}


REFUSED = {
    "fail": ('{{ fail "no image" }}', "no image"),
    "a value that is not there": ("a\n{{ .Values.nothing }}", r"templates/a\.yaml, line 2: there is no value"),
    "a value inside of a text": ("{{ .Values.name.x }}", r"\.Values\.name\.x"),
    "an unknown function": ("{{ lookup .Values.name }}", "lookup"),
    "an unknown part": ('{{ include "nothing" . }}', "include"),
    "a missing file": ('{{ .Files.Get "f" }}', r"\.Files\.Get"),
    "another action": ("{{ range .Values.list }}{{ end }}", "an action that it ends|range"),
    "a variable": ("{{ $x := 1 }}", "a value or function of the subset"),
    "no end": ("{{ if .Values.on }}a", "an end"),
    "an end of nothing": ("a{{ end }}", "an action that it ends"),
    "a parenthesis": ("{{ not (eq 1 1 }}", "a parenthesis"),
    "two values": ("{{ .Values.name .Values.name }}", "the end of the action"),
    "no value": ("{{ not | quote }}", "a value|subset"),
    "a word for a value": ("{{ eq 1 nil }}", "'nil'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_in_the_subset_is_refused(case: str) -> None:
    text, want = REFUSED[case]
    with pytest.raises(InvalidInput, match=want):
        rendered(text)
