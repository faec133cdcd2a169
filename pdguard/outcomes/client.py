"""Asks Prometheus, within bounds: the only module that knows requests and prometheus-api-client.

A query ends by its deadline, by a limit on the answer's size, or by an answer. No redirect is followed, no
proxy or .netrc of the environment is used, and a failed connection is tried once more. What goes wrong
becomes a PrometheusProblem in words of our own: the library's own errors quote bodies and headers.
"""

from __future__ import annotations

import math
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdguard.cluster.auth import resolve_headers, resolve_key
from pdguard.cluster.model import Prometheus
from pdguard.errors import PdguardError
from pdguard.facts._fetch import MIB, PLAIN, Tls
from pdguard.facts.access import usable_tls

if TYPE_CHECKING:
    import requests

MAX_ANSWER = 24 * MIB
MAX_SERIES = 20_000
QUERY_SECONDS = 30.0
_PIECE = 64 * 1024
_NOT_FORM = "what came is not an answer of Prometheus"
_HOW_URL = "Check `prometheus.url` in the cluster file and that this machine can reach it."
_HOW_KEY = "Name the credential under `prometheus.auth` or `prometheus.headers_env`."
_HOW_TLS = "Check the files under `prometheus.tls` in the cluster file."


class PrometheusProblem(PdguardError):
    """Prometheus could not be read. Holds no byte of what it sent."""

    exit_code = 3


class TooMuch(PrometheusProblem):
    """The answer is larger than Prometheus computes or than is read here; ask for less."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer. `broken` tells that some value was not a finite number of 0 or more."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    broken: bool


class Client:
    """One Prometheus. `deadline` is on time.monotonic()'s clock; no query outlives it."""

    def __init__(
        self,
        settings: Prometheus,
        base_dir: Path,
        environ: Mapping[str, str],
        deadline: float,
        query_seconds: float = QUERY_SECONDS,
    ) -> None:
        """Raises InputError for keys, headers and TLS files that cannot be had."""
        from prometheus_api_client.prometheus_connect import PrometheusConnect

        headers = {
            name: value.get_secret_value()
            for name, value in resolve_headers(settings.headers_env, environ).items()
        }
        key = resolve_key(settings.auth, base_dir, environ)
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        headers["Accept-Encoding"] = "identity"
        tls = PLAIN if settings.tls is None else usable_tls(settings.tls, base_dir, "Prometheus")
        url = settings.url.rstrip("/")
        self._deadline = deadline
        self._seconds = query_seconds
        session, retry, adapter = _session(tls)
        self._connect = PrometheusConnect(
            url=url, headers=headers, disable_ssl=tls.insecure, retry=retry, session=session
        )
        session.mount(url, adapter)  # in place of the one that the library has just mounted

    def close(self) -> None:
        """Close its connections."""
        self._connect.close()

    def query(self, text: str, at: float | None = None) -> list[Series]:
        """An instant query, at a time in seconds since the epoch or now. Raises PrometheusProblem."""
        left = min(self._seconds, self._deadline - time.monotonic())
        if left <= 0:
            raise PrometheusProblem(
                "Prometheus was not read within policy.run_timeout",
                todo="Raise policy.run_timeout, or ask for a shorter window.",
            )
        params = {"timeout": f"{max(1, math.ceil(left))}s"}
        if at is not None:
            params["time"] = f"{at:.3f}"
        return _form(_within(left, lambda: self._ask(text, params, left)))

    def _ask(self, text: str, params: dict[str, str], seconds: float) -> Any:
        from prometheus_api_client.exceptions import PrometheusApiClientException
        from requests.exceptions import JSONDecodeError, RequestException
        from urllib3.exceptions import HTTPError

        # Raised outside the handlers, for an error's context would keep what the library's error quotes.
        problem: PrometheusProblem
        try:
            return self._connect.custom_query(text, params=params, timeout=math.ceil(seconds))
        except PrometheusProblem as error:
            problem = error
        except JSONDecodeError:
            problem = PrometheusProblem(_NOT_FORM, todo=_HOW_URL)
        except (RequestException, HTTPError, OSError) as error:
            problem = _explain(error, seconds)
        except (PrometheusApiClientException, ValueError, KeyError, TypeError, RecursionError):
            problem = PrometheusProblem(_NOT_FORM, todo=_HOW_URL)
        raise problem from None


def _session(tls: Tls) -> tuple[requests.Session, Any, Any]:
    """A session that bounds what it reads, with its retries and the adapter for its connections."""
    import requests
    import urllib3
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    class Adapter(HTTPAdapter):
        """Trusts what Tls says rather than the library's own list."""

        def init_poolmanager(self, *args: Any, **more: Any) -> None:
            super().init_poolmanager(*args, **more, ssl_context=tls.context())

    class Session(requests.Session):
        """Reads no more than MAX_ANSWER, follows nothing, and judges the status before the body."""

        def request(self, method: Any, url: Any, **more: Any) -> requests.Response:  # type: ignore[override]
            more |= {"allow_redirects": False, "stream": True}
            response = super().request(method, url, **more)
            try:
                _refuse(response.status_code, response.headers)
                body, size = [], 0
                for piece in response.iter_content(_PIECE):
                    size += len(piece)
                    if size > MAX_ANSWER:
                        raise TooMuch(f"Prometheus answers with more than {MAX_ANSWER // MIB} MiB")
                    body.append(piece)
                response._content = b"".join(body)
            finally:
                response.close()
            return response

    session = Session()
    session.trust_env = False
    session.verify = False if tls.insecure else tls.ca_file or True
    if tls.client_cert_file and tls.client_key_file:
        session.cert = (tls.client_cert_file, tls.client_key_file)
    if tls.insecure:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    retry = Retry(total=1, connect=1, read=0, redirect=0, status=0, other=0, backoff_factor=0.2)
    return session, retry, Adapter(max_retries=retry)


