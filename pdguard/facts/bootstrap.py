"""What a prefill's bootstrap server hands to decodes: the layout they must match."""

from __future__ import annotations

from pdguard.facts._fetch import Answer, Failed
from pdguard.facts._read import ABSENT, Bad, parse_object, positive
from pdguard.facts._server_info import KV_DTYPE
from pdguard.facts.interface import Evidence, Fact, FactSet, Grade

PATH = "/route"
SOURCE = "bootstrap"
REGISTERED = "bootstrap_registered"
HOW = "give the prefill its `bootstrap_port:` and make it reachable from here"

ROWS = (
    ("bootstrap_tp", "attn_tp_size", positive),
    ("bootstrap_cp", "attn_cp_size", positive),
    ("bootstrap_dp", "dp_size", positive),
    ("bootstrap_pp", "pp_size", positive),
    ("bootstrap_page_size", "page_size", positive),
    ("bootstrap_kv_dtype", "kv_cache_dtype", KV_DTYPE),
)
FACTS = (REGISTERED, *(fact for fact, _, _ in ROWS))


def miss_all(facts: FactSet, reason: str, how: str = HOW) -> None:
    """No bootstrap fact can be had."""
    for fact in FACTS:
        facts.miss(fact, reason, how)


def read_route(facts: FactSet, answer: Answer | Failed) -> None:
    """Add what /route told. 503 is an answer too: not every rank has registered yet."""
    if isinstance(answer, Failed):
        if answer.status == 503:
            facts.add(REGISTERED, False, Grade.CONFIGURED, SOURCE, PATH, shown="HTTP 503")
            miss_all(facts, "the bootstrap server waits for ranks to register (HTTP 503)", "try again later")
        else:
            miss_all(facts, f"bootstrap {PATH}: {answer.reason}")
        return
    layout = parse_object(answer.body)
    if isinstance(layout, Bad):
        miss_all(facts, f"bootstrap {PATH}: {layout.reason}")
        return
    for fact, key, read in ROWS:
        value = layout.get(key, ABSENT)
        made = read(value)
        if isinstance(made, Bad):
            facts.miss(fact, f"bootstrap {PATH} {key}: {made.reason}")
        else:
            facts.entries[fact] = Fact(made, Grade.CONFIGURED, (Evidence(SOURCE, f"{PATH} {key}", made),))
    if facts.get("bootstrap_tp") is None and facts.get("bootstrap_dp") is None:
        facts.miss(REGISTERED, f"bootstrap {PATH}: expected a layout, an object without one came")
    else:
        facts.add(REGISTERED, True, Grade.CONFIGURED, SOURCE, PATH, shown="HTTP 200")
