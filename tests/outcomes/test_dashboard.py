"""The dashboard: ready to import, one panel for each figure, each query valid."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from pdguard.outcomes.dashboard import UID, dashboard, dashboard_text
from pdguard.outcomes.definitions import DEFINITIONS, GROUPS, Limits
from tests.outcomes.promtool import needs_promtool, promtool


def test_it_has_a_panel_for_every_figure() -> None:
    made = json.loads(dashboard_text(Limits(), {"cluster": "prod"}))
    panels = [p for p in made["panels"] if p["type"] != "row"]
    assert sorted(p["title"] for p in panels) == sorted(d.title for d in DEFINITIONS)
    assert [p["title"] for p in made["panels"] if p["type"] == "row"] == list(GROUPS)
    assert made["uid"] == UID
    for panel in panels:
        (target,) = panel["targets"]
        assert panel["datasource"] == target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        names = target["expr"].count("sglang:")
        assert target["expr"].count('cluster="prod",instance=~"$instance"') == names > 0
        assert "pdguard:" not in target["expr"]
    assert [v["name"] for v in made["templating"]["list"]] == ["datasource", "instance"]


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard(Limits(), {})["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        g = panel["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken
        assert g["x"] + g["w"] <= 24
        taken |= cells


@needs_promtool
def test_every_query_is_promql(tmp_path: Path) -> None:
    queries = [t["expr"] for p in dashboard(Limits(), {})["panels"] for t in p.get("targets", ())]
    rules = [{"record": f"x:y:z{n}", "expr": q.replace("$instance", ".*")} for n, q in enumerate(queries)]
    (tmp_path / "r.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    done = promtool("check", "rules", "r.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(DEFINITIONS)} rules found" in done.stdout