def _refuse(status: int, headers: Mapping[str, str]) -> None:
    """Raise for an answer that is not read, from its status and headers alone."""
    if status in (401, 403):
        raise PrometheusProblem(
            f"Prometheus wants a credential, or another one (HTTP {status})", todo=_HOW_KEY
        )
    if 300 <= status < 400:
        raise PrometheusProblem(
            f"Prometheus answers with a redirect, which is not followed (HTTP {status})", todo=_HOW_URL
        )
    if status == 422:
        raise TooMuch("Prometheus cannot compute the answer (HTTP 422): it would load too many samples")
    if status == 404:
        raise PrometheusProblem("there is no Prometheus at that URL (HTTP 404)", todo=_HOW_URL)
    if status != 200:
        raise PrometheusProblem(f"Prometheus answers with HTTP {status}", todo="Look at its log.")
    if "html" in headers.get("content-type", "").lower():
        raise PrometheusProblem("an HTML page came instead of an answer of Prometheus", todo=_HOW_URL)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise PrometheusProblem("a compressed answer came, which was not asked for")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > MAX_ANSWER):
        raise TooMuch(f"Prometheus answers with more than {MAX_ANSWER // MIB} MiB")


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """The call's result, or a PrometheusProblem after `seconds`: a trickle of bytes extends no deadline.

    The call runs in a thread of its own, which is left alone once it is late and keeps no process alive.
    """
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            results.put((None, error))

    threading.Thread(target=run, name="pdguard-prometheus", daemon=True).start()
    try:
        value, error = results.get(timeout=seconds + 0.5)
    except queue.Empty:
        value, error = None, _late(seconds)
    if error is not None:
        raise error from None
    return value


def _late(seconds: float) -> PrometheusProblem:
    return PrometheusProblem(f"Prometheus gave no whole answer within {seconds:.3g} s", todo=_HOW_URL)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything behind it, the reasons that urllib3 keeps in arguments included."""
    todo, seen = [error], 0
    while todo and seen < 50:
        current = todo.pop()
        seen += 1
        yield current
        behind = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        todo.extend(e for e in behind if isinstance(e, BaseException))


def _explain(error: BaseException, seconds: float) -> PrometheusProblem:
    """A problem of our own for an error, whose own text may quote URL, headers or body."""
    from requests import exceptions

    kinds = tuple(_chain(error))
    reasons: tuple[tuple[type[BaseException], str, str], ...] = (
        (ssl.SSLCertVerificationError, "its certificate is not trusted, or is for another name", _HOW_TLS),
        (ssl.SSLError, "TLS: no common ground with the other side (does it speak TLS at all?)", _HOW_TLS),
        (socket.gaierror, "its host name does not resolve", _HOW_URL),
        (ConnectionRefusedError, "connection refused", _HOW_URL),
        (ConnectionResetError, "the connection was reset", _HOW_URL),
        (exceptions.InvalidHeader, "a header of prometheus.headers_env cannot be sent", _HOW_KEY),
        (exceptions.InvalidURL, "its URL cannot be used", _HOW_URL),
    )
    for kind, text, todo in reasons:
        if any(isinstance(e, kind) for e in kinds):
            return PrometheusProblem(f"Prometheus could not be asked: {text}", todo=todo)
    if any(isinstance(e, exceptions.Timeout | TimeoutError) for e in kinds):
        return _late(seconds)
    return PrometheusProblem(
        "Prometheus could not be asked: the connection ended too early, or what came is not HTTP",
        todo=_HOW_URL,
    )


def _form(result: Any) -> list[Series]:
    """The series of an answer. Raises PrometheusProblem where it has another form."""
    if not isinstance(result, list):
        raise PrometheusProblem(_NOT_FORM, todo=_HOW_URL)
    if len(result) > MAX_SERIES:
        raise TooMuch(f"Prometheus answers with more than {MAX_SERIES:,} series")
    series: list[Series] = []
    for item in result:
        one = _series(item)
        if one is None:
            raise PrometheusProblem(_NOT_FORM, todo=_HOW_URL)
        series.append(one)
    return series


def _series(item: Any) -> Series | None:
    if not isinstance(item, dict) or not isinstance(item.get("metric"), dict):
        return None
    labels = item["metric"]
    if not all(isinstance(value, str) for value in labels.values()):
        return None
    pairs = item.get("values") if "values" in item else [item.get("value")]
    if not isinstance(pairs, list):
        return None
    points: list[tuple[float, float]] = []
    broken = False
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], str):
            return None
        if isinstance(pair[0], bool) or not isinstance(pair[0], int | float) or not 0 <= pair[0] < 1e11:
            return None
        try:
            value = float(pair[1])
        except ValueError:
            return None
        if math.isfinite(value) and value >= 0:
            points.append((float(pair[0]), value))
        else:
            broken = True
    own = {name: value for name, value in labels.items() if name != "__name__"}
    return Series(labels.get("__name__", ""), own, tuple(points), broken)
