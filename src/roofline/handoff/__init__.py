"""Hand-off: launch commands that realise a deployment or a plan, and what their logs should say."""

from __future__ import annotations

import math

from roofline.handoff.commands import EMITTERS, Launch, Limits, hub_id, launch
from roofline.handoff.logs import bench_command, log_lines
from roofline.planner.demand import milliseconds
from roofline.planner.result import Recommendation
from roofline.planner.text import count
from roofline.serving.disaggregated import hand_over_obstacle

__all__ = ["EMITTERS", "Launch", "Limits", "bench_command", "hub_id", "launch", "launch_plan", "log_lines"]

ROUND = 256  # max_model_len is a multiple of this


def launch_plan(r: Recommendation, engine: str) -> str:
    """A script that starts every kind of replica of a plan on an engine, with the log lines to compare with.

    Args:     r: the plan; engine: vllm, sglang, tensorrt-llm, llama.cpp or dynamo
    Returns:  text of a shell script; each command is to be run as often as its comment says
    Errors:   InfeasibleError where the engine cannot do what the plan says
    """
    length = math.ceil(r.traffic.longest / ROUND) * ROUND
    out = [f"# {r.traffic}; {r.slo}", f"# {count(r.fleet.gpus, 'device')}, {r.usd_per_h:,.2f} USD/h"]
    if r.fleet.disaggregated:
        why = hand_over_obstacle(*(o.deployment for o, _ in r.fleet.members))
        out += [f"# {why}: bring a connector of your own"] if why else []
    for o, n in r.fleet.members:
        d = o.deployment
        if engine not in ("dynamo", d.engine.name):
            out.append(f"# planned with the engine profile {d.engine.name}: plan again with --engine {engine}")
        started = launch(d, engine, Limits(length), o.role)
        what = "replica" if o.role == "replica" else f"{o.role} worker"
        out += ["", f"# {n} x {what} on {d.plan.gpus} x {d.accelerator.name} each", started.text]
        out += ["# its log should say"] + [f"#   {line}" for line in log_lines(d, length)]
    rate, t = r.traffic.rate_per_s, r.traffic
    told = ", ".join(f"{r.slo.name_of(k)} {milliseconds(v)}" for k, v in r.latencies.items())
    out += [
        "",
        f"# under the planned load users should see {told}; to check (then: roofline compare bench.json):",
        "# " + bench_command(hub_id(r.fleet.members[0][0].deployment), float(t.isl.mean), float(t.osl.mean), rate),
    ]
    return "\n".join(out)
