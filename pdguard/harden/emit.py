"""The change as a Dockerfile that carries it in itself and checks every hash before it writes."""

from __future__ import annotations

import base64
import json
import textwrap
import zlib
from collections.abc import Mapping

from pdguard.harden.bundle import script
from pdguard.harden.plan import TOOL, Plan
from pdguard.transport.interface import Json

# Runs in the image's own Python: finds the package there, asks the node script to apply, and fails the build
# unless it did.
_RUN = """\
import base64, contextlib, importlib.util, io, json, sys, zlib
def _read(text):
    return zlib.decompress(base64.b64decode("".join(text.split())))
found = importlib.util.find_spec("sglang")
if found is None or not found.submodule_search_locations:
    sys.exit("pdguard: this image's Python finds no sglang package")
request = json.loads(_read(REQUEST_TEXT))
request.update(root=list(found.submodule_search_locations)[0], python=sys.executable)
REQUEST = json.dumps(request).encode()
said = io.StringIO()
with contextlib.redirect_stdout(said):
    exec(compile(_read(SCRIPT_TEXT), "pdguard-node", "exec"), {"REQUEST": REQUEST})
answer = json.loads(said.getvalue())
why = answer.get("why") or {}
text = ", ".join("%s %s" % (key, why[key]) for key in ("what", "path", "expected", "found") if why.get(key))
print("pdguard:", answer.get("status"), request["root"], text)
sys.exit(0 if answer.get("status") in ("applied", "unchanged") else 31)
"""


def dockerfile(plan: Plan, request: Mapping[str, Json]) -> str:
    """A Dockerfile for an image whose package is the one that `plan` was made for.

    `request` is what the node script would be asked to do; the image's own package and interpreter take the
    place of those in it. Needs BuildKit (here-documents), and no network.
    """
    fixes = ", ".join(plan.fixes)
    return (
        "# syntax=docker/dockerfile:1\n"
        f"# SGLang {plan.base} with fixes {fixes}, by {TOOL}.\n"
        "# Build: docker build --build-arg IMAGE=<your image of this release> -f <this file> .\n"
        "ARG IMAGE\n"
        "FROM ${IMAGE}\n"
        "ARG PYTHON=python3\n"
        "RUN ${PYTHON} - <<'PDGUARD'\n"
        f'REQUEST_TEXT = """\n{_packed(json.dumps(request).encode("ascii"))}\n"""\n'
        f'SCRIPT_TEXT = """\n{_packed(script())}\n"""\n'
        f"{_RUN}"
        "PDGUARD\n"
    )


def _packed(data: bytes) -> str:
    return "\n".join(textwrap.wrap(base64.b64encode(zlib.compress(data, 9)).decode("ascii"), 120))
