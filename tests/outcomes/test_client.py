"""Asking a Prometheus that is hidden behind TLS and headers, or that is none, is slow, or floods."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pdguard.cluster.model import Auth, Prometheus, Tls
from pdguard.errors import InputError
from pdguard.outcomes import client as c
from pdguard.outcomes.client import Client, PrometheusProblem, TooMuch
from tests.outcomes.fake_prometheus import Fake, sample, serving

MARK = "body-marker-7f3a"
SECRET = "sk-secret-91c4"
ENV = {"TOKEN": SECRET, "ORG": "tenant-" + SECRET}


def ask(settings: Prometheus, seconds: float = 5.0, environ: Mapping[str, str] = ENV) -> list[c.Series]:
    client = Client(settings, Path("/nowhere"), environ, time.monotonic() + 60, seconds)
    try:
        return client.query("up")
    finally:
        client.close()


def refused(url: str, seconds: float = 5.0, **more: Any) -> PrometheusProblem:
    """The problem, which must hold nothing of what came or of what was sent."""
    with pytest.raises(PrometheusProblem) as caught:
        ask(Prometheus(url=url, headers_env={"X-Scope-OrgID": "ORG"}, **more), seconds)
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = "".join(traceback.format_exception_only(error)) + str(error) + repr(error.args)
    assert MARK not in shown
    assert SECRET not in shown
    return error


def test_an_answer() -> None:
    answer = [sample({"__name__": "up", "instance": "a:1"}, "1", 12.5), sample({"x": "y"}, "NaN", 12.5)]
    with serving(lambda _: answer) as fake:
        first, second = ask(
            Prometheus(
                url=fake.url + "/", headers_env={"X-Scope-OrgID": "ORG"}, auth=Auth(api_key_env="TOKEN")
            )
        )
        assert (first.name, first.labels, first.points, first.broken) == (
            "up",
            {"instance": "a:1"},
            ((12.5, 1.0),),
            False,
        )
        assert (second.points, second.broken) == ((), True)
        (asked,) = fake.asked
        assert asked.query == "up"
        assert (asked.headers["Authorization"], asked.headers["X-Scope-OrgID"]) == (
            f"Bearer {SECRET}",
            f"tenant-{SECRET}",
        )


def test_nothing_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(lambda _: []) as fake:
        assert ask(Prometheus(url=fake.url)) == []
        assert "Authorization" not in fake.asked[0].headers


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((401, {}, MARK.encode()), "Prometheus wants a credential, or another one (HTTP 401)"),
        ((403, {}, MARK.encode()), "Prometheus wants a credential, or another one (HTTP 403)"),
        (
            (302, {"location": "http://127.0.0.1:9/" + MARK}, b""),
            "Prometheus answers with a redirect, which is not followed (HTTP 302)",
        ),
        ((404, {}, MARK.encode()), "there is no Prometheus at that URL (HTTP 404)"),
        ((503, {}, MARK.encode()), "Prometheus answers with HTTP 503"),
        (
            (200, {"content-type": "text/html; x"}, MARK.encode()),
            "an HTML page came instead of an answer of Prometheus",
        ),
        (
            (200, {"content-encoding": "gzip"}, MARK.encode()),
            "a compressed answer came, which was not asked for",
        ),
        ((200, {"content-length": "9000"}, MARK.encode()), None),
        (MARK.encode(), c._NOT_FORM),
        (b'{"status":"success","data":{"result":[{"metric":{"a":"' + MARK.encode(), c._NOT_FORM),
        (b"[" * 100_000, c._NOT_FORM),
        (b'{"data": {"result": ' + b"9" * 5000 + b"}}", c._NOT_FORM),
        (b"[]", c._NOT_FORM),
        (b"null", c._NOT_FORM),
        (b'{"data": []}', c._NOT_FORM),
        (b"\xff\xfe\x00", c._NOT_FORM),
        ({"a": MARK}, c._NOT_FORM),
        ([MARK], c._NOT_FORM),
        ([sample({"a": "b"}, 3)], c._NOT_FORM),
        ([sample({"a": "b"}, MARK)], c._NOT_FORM),
        ([sample({"a": "b"}, "1", -1e300)], c._NOT_FORM),
        ([{"metric": {"a": 3}, "value": [1, "1"]}], c._NOT_FORM),
        ([{"metric": [], "value": [1, "1"]}], c._NOT_FORM),
        ([{"metric": {}, "values": 3}], c._NOT_FORM),
        ([{"metric": {}, "values": [[True, "1"]]}], c._NOT_FORM),
        ([{"metric": {}, "value": [1, "1", "1"]}], c._NOT_FORM),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_prometheus_is_a_typed_error(answer: Any, what: str | None) -> None:
    with serving(lambda _: answer) as fake:
        error = refused(fake.url, 1.0)
        assert not isinstance(error, TooMuch)
        if what is not None:
            assert error.what == what
        assert len(fake.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (422, {}, MARK.encode()),
        (200, {"content-length": "99999999999999999999999"}, MARK.encode()),
        [sample({"n": str(n)}, "1") for n in range(100_000)],
    ],
)
def test_too_much(answer: Any) -> None:
    with serving(lambda _: answer) as fake:
        assert isinstance(refused(fake.url, 20.0), TooMuch)


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "MAX_ANSWER", 100_000)
    body = b'{"data": "' + b"x" * 300_000 + b'"}'
    with serving(lambda _: (200, {"content-length": "300"}, body[:300])) as fake:
        refused(fake.url)
    chunked = (200, {"connection": "close", "content-length": str(len(body))}, body)
    with serving(lambda _: chunked) as fake:
        assert isinstance(refused(fake.url), TooMuch)


@pytest.fixture
def trickle() -> Iterator[str]:
    """A server that sends a byte now and then, in the headers and for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not stop.wait(0.1):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop.set()
    thread.join(5)
    listener.close()


