"""What kube-apiserver publishes about itself as a proxy, and whom its headers name."""

import pytest

from tessera.api.kubernetes.frontproxy import FrontProxy, read_front_proxy
from tessera.errors import InvalidInput

DATA = {
    "requestheader-client-ca-file": "PEM",
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User","X-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}
PROXY = FrontProxy(
    authority="PEM",
    names=("front-proxy-client",),
    user_headers=("x-remote-user", "x-user"),
    group_headers=("x-remote-group",),
    uid_headers=("x-remote-uid",),
    extra_prefixes=("x-remote-extra-",),
)


def test_what_kube_apiserver_publishes() -> None:
    assert read_front_proxy({"data": DATA}) == PROXY


def test_without_names_any_client_of_the_authority_is_the_proxy() -> None:
    assert not PROXY.admits("somebody")
    assert PROXY.admits("front-proxy-client")
    assert read_front_proxy({"data": {"requestheader-client-ca-file": "PEM"}}).admits("somebody")


BAD = {
    "no data": ({}, "enable the aggregation layer"),
    "no authority": ({**DATA, "requestheader-client-ca-file": ""}, "no requestheader-client-ca-file"),
    "not JSON": ({**DATA, "requestheader-group-headers": "x"}, "key requestheader-group-headers: 'x'"),
    "no list": ({**DATA, "requestheader-allowed-names": "{}"}, "a JSON list of names"),
    "no names": ({**DATA, "requestheader-allowed-names": "[1]"}, "a JSON list of names"),
    "nested without end": ({**DATA, "requestheader-allowed-names": "[" * 100_000}, "a JSON list of names"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_has_another_form(case: str) -> None:
    data, want = BAD[case]
    with pytest.raises(InvalidInput, match="ConfigMap kube-system/extension-apiserver-authentication") as caught:
        read_front_proxy({"data": data})
    assert want in str(caught.value)


def test_whom_headers_name() -> None:
    headers = [
        ("x-user", "second"),
        ("x-remote-user", "jane"),
        ("x-remote-group", "a"),
        ("x-remote-group", "b"),
        ("x-remote-uid", "7"),
        ("x-remote-extra-scopes", "s"),
        ("other", "o"),
    ]
    assert PROXY.identity(headers) == ("jane", "7", ("a", "b"), (("scopes", "s"),))
    assert PROXY.identity(headers[:1]) == ("second", "", (), ())
    assert PROXY.identity([("x-remote-group", "a"), ("x-remote-user", "")]) is None
