"""One simulated engine: its HTTP paths and its bootstrap port."""

from __future__ import annotations

import time
from functools import partial

from pdguard.simulator import answers, asking, auth, loads, metrics
from pdguard.simulator.generation import Generator
from pdguard.simulator.messages import Answer, Request, json_answer, text_answer
from pdguard.simulator.pairing import Background, Rendezvous
from pdguard.simulator.server import Work
from pdguard.simulator.spec import EngineSpec
from pdguard.simulator.state import EngineState
from pdguard.simulator.versions import MUTATING, at_least, get_paths

_NOT_FOUND = json_answer(404, {"detail": "Not Found"})
_NOT_ALLOWED = json_answer(405, {"detail": "Method Not Allowed"})
_EMPTY = Answer(200, b"", ())
_METHODS = frozenset({"GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"})
_POST_PATHS = frozenset({"/generate", asking.COMPLETIONS, asking.CHAT})
_AIOHTTP = b"Python/3.11 aiohttp/3.13"
_RANK_PARAMETERS = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")


class EngineApp:
    """Answers the HTTP port of one engine; `bind` must be called once the ports are known."""

    def __init__(self, spec: EngineSpec, rooms: Rendezvous, background: Background) -> None:
        self.spec = spec
        self.state = EngineState(spec.seed)
        self._generator = Generator(spec, self.state, rooms, background)
        self._page = metrics.Page(spec, self.state)
        self._static: dict[str, Answer] = {}
        self._paths = get_paths(spec.version)
        self._counted = self._paths | _POST_PATHS | MUTATING | {"/metrics"}

    def bind(self, port: int, bootstrap_port: int | None) -> None:
        """Prepare every answer that does not change."""
        spec = self.spec
        info = json_answer(200, answers.server_info(spec, port, bootstrap_port))
        model = json_answer(200, answers.model_info(spec))
        static = {
            "/get_server_info": info,
            "/server_info": info,
            "/get_model_info": model,
            "/model_info": model,
            "/v1/models": json_answer(200, answers.models(spec, int(time.time()))),
            "/get_weight_version": json_answer(200, {"weight_version": "default"}),
            "/health": _EMPTY,
            "/health_generate": _EMPTY,
            "/ping": _EMPTY,
            "/ready": _EMPTY,
        }
        self._static = {path: answer for path, answer in static.items() if path in self._paths}

    def handle(self, request: Request) -> Answer | Work:
        """Answer one request."""
        refused = auth.refuse(self.spec, request)
        answer = self._route(request) if refused is None else refused
        method = request.method if request.method in _METHODS else "*"
        self.state.calls[method, request.path if request.path in self._counted else "/*"] += 1
        return answer

    def _route(self, request: Request) -> Answer | Work:
        path = request.path
        if path in MUTATING and (path != "/pd_role_switch" or at_least(self.spec.version, "0.5.21")):
            self.state.mutations[path] += 1
            return text_answer(200, "simulated: nothing was changed")
        if request.method == "GET":
            answer = self._static.get(path)
            return answer if answer is not None else self._dynamic(request)
        if path in _POST_PATHS and request.method == "POST":
            ask = asking.read(self.spec, request)
            return ask if isinstance(ask, Answer) else partial(self._generator.serve, ask)
        known = path in self._paths or path in _POST_PATHS
        return _NOT_ALLOWED if known else _NOT_FOUND

    def _dynamic(self, request: Request) -> Answer:
        spec, path = self.spec, request.path
        if path == "/metrics" and spec.metrics:
            return text_answer(200, self._metrics(request), metrics.CONTENT_TYPE)
        if path == "/v1/loads" and path in self._paths:
            return self._loads(request)
        if path == "/get_load" and path in self._paths:
            return json_answer(200, loads.get_load(spec, self.state))
        return _NOT_ALLOWED if path in _POST_PATHS else _NOT_FOUND

    def _metrics(self, request: Request) -> str:
        page = self._page.render()
        if self.spec.escaped_names and b"openmetrics" in (request.header(b"accept") or b""):
            return "\n".join(line.replace("sglang:", "sglang_", 1) for line in page.split("\n"))
        return page

    def _loads(self, request: Request) -> Answer:
        rank: int | None = None
        if text := request.param("dp_rank"):
            if not text.isdecimal() or int(text) >= self.spec.dp:
                return json_answer(400, {"detail": f"no data-parallel rank {text}"})
            rank = int(text)
        include = frozenset(part.strip() for part in request.param("include").split(",") if part.strip())
        answer = loads.v1_loads(self.spec, self.state, rank, include)
        if request.param("format") == "prometheus":
            return text_answer(200, loads.prometheus_text(answer["loads"]), metrics.CONTENT_TYPE)
        return json_answer(200, answer)


class BootstrapApp:
    """Answers the bootstrap port of a prefill; it knows no keys."""

    def __init__(self, spec: EngineSpec) -> None:
        self.registered = spec.bootstrap_registered
        self._spec = spec
        self._port = 0

    def bind(self, port: int) -> None:
        """Learn the engine's HTTP port, which the layout mentions."""
        self._port = port

    def handle(self, request: Request) -> Answer:
        """Answer one request."""
        if request.method != "GET":
            return _aiohttp(405, b"405: Method Not Allowed")
        if request.path == "/health":
            return _aiohttp(200, b"OK")
        if request.path != "/route":
            return _aiohttp(404, b"404: Not Found")
        ranks = [request.param(name) for name in _RANK_PARAMETERS]
        if not all(ranks):
            return _aiohttp(400, b"Missing inputs for bootstrap server.")
        if not self.registered:
            return _aiohttp(503, b"Prefill server not fully registered yet (0 workers registered).")
        if any(rank != "-1" for rank in ranks):
            return json_answer(200, {"rank_ip": "127.0.0.1", "rank_port": self._port})
        return json_answer(200, answers.bootstrap_route(self._spec, self._port))


def _aiohttp(status: int, body: bytes) -> Answer:
    return Answer(status, body, ((b"content-type", b"text/plain; charset=utf-8"),), server=_AIOHTTP)
