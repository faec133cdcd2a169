"""One side of a handoff whose other side is another process: everything goes through the runner.

Lines of JSON. In: `call`, `frames`, `web` (a request for our bootstrap server), `answer` (to one of ours) and
`end`. Out: `return`, `frames`, `web`, `answer`.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import threading
from collections.abc import Mapping
from typing import Any

from pdguard.exercise.engine import main, refusals, situations, stand, wires

_PATIENCE = 20.0


class Line:
    """The pipe to the runner, shared by all threads of this process."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}

    def write(self, what: Mapping[str, Any]) -> None:
        """One line, whole."""
        with self._lock:
            main.write_line(self._output, what)

    def frames(self, endpoint: str, frames: list[bytes]) -> None:
        """Frames for the other side."""
        self.write({"frames": [endpoint, [base64.b64encode(frame).decode("ascii") for frame in frames]]})

    def web(self, method: str, url: str, body: Any) -> tuple[int, bytes]:
        """A request to the other side's bootstrap server."""
        number = next(self._numbers)
        box = self._answers[number] = queue.Queue()
        self.write({"web": number, "method": method, "url": url, "body": body})
        answer = box.get(timeout=_PATIENCE)
        return int(answer["status"]), base64.b64decode(answer["content"])

    def answered(self, message: dict[str, Any]) -> None:
        """Hand an answer to the thread that waits for it."""
        self._answers.pop(int(message["answer"])).put(message)


def serve(output: int, settings: Mapping[str, Any]) -> None:
    """Be one side until `end`. Settings: side (prefill or decode), backend, hold, ranks, adapt."""
    stand.switch(settings["hold"], situations.HOLD_SECONDS)
    line = Line(output)
    net = wires.Net(line.frames)
    sides: list[Any]
    if settings["side"] == "prefill":
        side = refusals.Prefill(settings["backend"])
        wires.lay(net, side.bootstrap.web)
        sides = [side]
        web: wires.Web = side.bootstrap.web
    else:
        seen = wires.KnownFields(line.web, bool(settings["adapt"]))
        wires.lay(net, seen.web)
        ranks = int(settings["ranks"])
        sides = [refusals.Decode(settings["backend"], rank, ranks, seen) for rank in range(ranks)]
        web = _no_server
    calls: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(line, net, web, calls), daemon=True).start()
    while "end" not in (call := calls.get()):
        try:
            value = getattr(sides[call["rank"]], call["method"])(*call["arguments"])
            line.write({"return": call["call"], "value": value})
        except Exception as error:  # noqa: BLE001 - the runner reports it
            line.write({"return": call["call"], "raised": main.failed(error)})


def _no_server(_method: str, _url: str, _body: Any) -> tuple[int, bytes]:
    return 404, b"decode has no bootstrap server"


def _listen(line: Line, net: wires.Net, web: wires.Web, calls: queue.Queue[dict[str, Any]]) -> None:
    while data := main.read_line():
        message = json.loads(data)
        if "frames" in message:
            endpoint, frames = message["frames"]
            net.send_here(endpoint, [base64.b64decode(frame) for frame in frames])
        elif "answer" in message:
            line.answered(message)
        elif "web" in message:
            status, content = web(message["method"], message["url"], message["body"])
            line.write(
                {
                    "answer": message["web"],
                    "status": status,
                    "content": base64.b64encode(content).decode("ascii"),
                }
            )
        else:
            calls.put(message)
            if "end" in message:
                return
    calls.put({"end": True})