def test_a_trickle_extends_no_deadline(trickle: str) -> None:
    began = time.monotonic()
    assert refused(trickle, 1.0).what == "Prometheus gave no whole answer within 1 s"
    assert time.monotonic() - began < 5


def test_unreachable() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        error = refused(f"http://127.0.0.1:{sock.getsockname()[1]}")
    assert error.what == "Prometheus could not be asked: connection refused"
    assert refused("http://no-such-host.invalid").what == (
        "Prometheus could not be asked: its host name does not resolve"
    )


def test_the_run_ends_in_time() -> None:
    client = Client(Prometheus(url="http://127.0.0.1:1"), Path("/nowhere"), {}, time.monotonic())
    with pytest.raises(PrometheusProblem, match=r"within policy\.run_timeout"):
        client.query("up")
    client.close()


def test_what_the_operator_named_and_is_not_there() -> None:
    with pytest.raises(InputError, match="the environment variable TOKEN is not set"):
        ask(Prometheus(url="http://a", auth=Auth(api_key_env="TOKEN")), environ={})
    with pytest.raises(InputError, match="the TLS files of Prometheus cannot be used"):
        ask(Prometheus(url="https://a", tls=Tls(ca_file="none.pem")))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                "-subj", f"/CN={name}",
                "-addext", "subjectAltName=IP:127.0.0.1",
                "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"),
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
    return folder


@pytest.fixture
def hidden(certificates: Path) -> Iterator[Fake]:
    """Behind TLS, wanting a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "client.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    with serving(lambda _: [sample({"a": "b"}, "4")], context) as fake:
        yield fake


def test_tls_with_a_ca_of_ones_own(hidden: Fake, certificates: Path) -> None:
    own = Tls(
        ca_file=str(certificates / "server.pem"),
        client_cert_file=str(certificates / "client.pem"),
        client_key_file=str(certificates / "client.key"),
    )
    for tls in (own, Tls(insecure=True)):
        (one,) = ask(Prometheus(url=hidden.url, tls=tls, headers_env={"X-Scope-OrgID": "ORG"}))
        assert one.points[0][1] == 4
        assert hidden.asked[-1].headers["X-Scope-OrgID"] == ENV["ORG"]
    assert [asked.client for asked in hidden.asked] == ["client", ""]


def test_tls_that_is_not_trusted_sends_no_header(hidden: Fake, certificates: Path) -> None:
    for tls in (None, Tls(ca_file=str(certificates / "client.pem"))):
        error = refused(hidden.url, tls=tls)
        assert error.what.endswith("its certificate is not trusted, or is for another name")
    assert hidden.asked == []
    with serving(lambda _: []) as plain:
        assert "TLS: no common ground" in refused(plain.url.replace("http:", "https:")).what
