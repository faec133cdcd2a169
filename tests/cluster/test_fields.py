"""Faults of fields: exact text, place, suggestion."""

# ruff: noqa: E501 - an error is one line, and is shown as one

from __future__ import annotations

import pytest

from tests.cluster.support import BASE, HEAD, P0, errors_of, parse

INLINE = "expected auth: {api_key_env: VARIABLE} or auth: {api_key_file: PATH}, found a value that is not repeated here"
NO_USERINFO = "expected a URL without it; name the key by auth: {api_key_env: VARIABLE}"
TRANSPORTS = "local, ssh, kubectl or docker"

TABLE = {
    "near-miss keys": (
        "clustr: x\nengins: []\n",
        [
            "1:1: unknown key, expected cluster, found clustr (did you mean cluster?)",
            "2:1: unknown key, expected engines, found engins (did you mean engines?)",
        ],
    ),
    "nothing required": (
        "policy: {concurrency: 1}\n",
        [
            "1:1: the file has no cluster, expected cluster: name of the deployment in reports",
            "1:1: the file has no engines, expected engines: every prefill and decode engine",
        ],
    ),
    "no engines": ("cluster: c\nengines: []\n", ["2:10: engines is empty, expected at least one entry"]),
    "one engine wrong in many ways": (
        HEAD
        + "  - {name: p0, role: perfill, url: 'ftp://a', bootstrap_port: 0x1f, nod: g, bootstrapPort: 3}\n",
        [
            "3:22: engines[0].role is not one of its values, expected prefill or decode, found perfill",
            "3:36: engines[0].url is not a URL that pdguard can read, expected http:// or https://, a host, "
            "and no more than a port and a path",
            "3:63: engines[0].bootstrap_port has the wrong type, expected a whole number in decimal, found 0x1f",
            "3:69: unknown key in engines[0], expected node, found nod (did you mean node?)",
            "3:77: unknown key in engines[0], expected bootstrap_port, found bootstrapPort "
            "(did you mean bootstrap_port?)",
        ],
    ),
    "a bootstrap port on a decode": (
        HEAD + "  - {name: d0, role: decode, url: 'http://a', bootstrap_port: 8998}\n",
        [
            "3:63: engines[0].bootstrap_port is set on a decode, expected bootstrap_port on prefills only, found 8998"
        ],
    ),
    "a bootstrap host on a decode": (
        HEAD + "  - {name: d0, role: decode, url: 'http://a', bootstrap_host: p0}\n",
        ["3:63: engines[0].bootstrap_host is set on a decode, expected bootstrap_host on prefills only"],
    ),
    "a port out of range": (
        HEAD + "  - {name: p0, role: prefill, url: 'http://a', bootstrap_port: 65536}\n",
        ["3:64: engines[0].bootstrap_port is out of range, expected a number of at most 65535, found 65536"],
    ),
    "names that are numbers": (
        HEAD + "  - {name: 1, role: prefill, url: 'http://a'}\n",
        ["3:12: engines[0].name has the wrong type, expected text (put it in quotes), found a number"],
    ),
    "engines as a mapping": (
        "cluster: c\nengines: {p0: {role: prefill}}\n",
        ["2:10: engines has the wrong type, expected a list, found a mapping"],
    ),
    "auth that is a key": (
        BASE + "auth: hunter2\n",
        ["4:7: auth has the wrong type, expected a mapping, found text"],
    ),
    "an inline key": (BASE + "auth: {api_key: hunter2}\n", [f"4:8: a key is given inline in auth, {INLINE}"]),
    "an inline key in an engine": (
        HEAD + "  - {name: p0, role: prefill, url: 'http://a', api-key: hunter2}\n",
        [f"3:48: a key is given inline in engines[0], {INLINE}"],
    ),
    "an inline key at the top": (BASE + "token: hunter2\n", [f"4:1: a key is given inline, {INLINE}"]),
    "no source of a key": (
        BASE + "auth: {}\n",
        ["4:7: auth names no source of the key, expected api_key_env or api_key_file"],
    ),
    "two sources of a key": (
        BASE + "auth: {api_key_env: A, api_key_file: b}\n",
        ["4:38: auth names two sources of the key, expected api_key_env or api_key_file, not both"],
    ),
    "a key for a variable": (
        BASE + "auth: {api_key_env: sk-abc}\n",
        [
            "4:21: auth.api_key_env is not well formed, "
            "expected the name of an environment variable, in capitals, found text"
        ],
    ),
    "tls": (
        HEAD
        + "  - {name: p0, role: prefill, url: 'https://a', tls: {ca_file: x, insecure: true}}\n"
        + "  - {name: p1, role: prefill, url: 'https://b', tls: {client_cert_file: x}}\n"
        + "  - {name: p2, role: prefill, url: 'https://c', tls: {insecure: yes}}\n",
        [
            "3:77: engines[0].tls is insecure and names a CA, expected ca_file, or insecure: true, not both, found true",
            "4:54: engines[1].tls has half of a client certificate, expected both client_cert_file and client_key_file",
            "5:65: engines[2].tls.insecure has the wrong type, expected true or false, found yes",
        ],
    ),
    "nodes": (
        BASE
        + "nodes:\n"
        + "  a: {transport: shs}\n"
        + "  b: {host: x}\n"
        + "  c: {transport: ssh}\n"
        + "  d: {transport: local, host: x}\n"
        + "  'a b': {transport: local}\n"
        + "  f: []\n"
        + "  g: {transport: ssh, host: -oProxyCommand=x, user: -l, port: 0}\n"
        + "  h: {transport: kubectl, pod: --kubeconfig}\n"
        + "  i: {transport: docker, container: x, host: 'ssh://u:p@h'}\n"
        + "  j: {transport: }\n",
        [
            f"5:18: nodes.a.transport is not one that pdguard knows, expected {TRANSPORTS}, found shs",
            f"6:6: nodes.b has no transport, expected {TRANSPORTS}",
            "7:6: nodes.c has no host, expected host: host name, address, or Host of the ssh configuration",
            "8:25: unknown key in nodes.d, expected one of python, transport, found host",
            "9:3: a key of nodes is not well formed, expected a name of letters, digits, '.', '_' and '-'",
            "10:6: nodes.f has the wrong type, expected a mapping, found a list",
            "11:29: nodes.g.host is not well formed, expected a host name or an address, found text",
            "11:53: nodes.g.user is not well formed, expected a user name, found text",
            "11:63: nodes.g.port is out of range, expected a number of at least 1, found 0",
            "12:32: nodes.h.pod is not well formed, "
            "expected a Kubernetes name: small letters, digits, '.' and '-', found text",
            "13:46: nodes.i.host is not well formed, "
            "expected unix://, tcp:// or ssh:// and a place, without a password, found text",
            "14:7: a key has no value, expected a value, or neither key nor value",
        ],
    ),
    "routers": (
        BASE
        + "routers:\n  - {name: r0, url: 'http://r', kind: sglang, version: latest, built: 4.5.2026, engines: []}\n",
        [
            "5:39: routers[0].kind is not one of its values, "
            "expected sglang-router, smg, sgl-router, mini-lb or other, found sglang",
            "5:56: routers[0].version is not a version, expected a version such as 0.3.2 (PEP 440), found latest",
            "5:71: routers[0].built is not a date, expected a date, YYYY-MM-DD, found 4.5.2026",
            "5:90: routers[0].engines is empty, expected at least one entry",
        ],
    ),
    "policy": (
        BASE
        + "policy: {t_hold_min: .inf, t_hold_max: .nan, concurrency: 0, min_holds: 1.0, timeout_ratio: 5%,"
        + " extreme_context: 010, request_timeout: 1:30, run_timeout: 1e999}\n",
        [
            "4:22: policy.t_hold_min has the wrong type, expected a finite number in decimal, found .inf",
            "4:40: policy.t_hold_max has the wrong type, expected a finite number in decimal, found .nan",
            "4:59: policy.concurrency is out of range, expected a number of at least 1, found 0",
            "4:73: policy.min_holds has the wrong type, expected a whole number in decimal, found 1.0",
            "4:93: policy.timeout_ratio has the wrong type, expected a finite number in decimal, found text",
            "4:114: policy.extreme_context has the wrong type, expected a whole number in decimal, found 010",
            "4:136: policy.request_timeout has the wrong type, expected a finite number in decimal, found 1:30",
            "4:155: policy.run_timeout has the wrong type, expected a finite number in decimal, found 1e999",
        ],
    ),
    "policy out of bounds": (
        BASE
        + "policy: {t_hold_min: 0, t_hold_max: -1, concurrency: 1025, timeout_ratio: 1.5, min_holds: true}\n",
        [
            "4:22: policy.t_hold_min is out of range, expected a number above 0, found 0",
            "4:37: policy.t_hold_max is out of range, expected a number above 0, found -1",
            "4:54: policy.concurrency is out of range, expected a number of at most 1024, found 1025",
            "4:75: policy.timeout_ratio is out of range, expected a number of at most 1, found 1.5",
            "4:91: policy.min_holds has the wrong type, expected a whole number in decimal, found true",
        ],
    ),
    "policy out of order, by a default": (
        BASE + "policy: {t_hold_min: 200}\n",
        [
            "4:22: policy has t_hold_min above t_hold_max, "
            "expected t_hold_min at most t_hold_max (here 200 and 120), found 200"
        ],
    ),
    "policy out of order": (
        BASE + "policy: {request_timeout: 20, run_timeout: 10}\n",
        [
            "4:44: policy has request_timeout above run_timeout, "
            "expected request_timeout at most run_timeout (here 20 and 10), found 10"
        ],
    ),
    "waivers": (
        BASE
        + "waivers:\n  - {check: PDG1, reason: '', expires: 2026-02-30}\n  - {check: PDG101, target: '', reason: ' '}\n",
        [
            "5:13: waivers[0].check is not well formed, expected the id of a check, such as PDG101, found PDG1",
            "5:27: waivers[0].reason is empty, expected text",
            "5:40: waivers[0].expires is no day of the calendar, expected a date, YYYY-MM-DD, found 2026-02-30",
            "6:5: waivers[1] has no expires, expected expires: last day on which the waiver holds, YYYY-MM-DD",
            "6:29: waivers[1].target is empty, expected text",
            "6:41: waivers[1].reason is not well formed, expected a reason in words, found text",
        ],
    ),
    "prometheus": (
        BASE + "prometheus: {headers: {A: b}, headers_env: {'A B': X, C: x}, selector: {a-b: 1}}\n",
        [
            "4:13: prometheus has no url, expected url: base URL",
            "4:14: unknown key in prometheus, expected headers_env, found headers (did you mean headers_env?)",
            "4:45: a key of prometheus.headers_env is not well formed, expected the name of an HTTP header",
            "4:58: prometheus.headers_env.C is not well formed, "
            "expected the name of an environment variable, in capitals, found text",
            "4:73: a key of prometheus.selector is not well formed, expected a Prometheus label name",
            "4:78: prometheus.selector.a-b has the wrong type, expected text (put it in quotes), found a number",
        ],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_exact_errors(name: str) -> None:
    text, expected = TABLE[name]
    assert errors_of(text) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://a.b-c.example:443/prefix/deep",
        "HTTP://a",
        "http://10.0.0.1:30000",
        "http://[fd00::1]:30000",
        "http://my_service:80",
        "http://host./",
    ],
)
def test_good_urls(url: str) -> None:
    text = BASE.replace("http://a:1", url)
    assert parse(text).engines[0].url == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:1",
        "//a",
        "ftp://a",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://:80",
        "http://a:0",
        "http://a:65536",
        "http://a:x",
        "http://a:",
        "http://a b",
        "http://a\\b",
        "http://u:p@a",
        "http://u:1/p@a",
        "http://a/?k=v",
        "http://a/#f",
        "http://[::1",
        "http://[zz::1]",
        "http://-a",
        "http://exämple",
        "http://" + "a" * 3000,
    ],
)
def test_bad_urls_are_never_repeated(url: str) -> None:
    (error,) = errors_of(BASE.replace("http://a:1", url))
    assert error.startswith("3:36: engines[0].url ")
    assert len(url) < 12 or url not in error


def test_userinfo_says_where_a_key_belongs() -> None:
    assert errors_of(BASE.replace("http://a:1", "http://me:hunter2@a:1")) == [
        f"3:36: engines[0].url carries user information, {NO_USERINFO}"
    ]


def test_no_more_than_a_hundred_problems_are_shown() -> None:
    lines = errors_of(HEAD + P0.replace("prefill", "x") * 1 + "  - {}\n" * 400)
    assert len(lines) == 101
    assert lines[-1].endswith("problems are not shown")


def test_errors_are_in_the_order_of_the_file() -> None:
    lines = errors_of(TABLE["nodes"][0])
    places = [tuple(map(int, line.split(":")[:2])) for line in lines]
    assert places == sorted(places)
